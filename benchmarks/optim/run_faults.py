"""Random faults in the folder of a private run, then its resumption.  python -m benchmarks.run_faults

A run of `STEPS` releases, by Algorithm 2, by Algorithm 1 or in the Trainer, is cut short by one fault after a random
number of releases, resumed by the same call, and continued to its end. The number of each release is written to a file
outside the folder before the transcript has it. After each fault the run must be

- refused: by one line that says what to do (`unclear` if not), with the files left as they are (`changed` if not). When
the advice is followed and the files are as they were, the run must continue (`wedged` if not); or
- resumed: the ledger counts every release that was written outside (`under_counted` are the others), none of them is
made twice (`twice`), and at the end, where a transcript is kept, its replay gives the weights (`unequal` if not).

The faults:

    kill, signal              SIGKILL, or another signal, at a random moment of a child; after SIGINT it tries to go on
    instruction, opening      KeyboardInterrupt at a random instruction of a step, or of resuming; the run tries to go
                              on, and the module must be as it was (`untidy`)
    cut-, flip-, delete-, swap-   a file loses bytes at its end, has a bit changed, is deleted, or is another run's
    back-                     the ledger, the transcript, or both put back as they were some releases before
    twice, copy, move         a second start while the first runs; a copy of the folder; the folder elsewhere
    full                      a disk that is full after a random number of bytes (RLIMIT_FSIZE, in a child)
    read-only, clock          files that cannot be opened for writing; a clock that was set back

The fault `back-both` puts a snapshot of the disk back, which nobody can notice inside the folder: its rows are shown
and not judged. After kill, signal, instruction, opening, full, clock and move a run must be resumed and not refused.
With --walk the experiment instead interrupts a step, or the opening of the files, at every instruction. fsync is
replaced by nothing, as the machine does not lose power.
"""

import contextlib
import os
import resource
import shutil
import signal
from argparse import Namespace
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from unittest import mock

import numpy as np
import torch

from benchmarks.kit.experiment import Command, flag
from benchmarks.kit.interrupts import instructions, interrupt
from benchmarks.kit.rows import RESULTS, Results, read_rows
from benchmarks.kit.trials import DATA, METHODS, RECORDS, SEED, STEPS, Trial, fresh
from dpzero_theory.cli import Parser, integer, output_folder
from dpzero_theory.optim.files.folder import KEY, LEDGER, TRANSCRIPT, Budget, Folder
from dpzero_theory.optim.files.replay import replay
from dpzero_theory.optim.files.transcript import TranscriptError, read
from dpzero_theory.privacy import ledger
from dpzero_theory.privacy.accountant import epsilon_of_history
from dpzero_theory.privacy.calibration import calibrate_noise_multiplier
from dpzero_theory.privacy.ledger import LedgerError

REFUSALS = (LedgerError, TranscriptError, ValueError, OSError)
FILES = {"ledger": LEDGER, "transcript": TRANSCRIPT, "key": KEY}
JUDGED = ("under_counted", "twice", "unclear", "changed", "unequal", "untidy", "wedged")
FIELDS = ("made", "outcome", "error", "told", "counted", *JUDGED)
UNNOTICED = "back-both"
GOES_ON = ("kill", "signal", "instruction", "opening", "full", "clock", "move")
ADVICE = ("put", "resume", "start", "close", "open it as moved", "must be")


def go_on(trial: Trial) -> None:
    """Run the trial's run to its end, and resume it after each KeyboardInterrupt."""
    done = False
    while not done:
        with contextlib.suppress(KeyboardInterrupt):
            trial.end()
            done = True


def files(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())} if folder.exists() else {}


@contextlib.contextmanager
def read_only() -> Iterator[None]:
    """Return a context in which `os.open` raises PermissionError whenever a file is to be opened for writing, whoever
    the user is. (File permissions would not stop root.) Other ways to open a file are not refused."""
    opened = os.open

    def refusing(path: Any, flags: int, *rest: Any, **named: Any) -> int:
        if flags & (os.O_RDWR | os.O_WRONLY):
            raise PermissionError(13, "Permission denied", str(path))
        return opened(path, flags, *rest, **named)

    os.open = refusing
    try:
        yield
    finally:
        os.open = opened


def limited(trial: Trial) -> None:
    """Resume the trial's run and go on with it under a limit on the size of files, which is up to 1,500 bytes above the
    size of the run's largest file, so that a write fails as on a full disk. It is for a child process, whose limit
    stays. If the limit is not reached, the run goes on to its end."""
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    largest = max(path.stat().st_size for path in trial.folder().iterdir())
    trial.told.touch()
    run = trial.start(resume=True)
    limit = largest + int(trial.rng.integers(0, 1500))
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
    run.run()


def instruction(trial: Trial) -> int:
    """Raise KeyboardInterrupt in a step, before a random bytecode instruction, look at the module, and then let the
    same run make its other steps, which it may refuse to.

    Returns 1 if the module was left untidy (`Trial.untidy`) right after the interruption, else 0."""
    run = trial.start(resume=True)
    found, untidy = instructions(run.step) if run.releases_left else [], 0
    if found and run.releases_left:
        chosen = found[int(trial.rng.integers(len(found)))]
        interrupt(run.step, chosen, int(trial.rng.integers(1, 3)))
        untidy = trial.untidy()
    with contextlib.suppress(*REFUSALS):
        run.run()
    if trial.method == "dpgd-0th":
        with contextlib.suppress(*REFUSALS):
            trial.keep(run)
    run.close()
    return untidy


def opening(trial: Trial) -> int:
    """Resume the run and make a step (in the Trainer: a training of one step), with a KeyboardInterrupt before a random
    one of the bytecode instructions that such a call runs. Returns 1 if the module was left untidy (`Trial.untidy`),
    else 0."""
    work: Callable[[], object] = lambda: trial.train(1, resume=True)  # noqa: E731
    found = instructions(work)
    interrupt(work, found[int(trial.rng.integers(len(found)))])
    return trial.untidy()


def damage(trial: Trial, fault: str, before: dict[str, bytes]) -> int:
    """Do to the trial's folder what the fault with this name does, while no process has the folder open. `before` has
    the run's files, by name, as they were some releases earlier, for the faults that put them back. Returns 1 if the
    fault interrupts a step or the resumption and leaves the module untidy (`Trial.untidy`), else 0. For faults that are
    made elsewhere, such as "twice", nothing is done."""
    kind, _, which = fault.partition("-")
    path, rng = trial.folder() / FILES.get(which, "none"), trial.rng
    if kind == "cut":
        content = path.read_bytes()
        path.write_bytes(content[: len(content) - int(rng.integers(1, min(len(content), 400)))])
    elif kind == "flip":
        changed = bytearray(path.read_bytes())
        changed[int(rng.integers(len(changed)))] ^= 1 << int(rng.integers(8))
        path.write_bytes(changed)
    elif kind == "delete":
        path.unlink()
    elif kind == "swap":
        other = Trial(trial.place / "other", trial.method, np.random.default_rng(trial.made))
        other.place.mkdir()
        other.block, other.target = trial.block, trial.target
        other.train(trial.made, resume=False)
        path.write_bytes((other.folder() / path.name).read_bytes())
    elif kind == "back":
        for name in (LEDGER, TRANSCRIPT):
            if which == "both" or FILES[which] == name:
                (trial.folder() / name).write_bytes(before[name])
    elif kind == "kill":
        trial.child(trial.end, float(rng.uniform(0, 0.15)), signal.SIGKILL)
    elif kind == "signal":
        number = int(rng.choice([signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGALRM]))
        trial.child(lambda: go_on(trial), float(rng.uniform(0, 0.15)), number)
    elif kind == "full":
        trial.child(lambda: limited(trial), None, 0)
    elif kind == "clock":
        for file in trial.folder().iterdir():
            os.utime(file, (0, 0))
    elif kind == "move":
        trial.root = trial.root.rename(trial.place / "elsewhere")
    elif kind == "instruction":
        return instruction(trial)
    elif kind == "opening":
        return opening(trial)
    return 0


FAULTS = (
    "kill", "signal", "instruction", "opening", "full", "twice", "copy", "move", "read-only", "clock",
    *(f"{kind}-{name}" for kind in ("cut", "flip", "delete", "swap") for name in FILES),
    "back-ledger", "back-transcript", UNNOTICED,
)  # fmt: skip


def attempt(trial: Trial, fault: str) -> dict[str, Any]:
    """Make one run with one fault, resume it, and return the columns of its row: the `outcome`, "resumed" or "refused",
    and a count of each thing that may go wrong, as the module's docstring names them. If it is refused, the intact
    files are put back, unless it is a fault after which no run may be refused, and the run is resumed once more.
    `trial` has the run's method and its random numbers."""
    early = int(trial.rng.integers(0, trial.made))
    trial.train(early, resume=False)
    before = files(trial.folder())
    trial.train(trial.made - early, resume=True)
    whole = files(trial.folder())
    row: dict[str, Any] = {"made": trial.made, "error": "", **dict.fromkeys(JUDGED, 0)}
    row["untidy"] = damage(trial, fault, before)
    root, first = trial.root, contextlib.nullcontext()
    if fault == "copy":
        root = trial.place / "copy"
        shutil.copytree(trial.root, root)
    around: contextlib.AbstractContextManager[Any] = read_only() if fault == "read-only" else first
    if fault == "twice":
        around = contextlib.closing(trial.start(resume=True))
    left = files(trial.folder(root))
    try:
        with around:
            trial.end(root=root)
    except REFUSALS as error:
        said = str(error)
        row |= {"outcome": "refused", "error": type(error).__name__}
        row["unclear"] = int("\n" in said or not any(word in said for word in ADVICE))
        row["changed"] = int(files(trial.folder(root)) != left)
        row["wedged"] = int(fault in GOES_ON)
        for name, content in whole.items() if fault not in GOES_ON else ():
            (trial.folder() / name).write_bytes(content)
            (trial.folder() / name).chmod(0o600)
        try:
            trial.end("moved")
        except REFUSALS as refused:
            return row | {"wedged": 1, "error": str(refused)}
    else:
        row["outcome"] = "resumed"
    return row | judged(trial)


def judged(trial: Trial) -> dict[str, int]:
    account = ledger.read(trial.folder() / LEDGER)
    told = [int(line) for line in trial.told.read_text().split()]
    written = {record.release for record in read(trial.folder() / TRANSCRIPT)[1]}
    unequal = 0
    if trial.method != "dpgd-0th":
        module: Any = fresh()
        replay(trial.folder() / TRANSCRIPT, module)
        own: Any = trial.module
        unequal = int(not torch.equal(module[1].weight, own[1].weight))
    return {
        "told": len(told),
        "counted": account.spent,
        "under_counted": max(sum(n >= account.spent for n in {*written, *told}), len(told) - account.spent, 0),
        "twice": len(told) - len(set(told)),
        "unequal": unequal,
    }


def walk(method: str, place: Path) -> int:
    """Interrupt a step before each of its bytecode instructions, each time in a new resumption of the same run, which
    is made by `method` (an entry of `trials.METHODS`) in the folder `place`, and let the run go on to its end.

    Returns how many things went wrong in all: the module was left untidy (`Trial.untidy`), a release was counted too
    little or told twice, or the weights differ from those of the replay. They are printed, too.
    """
    probe = Trial(place / "probe", method, np.random.default_rng(SEED))
    probe.place.mkdir()
    probe.train(2, resume=False)
    run = probe.start(resume=True)
    found = instructions(run.step)
    run.close()
    places = [*(probe.folder() / name for name in files(probe.folder())), probe.told, probe.checkpoint]
    wrong, whole = 0, {path: path.read_bytes() for path in places if path.exists()}
    for number, chosen in enumerate(found):
        for path, content in whole.items():
            path.write_bytes(content)
        run = probe.start(resume=True)
        interrupt(run.step, chosen)
        bad = probe.untidy()
        with contextlib.suppress(*REFUSALS):
            run.step()
        bad += probe.untidy()
        run.close()
        probe.end()
        bad += sum(judged(probe)[name] for name in ("under_counted", "twice", "unequal"))
        if bad:
            print(f"{method}: {chosen}: {judged(probe)}", flush=True)
        wrong += bad
        if number % 500 == 499:
            print(f"{method}: {number + 1} of {len(found)}", flush=True)
    print(f"{method}: interrupted at each of {len(found)} instructions of a step; what went wrong: {wrong}")
    return wrong


def walk_opening(place: Path) -> int:
    """Interrupt the opening and closing of a run's files before each bytecode instruction of it, and open the files
    again after each. The run is made in the folder `place`. Returns how often the files could then not be opened or had
    changed."""
    probe = Trial(place / "probe", METHODS[0], np.random.default_rng(SEED))
    probe.place.mkdir()
    probe.train(2, resume=False)
    run = probe.start(resume=True)
    run.close()
    budget = Budget(probe.target["target_epsilon"], probe.target["target_delta"], probe.block)
    work: Callable[[], None] = lambda: Folder.open(probe.folder(), run._header, DATA, budget).close()  # noqa: E731
    found, wrong, whole = instructions(work), 0, files(probe.folder())
    for chosen in found:
        interrupt(work, chosen)
        try:
            work()
        except REFUSALS as error:
            print(f"opening: {chosen}: {error}", flush=True)
            wrong += 1
        wrong += int(files(probe.folder()) != whole)
    print(f"opening: interrupted at each of {len(found)} instructions; what went wrong: {wrong}")
    return wrong


@contextlib.contextmanager
def _quick() -> Iterator[None]:
    """Return a context in which `os.fsync` does nothing, and in which a calibration or an epsilon that was computed
    before is looked up."""
    priced = cache(lambda history, delta: epsilon_of_history(list(history), delta))
    with (
        mock.patch("os.fsync", return_value=None),
        mock.patch("dpzero_theory.optim.plan.calibrate_noise_multiplier", cache(calibrate_noise_multiplier)),
        mock.patch(
            "dpzero_theory.privacy.ledger.epsilon_of_history", lambda history, delta: priced(tuple(history), delta)
        ),
    ):
        yield


def _body(parser: Parser, options: Namespace) -> int:
    """Run the random faults, or the walk through all instructions. Returns 1 if a fault that can be noticed was not, or
    if anything was lost, else 0."""
    torch.set_num_threads(1)
    with _quick():
        if options.walk:
            with TemporaryDirectory() as name:
                place = Path(name)
                return int((walk_opening(place) if options.walk == "opening" else walk(options.walk, place)) > 0)
        return _random(parser, options.faults, options.seconds, options.out)


def _random(parser: Parser, faults: int, seconds: int | None, out: Path) -> int:
    results = Results(
        out,
        key=("fault", "algorithm", "trial"),
        fields=FIELDS,
        seeds=(SEED,),
        device="cpu",
        dtype="float32",
        settings={"records": RECORDS, "steps": STEPS},
    )
    cases = [(FAULTS[i % len(FAULTS)], i // len(FAULTS)) for i in range(faults)]
    with parser.opened("--out", results):
        rows: list[dict[str, Any]] = []
        for number, (fault, trial) in enumerate(cases):
            method = METHODS[(FAULTS.index(fault) + trial) % len(METHODS)]
            key: dict[str, Any] = {"fault": fault, "algorithm": method, "trial": trial}
            if results.done(**key):
                continue
            with TemporaryDirectory() as name:
                rng = np.random.default_rng([SEED, FAULTS.index(fault), trial])
                rows.append({**key, **attempt(Trial(Path(name), method, rng), fault)})
            late = seconds is not None and sum(os.times()[:4]) > seconds
            if late or len(rows) == 200 or number == len(cases) - 1:
                results.add(rows)
                print(f"{number + 1} of {len(cases)}", flush=True)
                rows = []
            if late:
                break
        results.add(rows)
    table = read_rows(out)
    fair = table[table["fault"] != UNNOTICED]
    counted = {"trial": "size", **dict.fromkeys(JUDGED, "sum")}
    print(table.groupby(["fault", "outcome"])[["trial", *JUDGED]].agg(counted))
    bad = int(fair[list(JUDGED)].fillna(0).to_numpy().sum())
    print(f"{len(fair)} faults that can be noticed; what went wrong: {bad}")
    return int(bad > 0)


EXPERIMENT = Command(
    "run_faults",
    __doc__,
    _body,
    [
        flag("--faults", type=integer(), default=5000),
        flag("--seconds", type=integer(), help="stop after so much processor time"),
        flag("--walk", choices=(*METHODS[:2], "opening"), help="interrupt a step, or opening, at every instruction"),
        flag("--out", type=output_folder, default=RESULTS / "run_faults"),
    ],
)
