"""Random faults in the folder of a private run, then its resumption.  python -m benchmarks.run_faults

A run of `STEPS` releases is cut short after a random number of them by one fault, resumed by the same call, and ended.
Each release is told to a file outside the folder before the transcript has it. After each fault the run must be

- refused: by one line, with the files left as they are; or
- resumed: with every release that was told counted in the ledger (`under_counted` are the others), none of them made
  twice (`twice`), and at the end, for DPZero, the weights that the transcript's replay gives (`equal`).

    kill, interrupt           SIGKILL, SIGINT at a random moment of a child; after SIGINT the child tries to go on
    cut-, flip-, delete-      random bytes off the end, a random bit, the whole of the ledger, the transcript, the key
    back-                     the ledger, the transcript, or both put back as they were some releases before
    twice, copy               a second start while the first runs; a copy of the folder resumed
    full                      a disk that is full after a random number of bytes (RLIMIT_FSIZE, in a child)
    read-only                 files that cannot be opened for writing

`back-both` is the fault that cannot be noticed in place (a snapshot of the disk): its rows are shown and not judged.
"""

import contextlib
import os
import resource
import shutil
import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.utils.data import TensorDataset

from benchmarks.kit.rows import RESULTS, Results, read_rows
from dpzero_theory.cli import Parser, integer, output_folder
from dpzero_theory.optim.folder import KEY, LEDGER, TRANSCRIPT
from dpzero_theory.optim.plan import Plan
from dpzero_theory.optim.private import make_private
from dpzero_theory.optim.run import Run
from dpzero_theory.optim.transcript import TranscriptError, read, replay
from dpzero_theory.privacy import ledger
from dpzero_theory.privacy.ledger import LedgerError
from dpzero_theory.privacy.noise import SystemNoise

SEED, RECORDS, STEPS = 20262, 12, 24
REFUSALS = (LedgerError, TranscriptError, ValueError, OSError)
FILES = {"ledger": LEDGER, "transcript": TRANSCRIPT, "key": KEY}
JUDGED = ("under_counted", "twice", "unclear", "changed", "unequal")
FIELDS = ("made", "outcome", "error", "told", "counted", *JUDGED)
UNNOTICED = "back-both"
DATA = TensorDataset(torch.randn(RECORDS, 3, generator=torch.Generator().manual_seed(SEED)))


def plan(algorithm: str) -> Plan:
    return Plan.for_target(
        n=RECORDS, target_epsilon=4.0, target_delta=1e-5, steps=STEPS, expected_batch=RECORDS, clip=1.0, step_size=0.01,
        smoothing=1e-3, relation="replace-one", sampling="full", algorithm=algorithm,
    )  # fmt: skip


PLANS = {name: plan(name) for name in ("dpzero", "dpgd-0th")}


def fresh() -> nn.Module:
    torch.manual_seed(SEED)
    return nn.Linear(3, 1)


def losses(module: nn.Module, batch: Any) -> torch.Tensor:
    found: torch.Tensor = (module(batch[0])[:, 0] - 1) ** 2
    return found


class Trial:
    """One run, one fault. block: releases that are paid for at once."""

    def __init__(self, place: Path, algorithm: str, rng: np.random.Generator) -> None:
        self.place, self.folder, self.rng = place, place / "run", rng
        self.plan, self.block = PLANS[algorithm], int(rng.choice([1, 1, 4]))
        self.made = int(rng.integers(1, STEPS - 2))

    def start(self, *, resume: bool, folder: Path | None = None) -> Run:
        module = fresh()
        where = self.folder if folder is None else folder
        run = make_private(
            module, losses, DATA, self.plan, target_delta=1e-5, folder=where, resume=resume, paid_at_once=self.block
        )
        run._noise = Told(self.place / "told", run)
        state = self.place / "checkpoint.pt"
        if resume and not self.plan.scalars:
            run.load_state_dict(torch.load(state, weights_only=True))
        elif not resume:
            torch.save(run.state_dict(), state)
        return run

    def child(self, work: Callable[[], object], after: float | None, number: int) -> None:
        """`work` in a process that is sent a signal after some seconds (none if None)."""
        child = os.fork()
        if child == 0:
            try:
                signal.signal(signal.SIGINT, signal.default_int_handler)
                work()
            finally:
                os._exit(0)
        if after is not None:
            time.sleep(after)
            os.kill(child, number)
        os.waitpid(child, 0)


class Told(SystemNoise):  # type: ignore[misc]
    """System noise; that a release was made, and for DPZero what was drawn, goes to a file before anything else."""

    def __init__(self, path: Path, run: Run) -> None:
        super().__init__()
        self.path, self.run, self.last = path, run, -1

    def tell(self, value: int) -> None:
        spent = self.run._ledger._spent if self.run._ledger else 0
        release = spent - len(self.run._paid) - 1
        if release == self.last:  # a further block of a vector
            return
        self.last = release
        with self.path.open("ab", buffering=0) as file:
            file.write(b"%d %d\n" % (release, value))

    def discrete_gaussian(self, scale: Any, size: Any = None) -> Any:
        found = super().discrete_gaussian(scale, size)
        self.tell(int(np.ravel(found)[0]))
        return found

    def gaussian(self, std: Any, size: Any = None) -> Any:
        found = super().gaussian(std, size)
        self.tell(hash(float(np.ravel(found)[0])))
        return found


def go_on(run: Run) -> None:
    """After each interrupt, as long as the run allows it."""
    while run.releases_left:
        with contextlib.suppress(KeyboardInterrupt):
            run.run()


def steps(run: Run, count: int) -> None:
    for _ in range(count):
        run.step()


def files(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}


@contextlib.contextmanager
def nothing() -> Iterator[None]:
    yield


@contextlib.contextmanager
def read_only() -> Iterator[None]:
    """os.open refuses to write, whoever asks (root may write where nobody else may)."""
    opened = os.open

    def refusing(path: Any, flags: int, *rest: Any) -> int:
        if flags & (os.O_RDWR | os.O_WRONLY):
            raise PermissionError(13, "Permission denied", str(path))
        return opened(path, flags, *rest)

    os.open = refusing  # type: ignore[assignment]
    try:
        yield
    finally:
        os.open = opened


def limited(trial: Trial) -> None:
    """Until no file may grow further."""
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    run = trial.start(resume=True)
    largest = max(path.stat().st_size for path in trial.folder.iterdir())
    limit = largest + int(trial.rng.integers(0, 1500))
    told = trial.place / "told"
    told.touch()
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
    run.run()


def damage(trial: Trial, fault: str) -> None:
    """What befalls the folder when no process has it open."""
    kind, _, which = fault.partition("-")
    path, rng = trial.folder / FILES.get(which, "none"), trial.rng
    if kind == "cut":
        content = path.read_bytes()
        path.write_bytes(content[: len(content) - int(rng.integers(1, min(len(content), 400)))])
    elif kind == "flip":
        content = path.read_bytes()
        changed = bytearray(content)
        changed[int(rng.integers(len(content)))] ^= 1 << int(rng.integers(8))
        path.write_bytes(changed)
    elif kind == "delete":
        path.unlink()
    elif kind == "kill":
        trial.child(lambda: trial.start(resume=True).run(), float(rng.uniform(0, 0.15)), signal.SIGKILL)
    elif kind == "interrupt":
        trial.child(lambda: go_on(trial.start(resume=True)), float(rng.uniform(0, 0.15)), signal.SIGINT)
    elif kind == "full":
        trial.child(lambda: limited(trial), None, 0)


FAULTS = (
    "kill", "interrupt", "full", "twice", "copy", "read-only",
    *(f"{kind}-{name}" for kind in ("cut", "flip", "delete") for name in FILES),
    "back-ledger", "back-transcript", UNNOTICED,
)  # fmt: skip


def attempt(trial: Trial, fault: str) -> dict[str, Any]:
    """The row of one fault."""
    run = trial.start(resume=False)
    early = int(trial.rng.integers(0, trial.made))
    steps(run, early)
    before = files(trial.folder)
    steps(run, trial.made - early)
    if not trial.plan.scalars:
        torch.save(run.state_dict(), trial.place / "checkpoint.pt")
    where, around = trial.folder, nothing
    if fault.startswith("back"):
        for name in (LEDGER, TRANSCRIPT):
            if fault.endswith("both") or FILES[fault.partition("-")[2]] == name:
                (trial.folder / name).write_bytes(before[name])
    if fault == "copy":
        where = trial.place / "copy"
        shutil.copytree(trial.folder, where)
    if fault != "twice":
        run.close()
    if fault == "read-only":
        around = read_only
    damage(trial, fault)
    row: dict[str, Any] = {"made": trial.made, **dict.fromkeys(JUDGED, 0)}
    left = files(where)
    try:
        with around():
            again = trial.start(resume=True, folder=where)
            again.run()
    except REFUSALS as error:
        row |= {"outcome": "refused", "error": type(error).__name__}
        row["unclear"] = int("\n" in str(error) or not str(error))
        row["changed"] = int(files(where) != left)
    else:
        row |= {"outcome": "resumed", "error": ""}
        row |= judged(trial, again)
        again.close()
    run.close()
    return row


def judged(trial: Trial, run: Run) -> dict[str, int]:
    account = ledger.read(trial.folder / LEDGER)
    told = [tuple(map(int, line.split())) for line in (trial.place / "told").read_text().splitlines()]
    written = {record.release for record in read(trial.folder / TRANSCRIPT)[1]}
    unequal = 0
    if trial.plan.scalars:
        module: Any = fresh()
        replay(trial.folder / TRANSCRIPT, module)
        unequal = int(not torch.equal(module.weight, run.weights.module.weight))  # type: ignore[arg-type]
    return {
        "told": len(told),
        "counted": account.spent,
        "under_counted": max(
            sum(n >= account.spent for n in {*written, *(r for r, _ in told)}), len(told) - account.spent, 0
        ),
        "twice": len(told) - len({release for release, _ in told}),
        "unequal": unequal,
    }


def _parser() -> Parser:
    parser = Parser("benchmarks.run_faults", __doc__)
    parser.add_argument("--faults", type=integer(), default=5000)
    parser.add_argument("--seconds", type=integer(), help="stop after so much processor time")
    parser.add_argument("--out", type=output_folder, default=RESULTS / "run_faults")
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit status 1 if a fault that can be noticed was not, or anything was lost."""
    options = _parser().parse_args(arguments)
    torch.set_num_threads(1)
    results = Results(
        options.out,
        key=("fault", "algorithm", "trial"),
        fields=FIELDS,
        seeds=(SEED,),
        device="cpu",
        dtype="float32",
        settings={"records": RECORDS, "steps": STEPS},
    )
    cases = [(FAULTS[i % len(FAULTS)], i // len(FAULTS)) for i in range(options.faults)]
    with results:
        rows: list[dict[str, Any]] = []
        for number, (fault, trial) in enumerate(cases):
            algorithm = "dpgd-0th" if trial % 4 == 3 else "dpzero"
            key: dict[str, Any] = {"fault": fault, "algorithm": algorithm, "trial": trial}
            if results.done(**key):
                continue
            with TemporaryDirectory() as name:
                rng = np.random.default_rng([SEED, FAULTS.index(fault), trial])
                rows.append({**key, **attempt(Trial(Path(name), algorithm, rng), fault)})
            late = options.seconds is not None and sum(os.times()[:4]) > options.seconds
            if late or len(rows) == 200 or number == len(cases) - 1:
                results.add(rows)
                print(f"{number + 1} of {len(cases)}", flush=True)
                rows = []
            if late:
                break
        results.add(rows)
    table = read_rows(options.out)
    fair = table[table["fault"] != UNNOTICED]
    print(
        table.groupby(["fault", "outcome"])[["trial", *JUDGED]].agg({"trial": "size", **dict.fromkeys(JUDGED, "sum")})
    )
    bad = int(fair[list(JUDGED)].fillna(0).to_numpy().sum())
    print(f"{len(fair)} faults that can be noticed; what went wrong: {bad}")
    return int(bad > 0)


if __name__ == "__main__":
    sys.exit(main())
