"""Kill a private run at random moments and resume it, until its budget is spent.  python -m benchmarks.optimizer_kills

A child process trains a small model and writes each released number, once the weights have moved, to another file
(`told`). SIGKILL ends it after a random time. Every fourth time a torn record is also left at the end of the
transcript, and in every second part the child also writes a checkpoint every few steps and resumes from it. After each
kill

- the ledger must count every release that the transcript or `told` has (under-counted are those that it does not
  count);
- no release may be in the transcript twice, and the numbers in `told` must be those of the transcript.

When a part's budget is spent, an uninterrupted child finds nothing left to do. Its weights must be, bit for bit, those
that the replay of the transcript gives.
"""

import contextlib
import hashlib
import os
import signal
import time
import traceback
from argparse import Namespace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.utils.data import TensorDataset

from benchmarks.kit.device import one_thread
from benchmarks.kit.experiment import Cell, Experiment, flag
from benchmarks.kit.rows import read_rows
from dpzero_theory.cli import integer
from dpzero_theory.optim.files.folder import LEDGER, TRANSCRIPT
from dpzero_theory.optim.files.replay import replay
from dpzero_theory.optim.files.transcript import Record, Transcript
from dpzero_theory.optim.private import make_private_with_epsilon
from dpzero_theory.optim.run import Run
from dpzero_theory.privacy.ledger import Ledger

SEED = 20261
RECORDS, STEPS, PART = 64, 1000, 100
CHECKPOINT_EVERY = 7
LONGEST = 0.25
"""The largest number of seconds between the start of the child's work and the kill."""


def fresh() -> nn.Module:
    torch.manual_seed(SEED)
    return nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.Linear(8, 2))


def losses(module: nn.Module, batch: Any) -> torch.Tensor:
    return nn.functional.cross_entropy(module(batch[0]), batch[1], reduction="none")


def records() -> TensorDataset:
    rng = np.random.default_rng(SEED)
    features = torch.tensor(rng.normal(size=(RECORDS, 5)), dtype=torch.float32)
    return TensorDataset(features, (features.sum(dim=1) > 0).long())


def start(folder: Path, module: nn.Module, *, resume: bool) -> Run:
    return make_private_with_epsilon(
        module,
        losses,
        records(),
        target_epsilon=4.0,
        target_delta=1e-5,
        steps=STEPS,
        expected_batch=RECORDS / 4,
        clip=1.0,
        step_size=1e-3,
        smoothing=1e-3,
        relation="add-remove",
        sampling="poisson",
        folder=folder,
        resume=resume,
    )


def fingerprint(module: nn.Module) -> str:
    return hashlib.sha256(b"".join(p.detach().numpy().tobytes() for p in module.parameters())).hexdigest()


def train(folder: Path, checkpoints: bool, ready: int) -> None:
    """Resume the run in `folder` and train it until this child process is killed or the budget is spent, and write each
    released number to the file `told` in it. It is for a forked child: it ends this process, with status 0 at the end
    of the budget and 1 after any error, and never returns.

    checkpoints: whether a checkpoint is saved every CHECKPOINT_EVERY steps. ready: the descriptor of a pipe, to which a
    byte is written once the files are open.
    """
    status = 1
    try:
        run, saved = start(folder, fresh(), resume=True), folder / "checkpoint.pt"
        if saved.exists():
            run.load_state_dict(torch.load(saved, weights_only=True))
        told = os.open(folder / "told", os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        os.write(ready, b"1")

        def tell(record: Record) -> None:
            os.write(told, b"%d %d\n" % (record.release, int(record.sums[0])))
            if checkpoints and record.release % CHECKPOINT_EVERY == 0:
                torch.save(run.state_dict(), folder / "checkpoint.new")
                os.replace(folder / "checkpoint.new", saved)

        run.run(tell)
        (folder / "final").write_text(fingerprint(run.weights.module))
        status = 0
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(status)


def fork(folder: Path, checkpoints: bool, delay: float | None) -> int:
    """Train the run in `folder` in a child process and wait for its end. It is killed after `delay` seconds, or never
    if `delay` is None. A delay above a tenth of LONGEST counts from the moment at which the child has opened its files,
    and a smaller one from its start. Returns the child's exit code, -9 after a kill. `checkpoints` says whether the
    child saves checkpoints."""
    wait, ready = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(wait)
        train(folder, checkpoints, ready)
    os.close(ready)
    if delay is not None:
        if delay > LONGEST / 10:
            # a child with a smaller delay is killed while it opens the files and replays the transcript
            os.read(wait, 1)
        time.sleep(delay)
        with contextlib.suppress(ProcessLookupError):
            os.kill(child, signal.SIGKILL)
    status = os.waitpid(child, 0)[1]
    os.close(wait)
    return os.waitstatus_to_exitcode(status)


def inspect(folder: Path) -> dict[str, int]:
    with Ledger.open(folder / LEDGER) as ledger:
        spent = sum(group.steps for group in ledger.history)
    with Transcript.open(folder / TRANSCRIPT) as transcript:
        written = transcript.records()
    lines = (folder / "told").read_text().splitlines() if (folder / "told").exists() else []
    told = [tuple(map(int, line.split())) for line in lines]
    known = {(record.release, int(record.sums[0])) for record in written}
    releases = [record.release for record in written]
    return {
        "counted": spent,
        "written": len(written),
        "told": len(told),
        "under_counted": sum(release >= spent for release in {*releases, *(line[0] for line in told)}),
        "twice": len(releases) - len(set(releases)),
        "contradicted": sum(line not in known for line in told),
    }


def run_part(folder: Path, part: int, kills: int) -> list[dict[str, Any]]:
    """Start a run in `folder`, kill it and resume it `kills` times, then let it go on to its end, and return a row for
    each kill and one for the end. The last row says in `equal` whether a replay of the transcript gives the final
    weights, bit for bit. `part` is the run's number: it seeds the moments of the kills, and if it is odd the child
    saves checkpoints."""
    rng, checkpoints = np.random.default_rng([SEED, part]), part % 2 == 1
    start(folder, fresh(), resume=False).close()
    rows: list[dict[str, Any]] = []
    for number in range(kills):
        delay, torn = float(rng.uniform(0, LONGEST)), 0
        child = fork(folder, checkpoints, delay)
        if number % 4 == 3:
            torn = int(rng.integers(1, 20))
            with (folder / TRANSCRIPT).open("ab") as file:
                file.write(rng.bytes(torn))
        found = inspect(folder)
        rows.append(
            {"part": part, "round": number, "delay_ms": round(delay * 1e3, 2), "child": child, "torn": torn, **found}
        )
    child = fork(folder, checkpoints, None)
    again = fresh()
    replay(folder / TRANSCRIPT, again)
    equal = (folder / "final").read_text() == fingerprint(again)
    return [*rows, {"part": part, "round": kills, "child": child, "torn": 0, **inspect(folder), "equal": int(equal)}]


def _parts(options: Namespace) -> list[int]:
    """Return how often the run of each part of the experiment is killed: `--kills` times in all, PART times in each
    part but perhaps the last. A part is one run."""
    return [min(PART, options.kills - first) for first in range(0, options.kills, PART)]


def _measure(options: Namespace, at: Cell) -> list[dict[str, Any]]:
    with TemporaryDirectory() as name:
        return list(run_part(Path(name) / "run", at["part"], _parts(options)[at["part"]]))


def _report(options: Namespace) -> int:
    """Print the counts over all rows. Returns 1 if a release was lost, counted too little or repeated, or if weights
    differ from those of the replay, else 0."""
    table = read_rows(options.out)
    killed = table[table["child"] == -signal.SIGKILL]
    bad = int(table[["under_counted", "twice", "contradicted"]].to_numpy().sum())
    ends = table[table["equal"].notna()]
    print(
        f"{len(killed)} kills; under-counted, repeated or contradicted releases: {bad}; "
        f"final weights equal to the replay: {int((ends['equal'] == 1).sum())} of {len(ends)}; "
        f"paid for and never released: {int((ends['counted'] - ends['written']).sum())} of {int(ends['counted'].sum())}"
    )
    return int(bad > 0 or not (ends["equal"] == 1).all() or len(ends) != len(_parts(options)))


EXPERIMENT = Experiment(
    name="optimizer_kills",
    about=__doc__,
    flags=[flag("--kills", type=integer(1, 10**6), default=500)],
    key=("part", "round"),
    fields=(
        *("delay_ms", "child", "torn", "counted", "written", "told", "under_counted", "twice", "contradicted"),
        "equal",
    ),
    seeds=(SEED,),
    dtype="float32",
    settings=lambda options: {"kills": options.kills, "steps": STEPS, "part": PART},
    check=one_thread,
    cells=lambda options: ({"part": part} for part in range(len(_parts(options)))),
    keys=lambda options, at: [at | {"round": 0}],
    measure=_measure,
    told=lambda at, rows: f"part {at['part']}: {len(rows)} kills",
    report=_report,
)
