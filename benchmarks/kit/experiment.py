"""An experiment as data: what is measured, on which cells, with which flags. The code that runs all of them is here.

An `Experiment` names its cells and its measurement. A cell is a set of values, such as a method and a dimension, whose
rows are made together and whose values are columns of those rows; the measurement turns a cell into rows. The runner
parses the command line, opens the folder of the rows, measures every cell whose rows are not in it yet (in several
processes if the experiment has the flag `--workers`), prints what it found, and reports at the end. A `Command` has no
such cells: it has a body of its own and the same kind of command line.

The module of an experiment ends in `EXPERIMENT = Experiment(...)` or `EXPERIMENT = Command(...)`. `python -m benchmarks
NAME` and `python -m benchmarks.NAME` run it.
"""

import sys
import time
from argparse import Namespace
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

from benchmarks.kit.rows import RESULTS, Results, discard
from dpzero_theory.cli import Parser, integer, output_folder

Cell: TypeAlias = dict[str, Any]
Rows: TypeAlias = Iterable[Mapping[str, Any]] | Mapping[str, Any]
Flag: TypeAlias = tuple[tuple[str, ...], dict[str, Any]]


def flag(*names: str, **how: Any) -> Flag:
    """Return the arguments of `add_argument` that define a flag, for a command whose parser is made later."""
    return names, how


@dataclass(frozen=True)
class Command:
    """A command with a body of its own.

    name: the command is `python -m benchmarks.NAME`. about: the text of `--help`. work: the body; it is given the
    parser, whose `error` refuses a command line, and the parsed options, and it returns the exit status, None for 0.
    flags: the flags of the command line. aliases: old names of flags and the new ones, as in `Parser`. one_of: flags of
    which a command line may have one at most.
    """

    name: str
    about: str | None
    work: Callable[[Parser, Namespace], int | None]
    flags: Sequence[Flag] = ()
    aliases: Mapping[str, str] | None = None
    one_of: Sequence[str] = ()

    def parser(self) -> Parser:
        """Return the parser of the command line."""
        parser = Parser(f"benchmarks.{self.name}", self.about or "", self.aliases)
        exclusive = parser.add_mutually_exclusive_group() if self.one_of else parser
        for names, how in self.flags:
            (exclusive if names[0] in self.one_of else parser).add_argument(*names, **how)
        return parser

    def main(self, argv: Sequence[str] | None = None) -> int:
        """Run the command line `argv`, or that of this process if it is None. Returns the exit status."""
        parser = self.parser()
        return self.run(parser, parser.parse_args(argv))

    def run(self, parser: Parser, options: Namespace) -> int:
        """Run the command with the options that `parser` has parsed. Returns the exit status."""
        return self.work(parser, options) or 0


def _nothing(options: Namespace) -> dict[str, Any]:
    return {}


def _one(options: Namespace) -> list[Cell]:
    return [{}]


def _same(options: Namespace, cell: Cell) -> Iterator[Cell]:
    yield cell


@dataclass(frozen=True, kw_only=True)
class Experiment:
    """Rows that are measured cell by cell.

    Every callable below takes the parsed options first; options.out is the folder of the rows.

    Attributes:
        name, about: as in `Command`.
        key, fields, cell, figure, compress: as in `Results`.
        cells: the cells, in the order of their rows. Left out, there is one cell, and it has all rows. A cell is a
            dictionary of columns; it may be any other value where `keys` is given.
        measure: makes the rows of a cell, one or several. The columns that the cell has need not be in them. With
            `workers` it must be a function at the top level of a module, so that other processes can import it.
        keys: the keys of a cell's rows, needed where a cell has more than one row: by them the runner knows whether the
            cell is already measured.
        flags: the flags beside `--out`, and beside `--workers` and `--summary`, which exist where those attributes do.
        folder: the folder of the rows without `--out`: a name below benchmarks/results, or a function of the options.
        seeds, settings, device, dtype: as in `Results`, or functions of the options.
        check: refuses flags that contradict each other by raising the parser's error; it may also change what holds for
            the whole process, such as the number of threads.
        begun: the line printed on standard error before a cell is measured.
        told: the line printed after a cell, made from the cell and its rows. Before it stands the number of cells
            measured so far, after it the processor seconds since the last line.
        report: prints something at the end and returns the exit status, None for 0.
        summary: a text made from the folder of the rows. The flag `--summary` prints it and measures nothing;
            otherwise it is printed at the end.
        workers: the number of processes without the flag `--workers`; 0 for an experiment without that flag.
        workers_flags: the names of that flag.
        tolerant: whether an exception in `measure` makes failed rows, with its message as their status, one for each
            key of the cell; otherwise it ends the command.
        fresh: whether the rows are deleted and made again each time, as those that are computed from other rows are.
        together: the rows are saved each time so many cells have been measured.
    """

    name: str
    about: str | None
    key: Sequence[str]
    fields: Sequence[str]
    measure: Callable[[Namespace, Any], Rows]
    cells: Callable[[Namespace], Iterable[Any]] = _one
    keys: Callable[[Namespace, Any], Iterable[Cell]] = _same
    flags: Sequence[Flag] = ()
    folder: Callable[[Namespace], Path] | str = ""
    seeds: Callable[[Namespace], Iterable[int]] | Iterable[int] = ()
    settings: Callable[[Namespace], Mapping[str, Any]] | Mapping[str, Any] = _nothing
    device: Callable[[Namespace], str] | str = "cpu"
    dtype: Callable[[Namespace], str] | str = "float64"
    cell: Sequence[str] = ()
    figure: str = ""
    compress: bool = False
    check: Callable[[Parser, Namespace], None] | None = None
    begun: Callable[[Any], str] | None = None
    told: Callable[[Any, list[dict[str, Any]]], str] | None = None
    report: Callable[[Namespace], int | None] | None = None
    summary: Callable[[Path], str] | None = None
    workers: int = 0
    workers_flags: Sequence[str] = ("--workers",)
    tolerant: bool = False
    fresh: bool = False
    together: int = 1

    def parser(self) -> Parser:
        fixed = None if callable(self.folder) else RESULTS / (self.folder or self.name)
        more = [flag("--out", type=output_folder, default=fixed, help="folder of the rows and their manifest")]
        if self.workers:
            more += [flag(*self.workers_flags, type=integer(1, 256), default=self.workers, help="processes")]
        if self.summary:
            more += [flag("--summary", action="store_true", help="print what the rows say and stop")]
        return Command(self.name, self.about, self.run, [*self.flags, *more]).parser()

    def main(self, argv: Sequence[str] | None = None) -> int:
        """Run the command line `argv`, or that of this process if it is None. Returns the exit status."""
        parser = self.parser()
        return self.run(parser, parser.parse_args(argv))

    def run(self, parser: Parser, options: Namespace) -> int:
        """Run the experiment with the options that `parser` has parsed. Returns the exit status."""
        if options.out is None:
            options.out = self.folder(options) if callable(self.folder) else RESULTS / (self.folder or self.name)
        if self.summary and options.summary:
            with parser.refusals("--out"):
                print(self.summary(options.out))
            return 0
        if self.check:
            self.check(parser, options)
        with parser.opened("--out", self._results(options)) as results:
            self._fill(results, options)
        if self.summary:
            print(self.summary(options.out))
        return (self.report(options) if self.report else None) or 0

    def _results(self, options: Namespace) -> Results:
        def of(value: Any) -> Any:
            return value(options) if callable(value) else value

        if self.fresh:
            discard(options.out)
        return Results(
            options.out,
            key=self.key,
            fields=self.fields,
            seeds=list(of(self.seeds)),
            device=of(self.device),
            dtype=of(self.dtype),
            settings=of(self.settings),
            compress=self.compress,
            cell=self.cell,
            figure=self.figure,
        )

    def _fill(self, results: Results, options: Namespace) -> None:
        def done(cell: Any) -> bool:
            return not self.fresh and all(results.done(**key) for key in self.keys(options, cell))

        left = [cell for cell in self.cells(options) if not done(cell)]
        waiting: list[dict[str, Any]] = []
        started = time.process_time()
        for count, (cell, made) in enumerate(self._measured(options, left), start=1):
            if isinstance(made, str):
                made = [{**key, "status": made} for key in self.keys(options, cell)]
            columns = cell if isinstance(cell, Mapping) else {}
            rows = [{**columns, **row} for row in ([made] if isinstance(made, Mapping) else made)]
            waiting += [row for row in rows if not results.done(**{name: row[name] for name in self.key})]
            if count % self.together and count < len(left):
                continue
            results.add(waiting)
            waiting = []
            if self.told:
                words = f"{count}/{len(left)} {self.told(cell, rows)}, {time.process_time() - started:.1f} s"
                print(words, flush=True)
                started = time.process_time()

    def _measured(self, options: Namespace, left: Sequence[Any]) -> Iterator[tuple[Any, Rows | str]]:
        """Yield each cell of `left` with its measured rows, or, if measuring raised an exception and the experiment
        tolerates that, with the exception's message."""
        measure = partial(_tried, self.measure, options) if self.tolerant else partial(self.measure, options)
        if self.workers:
            # benchmarks.kit.jobs imports torch, so it is imported only when it is needed
            from benchmarks.kit.jobs import completed

            count = vars(options)[self.workers_flags[0].strip("-")]
            yield from ((cell, made) for (cell,), made in completed(measure, [(cell,) for cell in left], count))
            return
        for cell in left:
            if self.begun:
                print(self.begun(cell), file=sys.stderr, flush=True)
            yield cell, measure(cell)


def _tried(measure: Callable[[Namespace, Any], Rows], options: Namespace, cell: Any) -> Rows | str:
    try:
        made = measure(options, cell)
        return made if isinstance(made, Mapping) else list(made)
    except Exception as error:
        return f"{type(error).__name__}: {error}"[:200]


def presets(name: str, about: str | None, flags: Sequence[Flag], each: Mapping[str, Command | Experiment]) -> Command:
    """Return a command whose flag `--preset` chooses one of the experiments in `each`, by name. `flags` are the flags
    of all of them. `name` and `about` are the command's name and help text."""
    choice = flag("--preset", choices=tuple(each), required=True)
    return Command(name, about, lambda parser, options: each[options.preset].run(parser, options), [choice, *flags])


def numbered(
    folder: str,
    settings: Callable[[Namespace], Iterable[Cell]],
    answer: Callable[[Cell], Mapping[str, Any]],
    fields: Sequence[str],
    *,
    about: str | None = None,
    seeds: Sequence[int] = (),
    report: Callable[[Path], None] | None = None,
) -> Experiment:
    """Return an experiment with one row for each setting, whose key is the setting's number in the column `setting`.
    `folder` is the experiment's name and that of its folder of rows, `fields` are the columns of a row beside the
    number, `about` is the help text, and `seeds` go into the manifest.

    settings: yields the settings, each with its number. answer: makes the row of a setting. report: prints a summary
    of the folder of rows at the end.
    """
    return Experiment(
        name=folder,
        about=about,
        key=("setting",),
        fields=fields,
        seeds=seeds,
        workers=2,
        cells=settings,
        measure=partial(_answered, answer),
        report=None if report is None else lambda options: report(options.out),
        told=lambda cell, rows: f"setting {cell['setting']}: {rows[0].get('status', 'ok')}",
    )


def _answered(answer: Callable[[Cell], Rows], options: Namespace, cell: Cell) -> Rows:
    return answer(cell)
