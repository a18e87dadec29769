"""Do the committed rows come back?  python -m benchmarks reproduce [--minutes M]

In the minutes given, rows drawn at random are made again and compared, in every column except times and memory. A row
has come back if it is as near as its experiment allows (`kit.remake`). The folders of results take turns by the time
spent on them. A row that takes more than a tenth of the minutes is given up, and one that needs a package that is not
installed is not checked. Everything runs on one thread, because more threads add in another order. On another
processor, whose libraries compute the last digits in another way, a run that enlarges rounding errors may differ.

The last line says whether the check passes. The exit status is 0 if it does, and 1 if a row does not come back or none
was made again.
"""

import random
import secrets
import time
from argparse import Namespace
from collections import Counter
from collections.abc import Iterator, Mapping
from importlib import import_module
from pathlib import Path

import torch
from threadpoolctl import threadpool_limits

from benchmarks.__main__ import scripts
from benchmarks.kit.experiment import Command, flag
from benchmarks.kit.limits import TooLong, limited
from benchmarks.kit.remake import Remake, Row, plain
from benchmarks.kit.rows import RESULTS, read_rows, rows_file
from dpzero_theory.cli import Parser, input_folder, integer, number

SHARE = 10
"""Making one row again may take the given minutes divided by this number; a row that takes longer is given up."""


def remakes(results: Path) -> dict[str, Remake]:
    """Return how the rows of each folder below `results` are made again, by the folder's name, for those folders whose
    experiment offers it."""
    found: dict[str, Remake] = {}
    for path in scripts().values():
        if "\nREMAKES = " in path.read_text():
            found |= import_module(".".join(path.relative_to(RESULTS.parents[1]).with_suffix("").parts)).REMAKES
    return {name: remake for name, remake in sorted(found.items()) if rows_file(results / name)}


def again(remake: Remake, row: Row, limit: float) -> tuple[str, str]:
    """Make a row again, in at most `limit` wall seconds, and return what came of it, "came back", "too long", "not
    checked" or "DIFFERENT", and an explanation. An exception counts as a difference, except that a package that is not
    installed leaves the row unchecked."""
    try:
        with limited(limit):
            found = remake.differences(row)
        return ("DIFFERENT" if found else "came back"), "; ".join(found)
    except TooLong:
        return "too long", ""
    except ModuleNotFoundError as error:
        ours = (error.name or "").partition(".")[0] in ("benchmarks", "dpzero_theory")
        return ("DIFFERENT" if ours else "not checked"), str(error)
    except Exception as error:
        return "DIFFERENT", f"{type(error).__name__}: {error}"


def reproduce(tables: Mapping[str, Remake], results: Path, seconds: float, rng: random.Random) -> Iterator[str]:
    """Make random rows of the folders `tables` below `results` again until `seconds` have passed or all are made, and
    yield the verdict on each, which is also printed. The next row is of the folder on which the least time was spent so
    far."""
    ends = time.perf_counter() + seconds
    spent = dict.fromkeys(rng.sample(list(tables), len(tables)), 0.0)
    waiting: dict[str, list[Row]] = {}
    while spent and (left := ends - time.perf_counter()) > 0:
        name = min(spent, key=spent.__getitem__)
        if name not in waiting:
            waiting[name] = [plain(row) for row in read_rows(results / name).to_dict("records")]
            rng.shuffle(waiting[name])
        if not waiting[name]:
            del spent[name]
            continue
        row, started = waiting[name].pop(), time.perf_counter()
        verdict, said = again(tables[name], row, min(left, seconds / SHARE))
        spent[name] += time.perf_counter() - started
        key = " ".join(f"{column}={row[column]}" for column in tables[name].key)
        print(f"{verdict}: {name}, {key}, {time.perf_counter() - started:.1f} s {said}".rstrip(), flush=True)
        yield verdict


def _body(parser: Parser, options: Namespace) -> int:
    torch.set_num_threads(1)
    seed = secrets.randbelow(2**32) if options.seed is None else options.seed
    print(f"--seed {seed}", flush=True)
    with threadpool_limits(1):
        tables = remakes(options.results)
        found = Counter(reproduce(tables, options.results, 60 * options.minutes, random.Random(seed)))
    passed = bool(found["came back"]) and not found["DIFFERENT"]
    print(f"{'Passed' if passed else 'Failed'}: " + ", ".join(f"{count} {verdict}" for verdict, count in found.items()))
    return 0 if passed else 1


EXPERIMENT = Command(
    "reproduce",
    __doc__,
    _body,
    [
        flag("--minutes", type=number(above=0), default=20),
        flag("--seed", type=integer(0, 2**32), help="of the draw of rows (default: a new one, printed)"),
        flag("--results", type=input_folder(), default=RESULTS, help="folder of the folders of rows"),
    ],
)
