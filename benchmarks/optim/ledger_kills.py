"""Kill a writer of the ledger a thousand times and tear the last line: nothing may be lost, and nothing spent twice.

    python -m benchmarks.ledger_kills [--kills N] [--out DIR]

A child process spends releases, and writes the number of each release, once it is paid for, to another file. SIGKILL
ends the child after a random time. In half of the rounds the end of the ledger is then damaged as a crash might damage
it: the last line is cut anywhere, or half a line, zeros or garbage follow it. Then the ledger is opened again. It must
count every published release, and no number may be published twice. A last part does the same with a small plan until
it is spent, and beyond: no number published may exceed the plan.
"""

import os
import signal
import time
from argparse import Namespace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from benchmarks.kit.experiment import Cell, Experiment, flag
from benchmarks.kit.rows import read_rows
from dpzero_theory.cli import integer
from dpzero_theory.privacy.ledger import BudgetSpentError, Ledger, Settings

SETTINGS = Settings(n=1000, sample_rate=1.0, noise_multiplier=1e4, clip=1.0, relation="replace-one", sampling="full")
DAMAGES = ("none", "none", "none", "none", "cut", "half-line", "zeros", "garbage")
BATCH, STEPS, SMALL_PLAN = 100, 10**6, 60
SEED = 20260


def spend_until_killed(path: Path, published: Path) -> None:
    """Spend releases of the ledger at `path`, one at a time, and append the number of each paid one as a line to the
    file `published`. It is for a forked child: it ends this process, with status 0 once the budget is spent and 1 after
    any error, and never returns."""
    status = 1
    try:
        sink = os.open(published, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        with Ledger.open(path) as ledger:
            while True:
                os.write(sink, b"%d\n" % ledger.spend(SETTINGS)[0])
    except BudgetSpentError:
        status = 0
    finally:
        os._exit(status)


def damage(path: Path, kind: str, rng: np.random.Generator) -> None:
    content = path.read_bytes()
    last = len(content) - content.rfind(b"\n", 0, -1) - 1
    if kind == "cut" and content.count(b"\n") > 2:
        content = content[: len(content) - int(rng.integers(1, last))]
    elif kind == "half-line":
        content += b'{"kind": "spend", "release": 12, "count": 1, "check": "'[: int(rng.integers(1, 50))]
    elif kind == "zeros":
        content += bytes(int(rng.integers(1, 5000)))
    elif kind == "garbage":
        content += rng.bytes(60).replace(b"\n", b" ") + b"\n"
    path.write_bytes(content)


def one_round(path: Path, published: Path, rng: np.random.Generator) -> dict[str, str | float | int]:
    """Start a child that spends releases, kill it within 20 ms, perhaps damage the ledger's end, as `rng` says, and
    open the ledger again. Returns the columns of a row: what was done, how many published releases the ledger does not
    count (`lost`), and how many numbers were published more than once (`twice`). path: the ledger. published: the file
    of published numbers. Both keep what earlier rounds left."""
    child = os.fork()
    if child == 0:
        spend_until_killed(path, published)
    delay = float(rng.uniform(0.0, 0.02))
    time.sleep(delay)
    os.kill(child, signal.SIGKILL)
    outcome = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    kind = DAMAGES[int(rng.integers(len(DAMAGES)))]
    damage(path, kind, rng)
    with Ledger.open(path) as ledger:
        counted = ledger.report().releases_spent
    numbers = [int(line) for line in published.read_text().splitlines()] if published.exists() else []
    return {
        "delay_ms": round(delay * 1e3, 3),
        "child": outcome,
        "damage": kind,
        "counted": counted,
        "published": len(numbers),
        "lost": sum(number >= counted for number in numbers),
        "twice": len(numbers) - len(set(numbers)),
    }


def _parts(options: Namespace) -> list[tuple[int, int]]:
    """Return for each part of the experiment the number of steps in its plan and its number of kills. Only the last
    part has a plan that is small enough to be spent."""
    full = [(STEPS, min(BATCH, options.kills - start)) for start in range(0, options.kills, BATCH)]
    return [*full, (SMALL_PLAN, BATCH // 4)]


def _measure(options: Namespace, at: Cell) -> list[dict[str, Any]]:
    part = at["part"]
    steps, rounds = _parts(options)[part]
    rng = np.random.default_rng([SEED, part])
    with TemporaryDirectory() as folder:
        path, published = Path(folder, f"ledger-{part}.jsonl"), Path(folder, f"published-{part}")
        Ledger.create(path, target_epsilon=1.0, target_delta=1e-6, settings=SETTINGS, steps=steps).close()
        return [{"steps": steps, "round": k, **one_round(path, published, rng)} for k in range(rounds)]


def _report(options: Namespace) -> int:
    table = read_rows(options.out)
    last = table.groupby("part").last()
    lost, twice = int(table["lost"].sum()), int(table["twice"].sum())
    wasted = int((last["counted"] - last["published"]).sum())
    killed = int((table["child"] == -signal.SIGKILL).sum())
    print(
        f"{killed} kills, {int((table['damage'] != 'none').sum())} damaged tails, "
        f"{int(last['published'].sum())} releases published: lost {lost}, spent twice {twice}, "
        f"counted but not published {wasted}; of the plan of {SMALL_PLAN}: "
        f"published {last['published'].iloc[-1]}, counted {last['counted'].iloc[-1]}"
    )
    unexpected = (table["child"] != -signal.SIGKILL) & (table["steps"] != SMALL_PLAN)
    good = lost == twice == 0 and not unexpected.any() and (last["counted"] <= last["steps"]).all()
    return 0 if good and wasted <= 2 * len(table) else 1


EXPERIMENT = Experiment(
    name="ledger_kills",
    about=__doc__,
    flags=[flag("--kills", type=integer(1, 10**6), default=1000)],
    key=("part", "round"),
    fields=("steps", "delay_ms", "child", "damage", "counted", "published", "lost", "twice"),
    seeds=(SEED,),
    dtype="integer",
    settings=lambda options: {"kills": options.kills},
    cells=lambda options: ({"part": part} for part in range(len(_parts(options)))),
    keys=lambda options, at: [at | {"round": 0}],
    measure=_measure,
    report=_report,
)
