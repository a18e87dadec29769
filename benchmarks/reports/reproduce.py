"""Do the committed rows come back?  python -m benchmarks.reproduce [--minutes M] [--list]

In the minutes given, rows drawn at random are made again and compared, in every column except times and memory. A row
has come back if it is equal to the last digit; or as near as its experiment allows, with a reason (`kit.remake`); or,
if its noise comes from the operating system, within six standard errors. The folders of results take turns by the time
spent on them. A row that takes more than a tenth of the minutes is given up, and one that needs a package that is not
installed is not checked. Everything runs on one thread, because more threads add in another order. On a machine whose
libraries compute in another way (`kit.arithmetic`), rows come back as near as the experiment allows for that, and rows
of runs that enlarge rounding errors are passed over.

The last line says whether the check passes. The exit status is 0 if it does, and 1 if a row does not come back or none
was made again.

`--list` prints for every folder of results its rows, age, commit, command and cost, whether its rows can be made again,
and which numbers of the README and of docs/, and which claims of the paper, rest on it.
"""

import importlib.util
import random
import re
import secrets
import shlex
import time
from argparse import Namespace
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cached_property
from inspect import getsource
from pathlib import Path
from typing import Any

import torch
from threadpoolctl import threadpool_limits

from benchmarks import home
from benchmarks.kit import sources
from benchmarks.kit.arithmetic import others
from benchmarks.kit.experiment import Command, flag
from benchmarks.kit.limits import TooLong, limited
from benchmarks.kit.remake import Remake, Row, plain
from benchmarks.kit.rows import RESULTS, read_manifest, read_rows
from benchmarks.reports import summary
from dpzero_theory.cli import Parser, input_folder, integer, number

ROOT = RESULTS.parents[1]
SHARE = 10
"""Making one row again may take the given minutes divided by this number; a row that takes longer is given up."""


@dataclass(frozen=True, eq=False)
class Committed:
    """A folder of committed rows, with the contents of its manifest."""

    folder: Path
    manifest: dict[str, Any]

    @property
    def name(self) -> str:
        return self.folder.name

    @property
    def module(self) -> str:
        """The module whose command made the rows, or "" if the manifest's command names no module."""
        words = shlex.split(self.manifest["command"])
        return words[2] if words[1:2] == ["-m"] else ""

    @cached_property
    def remake(self) -> Remake | None:
        """How the folder's rows are made again. It is None if they cannot be, or if the code of their experiment no
        longer exists."""
        if not self.module.startswith("benchmarks.") or importlib.util.find_spec(home(self.module)) is None:
            return None
        found: Remake | None = getattr(importlib.import_module(home(self.module)), "REMAKES", {}).get(self.name)
        return found

    @cached_property
    def rows(self) -> list[Row]:
        return [plain(row) for row in read_rows(self.folder).to_dict("records")]

    def shuffled(self, rng: random.Random) -> Iterator[Row]:
        """Yield all rows of the folder in a random order. The file is read only when the first row is asked for."""
        yield from rng.sample(self.rows, len(self.rows))


def committed(results: Path) -> list[Committed]:
    """Return every folder of rows below `results`. Raises ValueError if one has no manifest."""
    folders = sorted({path.parent for path in results.glob("*/rows.csv*")})
    return [Committed(folder, read_manifest(folder)) for folder in folders]


@dataclass(frozen=True)
class Reproduced:
    """What came of making a row again.

    name is that of the folder, and row has the key columns of the row. verdict is `equal`, `near` (within the allowed
    difference), `too long`, `not checked` or `DIFFERENT`, and said explains it. seconds is the time that it took.
    """

    name: str
    row: Row
    verdict: str
    said: str
    seconds: float

    @property
    def which(self) -> str:
        return ", ".join([self.name, " ".join(f"{name}={value}" for name, value in self.row.items())])


def again(one: Committed, remake: Remake, row: Row, limit: float, elsewhere: bool) -> Reproduced:
    """Make a row of the folder `one` again, in at most `limit` wall seconds, and return what came of it. `remake` says
    how rows of this folder are made again and compared. elsewhere says whether this machine's libraries compute in
    another way (`kit.arithmetic`) than on the machine that made the row. Nothing is raised: an exception makes the
    verdict `DIFFERENT`, except that a package that is not installed makes it `not checked`."""
    started, key = time.perf_counter(), {name: row[name] for name in remake.key}
    try:
        with limited(limit):
            found = remake.differences(row, elsewhere)
        wrong = [difference for difference in found if not difference.near]
        verdict = "DIFFERENT" if wrong else "near" if found else "equal"
        said = "; ".join(map(str, wrong)) or (remake.reason(elsewhere) if found else "")
    except TooLong:
        verdict, said = "too long", ""
    except ModuleNotFoundError as error:
        verdict, said = ("DIFFERENT" if _is_ours(error) else "not checked"), str(error)
    except Exception as error:
        verdict, said = "DIFFERENT", f"{type(error).__name__}: {error}"
    return Reproduced(one.name, key, verdict, said, time.perf_counter() - started)


def _is_ours(error: ModuleNotFoundError) -> bool:
    return (error.name or "").partition(".")[0] in ("benchmarks", "dpzero_theory")


def reproduce(tables: Sequence[Committed], seconds: float, rng: random.Random) -> Iterator[Reproduced]:
    """Make random rows of the folders `tables` again until `seconds` have passed or all are made, and yield what came
    of each. The next row is always of the folder on which the least time was spent so far."""
    ends = time.perf_counter() + seconds
    elsewhere = bool(others())
    spent: dict[Committed, float] = {}
    for one in tables:
        try:
            if one.remake is not None:
                spent[one] = 0.0
        except ModuleNotFoundError as error:
            if _is_ours(error):
                raise
            yield Reproduced(one.name, {}, "not checked", str(error), 0.0)
    waiting: dict[Committed, Iterator[Row]] = {}
    while spent and (left := ends - time.perf_counter()) > 0:
        one = min(rng.sample(list(spent), len(spent)), key=spent.__getitem__)
        row = next(waiting.setdefault(one, one.shuffled(rng)), None)
        if row is None:
            del spent[one]
        elif one.remake is not None and not (elsewhere and one.remake.upset(row)):
            outcome = again(one, one.remake, row, min(left, seconds / SHARE), elsewhere)
            spent[one] += outcome.seconds
            yield outcome


def listing(tables: Sequence[Committed], pages: Mapping[str, str], checks: Path) -> Iterator[str]:
    """Yield the lines that `--list` prints: for each folder its contents, cost and age, and which numbers and claims
    rest on it. pages has the texts of pages by name, and checks is the folder of the modules that check the paper's
    claims. `tables` are the folders of committed rows."""
    commands = {one.name: one.manifest["command"] for one in tables}
    read = _of_summary(list(commands))
    shown = [(name, block) for name, page in pages.items() for block in sources.blocks(page, commands, read)]
    claims = sources.claims(checks, commands.__contains__)
    for one in tables:
        manifest, started = one.manifest, datetime.fromisoformat(one.manifest["started"])
        days = (datetime.now(UTC) - started).days
        yield (
            f"{one.name}: {manifest['rows']:,} rows, {started.date()} ({days} days ago), "
            f"commit {manifest['commit'][:7]}{'+' * ('+' in manifest['commit'])}, "
            f"{manifest['total_wall_s']:,.0f} s; {'can' if one.remake else 'cannot'} be made again row by row"
        )
        yield f"    {manifest['command']}"
        if "rows" in manifest["settings"]:
            yield f"    from the rows of {' '.join(manifest['settings']['rows'])}"
        for page, block in shown:
            if one.name in block.folders:
                yield f"    {page}:{block.line}: {' '.join(block.numbers)}"
        if one.name in claims:
            yield f"    claims: {' '.join(claims[one.name])}"
    yield "no rows (definitions, settings, the paper's numbers, and what a command beside them prints):"
    for page, block in shown:
        if not block.folders:
            yield f"    {page}:{block.line}: {' '.join(block.numbers)}"


def measured_pages() -> dict[str, str]:
    """Return the texts of the README, of the pages of results and of the notes beside the rows, by name."""
    pages = [ROOT / "README.md", *sorted((ROOT / "docs" / "results").glob("*.md")), *sorted(RESULTS.glob("*/NOTES.md"))]
    return {str(page.relative_to(ROOT)): page.read_text() for page in pages}


def _of_summary(folders: Sequence[str]) -> dict[str, tuple[str, ...]]:
    """Return for each table of `benchmarks.summary` those of the given folders of rows that it reads, as the source
    code of the table's function names them."""
    read = {
        name: re.findall(r'RESULTS / f?"(\w+)', getsource(summary.FULL[name.removesuffix("_short")]))
        for name in summary.TABLES
    }
    return {
        name: tuple(folder for folder in folders if any(_begins(folder, start) for start in starts))
        for name, starts in read.items()
    }


def _begins(folder: str, start: str) -> bool:
    return folder == start or (start.endswith("_") and folder.startswith(start))


def _body(parser: Parser, options: Namespace) -> int:
    """Make rows again for the given minutes, or list the folders. Returns the exit status: 1 if a row does not come
    back or none was made, else 0."""
    with parser.refusals("--results"):
        tables = committed(options.results)
    if options.list:
        print("\n".join(listing(tables, measured_pages(), ROOT / "paper_checks" / "checks")))
        return 0
    torch.set_num_threads(1)
    seed = secrets.randbelow(2**32) if options.seed is None else options.seed
    found: list[Reproduced] = []
    with threadpool_limits(1):
        print(f"--seed {seed}; {_compared()}", flush=True)
        for outcome in reproduce(tables, 60 * options.minutes, random.Random(seed)):
            found.append(outcome)
            print(f"{outcome.verdict}: {outcome.which}, {outcome.seconds:.1f} s {outcome.said}".rstrip(), flush=True)
    passed, said = verdict(found)
    print(said)
    return 0 if passed else 1


def _compared() -> str:
    names = others()
    if not names:
        return "arithmetic as of the rows: digits are compared to the last"
    return f"arithmetic not as of the rows, in {', '.join(names)}: last digits may differ"


def verdict(found: Sequence[Reproduced]) -> tuple[bool, str]:
    """Return whether all rows that were made again came back (False also if there were none), and a sentence that says
    so. `found` says for each row what came of making it again."""
    of = {name: [one for one in found if one.verdict == name] for name in ("equal", "near", *_UNDECIDED, "DIFFERENT")}
    back, wrong = of["equal"] + of["near"], of["DIFFERENT"]
    passed = bool(back) and not wrong
    parts = [
        f"{len(back)} rows of {len({one.name for one in back})} results came back, {len(of['equal'])} of them to the "
        f"last digit",
        f"{len(wrong)} did not" + "".join(f" ({one.which})" for one in wrong),
        *(f"{len(of[name])} {words}" for name, words in _UNDECIDED.items() if of[name]),
    ]
    return passed, f"{'Passed' if passed else 'Failed'}: {'; '.join(parts)}."


_UNDECIDED = {
    "too long": "took too long and were left, which fails nothing",
    "not checked": "were not checked for want of a package, which fails nothing",
}

EXPERIMENT = Command(
    "reproduce",
    __doc__,
    _body,
    [
        flag("--minutes", type=number(above=0), default=20),
        flag("--list", action="store_true", help="print what there is and make nothing"),
        flag("--seed", type=integer(0, 2**32), help="of the draw of rows (default: a new one, printed)"),
        flag("--results", type=input_folder(), default=RESULTS, help="folder of the folders of rows"),
    ],
)
