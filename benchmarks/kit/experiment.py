"""An experiment as data: what is measured, on which cells, with which flags. The code that runs all of them is here.

An `Experiment` names its cells and its measurement. A cell is a set of values, such as a method and a dimension, whose
rows are made together and whose values are columns of those rows; the measurement turns a cell into rows. The runner
parses the command line, opens the folder of the rows, measures every cell whose rows are not in it yet, prints what it
found, and reports at the end. Cells are measured one after the other, or by any executor of `concurrent.futures`:
`--workers N` makes N processes on this machine, and `--cluster ADDRESS` uses the workers of a dask scheduler, each of
which needs this checkout as its folder. A `Command` has no cells but a body of its own.

The module of an experiment ends in `EXPERIMENT = Experiment(...)` or `EXPERIMENT = Command(...)`; `python -m benchmarks
NAME` runs it.
"""

import sys
import time
from argparse import Namespace
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Executor, ProcessPoolExecutor, as_completed
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any, TypeAlias, TypeVar

from benchmarks.kit.rows import RESULTS, Results, discard
from dpzero_theory.cli import Parser, extra, integer, output_folder

Cell: TypeAlias = dict[str, Any]
Rows: TypeAlias = Iterable[Mapping[str, Any]] | Mapping[str, Any]
Flag: TypeAlias = tuple[tuple[str, ...], dict[str, Any]]
_Resource = TypeVar("_Resource")


def flag(*names: str, **how: Any) -> Flag:
    """Return the arguments of `add_argument` that define a flag, for a command whose parser is made later."""
    return names, how


@contextmanager
def opened(parser: Parser, flag: str, resource: AbstractContextManager[_Resource]) -> Iterator[_Resource]:
    """Enter the context manager `resource`, and yield its value to the block.

    An error while it is entered, unlike an error of the block, becomes an error of the command line that names `flag`.
    """
    with ExitStack() as stack:
        with parser.refusals(flag):
            value = stack.enter_context(resource)
        yield value


@dataclass(frozen=True)
class Command:
    """A command with a body of its own.

    Attributes:
        name: the command is `python -m benchmarks NAME`.
        about: the text of `--help`.
        work: the body. It is given the parser, whose `error` refuses a command line, and the parsed options, and it
            returns the exit status, None for 0.
        flags: the flags of the command line.
    """

    name: str
    about: str | None
    work: Callable[[Parser, Namespace], int | None]
    flags: Sequence[Flag] = ()

    def parser(self) -> Parser:
        """Return the parser of the command line."""
        parser = Parser(f"benchmarks {self.name}", self.about or "")
        for names, how in self.flags:
            parser.add_argument(*names, **how)
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
        key, fields, compress: as in `Results`.
        cells: the cells, in the order of their rows. Left out, there is one cell, and it has all rows. A cell is a
            dictionary of columns; it may be any other value if `keys` is given.
        measure: makes the rows of a cell, one or several. The columns that the cell has need not be in them. With
            `workers` it must be a function at the top level of a module, so that other processes can import it.
        keys: the keys of a cell's rows, needed if a cell has more than one row: by them the runner knows whether the
            cell is already measured.
        flags: the flags beside `--out`, and beside `--workers`, `--cluster` and `--summary`, which exist if those
            attributes do.
        folder: the folder of the rows without `--out`: a name below benchmarks/results, or a function of the options.
        seeds, settings, device, dtype: as in `Results`, or functions of the options.
        check: refuses flags that contradict each other by raising the parser's error; it may also change what holds for
            the whole process, such as the number of threads.
        told: the line printed after a cell, made from the cell and its rows. Before it stands the number of cells
            measured so far.
        report: prints something at the end and returns the exit status, None for 0.
        summary: a text made from the folder of the rows. The flag `--summary` prints it and measures nothing;
            otherwise it is printed at the end.
        workers: the number of processes without the flag `--workers`; 0 for an experiment that runs in this process
            alone, for example because it measures times.
        reads_rows: whether a measurement reads the rows of cells before it, so that rows are saved after each cell.
        tolerant: whether an exception in `measure` makes failed rows, with its message as their status, one for each
            key of the cell; otherwise it ends the command.
        fresh: whether the rows are deleted and made again each time, as those that are computed from other rows are.
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
    compress: bool = False
    check: Callable[[Parser, Namespace], None] | None = None
    told: Callable[[Any, list[dict[str, Any]]], str] | None = None
    report: Callable[[Namespace], int | None] | None = None
    summary: Callable[[Path], str] | None = None
    workers: int = 0
    reads_rows: bool = False
    tolerant: bool = False
    fresh: bool = False

    def all_flags(self) -> list[Flag]:
        """Return the experiment's own flags, and those that the runner adds."""
        fixed = None if callable(self.folder) else RESULTS / (self.folder or self.name)
        more = [flag("--out", type=output_folder, default=fixed, help="folder of the rows")]
        if self.workers:
            more += [
                flag("--workers", type=integer(1, 256), default=self.workers, help="processes on this machine"),
                flag("--cluster", metavar="ADDRESS", help="of a dask scheduler, whose workers take their place"),
            ]
        if self.summary:
            more += [flag("--summary", action="store_true", help="print what the rows say and stop")]
        return [*self.flags, *more]

    def parser(self) -> Parser:
        """Return the parser of the command line."""
        return Command(self.name, self.about, self.run, self.all_flags()).parser()

    def main(self, argv: Sequence[str] | None = None, executor: Executor | None = None) -> int:
        """Run the command line `argv`, or that of this process if it is None, on the given executor, which stays open,
        or on the one that the command line asks for. Returns the exit status."""
        parser = self.parser()
        return self.run(parser, parser.parse_args(argv), executor)

    def run(self, parser: Parser, options: Namespace, executor: Executor | None = None) -> int:
        """Run the experiment with the options that `parser` has parsed. Returns the exit status."""
        if options.out is None:
            options.out = self.folder(options) if callable(self.folder) else RESULTS / (self.folder or self.name)
        if self.summary and options.summary:
            with parser.refusals("--out"):
                print(self.summary(options.out))
            return 0
        if self.check:
            self.check(parser, options)
        with (
            opened(parser, "--cluster", _executor(options, executor)) as pool,
            opened(parser, "--out", self._results(options)) as results,
        ):
            self._fill(results, options, pool)
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
        )

    def _fill(self, results: Results, options: Namespace, pool: Executor | None) -> None:
        def done(cell: Any) -> bool:
            return not self.fresh and all(results.done(**key) for key in self.keys(options, cell))

        left = [cell for cell in self.cells(options) if not done(cell)]
        waiting: list[dict[str, Any]] = []
        words: list[str] = []
        started = saved = time.perf_counter()
        for count, (cell, made) in enumerate(self._measured(options, left, pool), start=1):
            if isinstance(made, str):
                made = [{**key, "status": made} for key in self.keys(options, cell)]
            columns = cell if isinstance(cell, Mapping) else {}
            rows = [{**columns, **row} for row in made]
            waiting += [row for row in rows if not results.done(**{name: row[name] for name in self.key})]
            if self.told:
                words.append(f"{count}/{len(left)} {self.told(cell, rows)}, {time.perf_counter() - started:.1f} s")
            # the whole file is written each time, and what is told is saved
            if self.reads_rows or time.perf_counter() - saved >= 1 or count == len(left):
                results.add(waiting)
                print("".join(f"{line}\n" for line in words), end="", flush=True)
                waiting, words, saved = [], [], time.perf_counter()

    def _measured(
        self, options: Namespace, left: Sequence[Any], pool: Executor | None
    ) -> Iterator[tuple[Any, list[Mapping[str, Any]] | str]]:
        """Yield each cell of `left` with its measured rows, or, if measuring raised an exception and the experiment
        tolerates that, with the exception's message. With an executor they come in the order of completion."""
        work = partial(_work, self.measure, self.tolerant, options)
        if pool is None:
            yield from ((cell, work(cell)) for cell in left)
            return
        waiting = {pool.submit(_alone, work, cell): cell for cell in left}
        try:
            for future in as_completed(waiting):
                yield waiting[future], future.result()
        finally:
            for future in waiting:
                future.cancel()


def _work(
    measure: Callable[[Namespace, Any], Rows], tolerant: bool, options: Namespace, cell: Any
) -> list[Mapping[str, Any]] | str:
    try:
        made = measure(options, cell)
        return [made] if isinstance(made, Mapping) else list(made)
    except Exception as error:
        if tolerant:
            return f"{type(error).__name__}: {error}"[:200]
        raise


def _alone(work: Callable[[Any], Any], cell: Any) -> Any:
    """Measure a cell in a process beside others. With more threads torch adds in another order, and processes whose
    threads share a core wait for each other."""
    if torch := sys.modules.get("torch"):
        torch.set_num_threads(1)
    return work(cell)


@contextmanager
def _executor(options: Namespace, given: Executor | None) -> Iterator[Executor | None]:
    """Yield the executor that is given, or the one that the options ask for: the workers of the scheduler at
    `options.cluster`, or `options.workers` new processes, if there are more than one; None for this process alone."""
    count, address = getattr(options, "workers", 1), getattr(options, "cluster", None)
    if given is not None:
        yield given
    elif address:
        with extra("cluster", "benchmarks"):
            from distributed import Client
        try:
            client = Client(address, timeout=10)
        except (OSError, ValueError) as error:
            raise ValueError(f"cluster must be the address of a dask scheduler; got {address!r}") from error
        with client, client.get_executor() as pool:
            yield pool
    elif count > 1:
        with ProcessPoolExecutor(count, get_context("forkserver")) as pool:
            yield pool
    else:
        yield None
