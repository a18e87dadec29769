"""A script of `benchmarks` as data: what it measures, on which cells, with which flags; the runner is here, once.

An `Experiment` has cells, each a part of the rows' key, and a measurement, which makes the rows of a cell. The runner
parses the command line, opens the folder of the rows, measures the cells whose rows are not there yet, on several
processes if the experiment has `--workers`, says what it found, and reports at the end. A `Command` is what has no such
cells: a body of its own, with the same parser. A module ends in

    main, _parser = EXPERIMENT.main, EXPERIMENT.parser

    if __name__ == "__main__":
        sys.exit(main())

so that `python -m benchmarks.NAME` and `python -m benchmarks NAME` are the same.
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
    """A flag of a command: what `add_argument` takes."""
    return names, how


@dataclass(frozen=True)
class Command:
    """A command with a body of its own.

    name: below `benchmarks`. about: what `--help` says. work: the body, of the parser (for refusals) and the options
    -> exit status, None for 0. flags, aliases: of the command line.
    """

    name: str
    about: str | None
    work: Callable[[Parser, Namespace], int | None]
    flags: Sequence[Flag] = ()
    aliases: Mapping[str, str] | None = None
    one_of: Sequence[str] = ()

    def parser(self) -> Parser:
        """The parser of its command line."""
        parser = Parser(f"benchmarks.{self.name}", self.about or "", self.aliases)
        exclusive = parser.add_mutually_exclusive_group() if self.one_of else parser
        for names, how in self.flags:
            (exclusive if names[0] in self.one_of else parser).add_argument(*names, **how)
        return parser

    def main(self, argv: Sequence[str] | None = None) -> int:
        """Run a command line, that of this process if None -> exit status."""
        parser = self.parser()
        return self.work(parser, parser.parse_args(argv)) or 0


def _nothing(options: Namespace) -> dict[str, Any]:
    return {}


def _one(options: Namespace) -> list[Cell]:
    return [{}]


def _same(options: Namespace, cell: Cell) -> Iterator[Cell]:
    yield cell


@dataclass(frozen=True, kw_only=True)
class Experiment:
    """A script whose rows are measured cell by cell.

    Every callable takes the parsed options; options.out is the folder of the rows.

    Attributes:
        name: of the script. about: its docstring, for `--help`.
        key, fields, dtype, device, cell, figure, compress: of `Results`.
        cells: the cells in the order of the rows; values of some of the columns. One, of all rows, if not given.
        measure: the rows of a cell, one or several, without the cell's own columns or with them. With `workers` a
            function of a module.
        keys: the keys of a cell's rows where it has more than one, so that the runner knows when it is done.
        flags: beside `--out`, and `--workers`, `--summary` where there are such.
        folder: of the rows if `--out` is not given; below benchmarks/results, or by the options.
        seeds, settings: of `Results`, by the options.
        check: raises the parser's error for what flags must not be together, sets what holds for the whole process.
        begun: what is said on standard error before a cell is measured.
        told: what is printed of a cell's rows; counted: after which of how many it is;
            timed: and processor time since the last.
        report: what is printed at the end -> exit status, None for 0.
        summary: what `--summary` prints of the folder's rows, and the run at its end.
        workers: how many processes if `--workers` is not given; 0 where there is one only, without the flag.
        fresh: the rows are computed from others and made anew each time.
        together: so many cells are saved at a time.
    """

    name: str
    about: str | None
    key: Sequence[str]
    fields: Sequence[str]
    measure: Callable[[Namespace, Cell], Rows]
    cells: Callable[[Namespace], Iterable[Cell]] = _one
    keys: Callable[[Namespace, Cell], Iterable[Cell]] = _same
    flags: Sequence[Flag] = ()
    folder: Callable[[Namespace], Path] | str = ""
    seeds: Callable[[Namespace], Iterable[int]] | Iterable[int] = ()
    settings: Callable[[Namespace], Mapping[str, Any]] | Mapping[str, Any] = _nothing
    device: Callable[[Namespace], str] | str = "cpu"
    dtype: str = "float64"
    cell: Sequence[str] = ()
    figure: str = ""
    compress: bool = False
    check: Callable[[Parser, Namespace], None] | None = None
    begun: Callable[[Cell], str] | None = None
    told: Callable[[Cell, list[dict[str, Any]]], str] | None = None
    counted: bool = False
    timed: bool = False
    report: Callable[[Namespace], int | None] | None = None
    summary: Callable[[Path], str] | None = None
    workers: int = 0
    fresh: bool = False
    together: int = 1

    def parser(self) -> Parser:
        fixed = None if callable(self.folder) else RESULTS / (self.folder or self.name)
        more = [flag("--out", type=output_folder, default=fixed, help="folder of the rows and their manifest")]
        if self.workers:
            more += [flag("--workers", type=integer(1, 256), default=self.workers, help="processes")]
        if self.summary:
            more += [flag("--summary", action="store_true", help="print what the rows say and stop")]
        return Command(self.name, self.about, self._work, [*self.flags, *more]).parser()

    def main(self, argv: Sequence[str] | None = None) -> int:
        """Measure what is not in the rows yet; -> exit status."""
        parser = self.parser()
        return self._work(parser, parser.parse_args(argv))

    def _work(self, parser: Parser, options: Namespace) -> int:
        if options.out is None and callable(self.folder):
            options.out = self.folder(options)
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
            dtype=self.dtype,
            settings=of(self.settings),
            compress=self.compress,
            cell=self.cell,
            figure=self.figure,
        )

    def _fill(self, results: Results, options: Namespace) -> None:
        def done(cell: Cell) -> bool:
            return not self.fresh and all(results.done(**key) for key in self.keys(options, cell))

        left = [cell for cell in self.cells(options) if not done(cell)]
        waiting: list[dict[str, Any]] = []
        started = time.process_time()
        for count, (cell, made) in enumerate(self._measured(options, left), start=1):
            rows = [{**cell, **row} for row in ([made] if isinstance(made, Mapping) else made)]
            waiting += [row for row in rows if not results.done(**{name: row[name] for name in self.key})]
            if count % self.together and count < len(left):
                continue
            results.add(waiting)
            waiting = []
            if self.told:
                words = [f"{count}/{len(left)}"] * self.counted + [self.told(cell, rows)]
                seconds = f", {time.process_time() - started:.1f} s" if self.timed else ""
                print(" ".join(filter(None, words)) + seconds, flush=True)
                started = time.process_time()

    def _measured(self, options: Namespace, left: Sequence[Cell]) -> Iterator[tuple[Cell, Rows]]:
        if self.workers:
            from benchmarks.kit.jobs import completed  # which imports torch

            jobs = [(cell,) for cell in left]
            yield from (
                (cell, made) for (cell,), made in completed(partial(self.measure, options), jobs, options.workers)
            )
            return
        for cell in left:
            if self.begun:
                print(self.begun(cell), file=sys.stderr, flush=True)
            yield cell, self.measure(options, cell)
