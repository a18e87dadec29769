"""Everything that a GPU should show, in the time that one is available.  python -m benchmarks.gpu --minutes 40

    python -m benchmarks.gpu --minutes 40 --dry-run --card h200          what would run, in which order, and why
    python -m benchmarks.gpu --minutes 40 --data DIR --model DIR         (DIR: local files, RoBERTa-large)
    python -m benchmarks.gpu --minutes 40 --preset smoke --device cpu    the whole list, made small

Jobs come in the order of their value. Each runs in a process of its own, which is ended after 9 minutes; the job then
continues in another process. A job that does not fit into the time or the memory is left out, with a line that says so.
A job that takes more than twice its estimate waits until the others have had their turn. The command may be ended at
any moment; the same command then continues, and tries again what failed. Every row is written as soon as it is
measured. Below --out there is a folder for each benchmark, whose manifest has the GPU, its driver, clocks and TF32
state, and a folder `jobs` with a row for each job. At the end a table is printed, and a figure is drawn (`python -m
figures.gpu`) in OUT/figures.
"""

import argparse
import math
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.gpu import execute, planning, sentences
from benchmarks.gpu.cards import PROCESSOR, Card, card_named, known
from benchmarks.gpu.jobs import JOBS, PRESETS, Job
from benchmarks.kit.card import described
from benchmarks.kit.experiment import Command, flag
from benchmarks.kit.rows import OK, RESULTS, Results, read_rows, shown
from dpzero_theory.cli import Parser, Several, input_folder, number, output_folder

NAMES = tuple(job.name for job in JOBS)
FIELDS = ("estimate_s", "memory_gib", "wall_s", "processes")
PATIENCE, SLACK = 2.0, 60.0
"""A job may take PATIENCE times its estimate plus SLACK seconds; then the other jobs have their turn first."""
LATE = "unfinished: it takes longer than it should, the others go first"
INTERRUPTED = "unfinished: interrupted"


def _name(text: str) -> str:
    if text not in NAMES:
        raise argparse.ArgumentTypeError(f"must be one of {', '.join(NAMES)}; got {text[:40]!r}")
    return text


def _body(parser: Parser, options: argparse.Namespace) -> int:
    """Run the jobs, or print the plan if `--dry-run` is given. Returns the exit status: 1 if a job failed, 130 after
    Ctrl-C."""
    label, card = _card(parser, options)
    smoke = options.preset == "smoke"
    jobs = [job.in_smoke() if smoke else job for job in JOBS if job.name in (options.only or NAMES)]
    seconds = 60 * float(options.minutes)
    memory = "" if card is PROCESSOR else f"{card.memory_gib:,.0f} GiB, "
    print(f"{label}, {memory}{options.minutes:g} minutes", flush=True)
    if options.dry_run:
        _print_plan(jobs, card, seconds, vars(options))
        return 0
    folder = (options.out or (Path("out") / "gpu" if smoke else RESULTS / "gpu" / label)).resolve()
    results = Results(
        folder / "jobs", key=("job", "card"), fields=FIELDS, seeds=[], dtype="each job's own",
        device="cpu" if card is PROCESSOR else "cuda", settings={"preset": options.preset, "card": label},
    )  # fmt: skip
    with parser.opened("--out", results):
        if smoke and not options.data:
            options.data = sentences.write(folder / "data")
        interrupted = _run(jobs, Session(label, card, options, folder, results), seconds)
    _draw(folder)
    return _summary(folder, [job.name for job in jobs]) or 130 * interrupted


def _card(parser: Parser, options: argparse.Namespace) -> tuple[str, Card]:
    """Return the name and the properties of the GPU to plan for: the one that `--card` names, or the one of this
    machine, or the processor if there is none."""
    if options.card and not options.dry_run:
        parser.error(f"--card must be given with --dry-run alone; got {options.card!r}")
    if options.card:
        return options.card, known()[options.card]
    if options.device == "auto":
        from benchmarks.kit.peaks import in_new_process

        found = in_new_process(described)
        if found:
            return card_named(found["card"], found["memory_gib"])
        parser.error("--device must be cpu, or --card be given with --dry-run: there is no CUDA device; got 'auto'")
    if options.preset == "full":
        parser.error("--preset must be smoke with --device cpu; got 'full'")
    return "cpu", PROCESSOR


def _print_plan(jobs: Sequence[Job], card: Card, seconds: float, given: dict[str, Any]) -> None:
    for place, entry in enumerate(planning.planned(jobs, card, seconds, given), start=1):
        needs = f"{planning.shown(entry.seconds):>9} {entry.job.memory_gib:6.0f} GiB"
        when = f"from {entry.start / 60:6.1f} min" if not entry.why else "left out       "
        cut = "" if entry.start + entry.seconds <= seconds or entry.why else "as much as there is time for; "
        print(f"{place:2} {entry.job.name:18} {needs}  {when}  {entry.why or cut + entry.job.shows}")


@dataclass(frozen=True)
class Session:
    """What all jobs of one call of the command share: the GPU's name and properties, the parsed options, the folder
    `out` that the jobs' own folders are in, and `results`, which holds a row for each job."""

    label: str
    card: Card
    options: argparse.Namespace
    out: Path
    results: Results

    def row(self, job: Job, spent: float, processes: int, status: str) -> None:
        """Write the row of a job, in place of an earlier row that was not ok: its wall seconds `spent` and its number
        of processes, both with those of earlier calls of the command, and its status, which is "ok" or the reason why
        the job is not done."""
        key, measured = {"job": job.name, "card": self.label}, {"wall_s": round(spent, 1), "processes": processes}
        estimate = {"estimate_s": round(job.work.on(self.card), 1), "memory_gib": round(job.memory_gib, 1)}
        self.results.add([{**key, **estimate, **measured, "status": status}])


def _run(jobs: Sequence[Job], session: Session, seconds: float) -> bool:
    """Run the jobs in order within `seconds`, then again those that took longer than estimated. Returns whether Ctrl-C
    ended them. The session has what all jobs share, such as the options and the folder.

    So a job whose estimate is far too low does not take the other jobs' time, and gets what they leave.
    """
    ends, waiting = time.monotonic() + seconds, list(jobs)
    for patience in (PATIENCE, math.inf):
        late = []
        for job in waiting:
            if session.results.done(job=job.name, card=session.label):
                continue
            place = f"{jobs.index(job) + 1}/{len(jobs)} {job.name}"
            spent, processes, status = _job(job, session, ends, patience, jobs, place)
            session.row(job, spent, processes, status)
            print(f"{place}: {status}, {planning.shown(spent)}", flush=True)
            if status == INTERRUPTED:
                return True
            if status == LATE:
                late.append(job)
        waiting = late
    return False


def _job(
    job: Job, session: Session, ends: float, patience: float, jobs: Sequence[Job], place: str
) -> tuple[float, int, str]:
    """Run one job in as many processes as it needs, until `time.monotonic()` reaches `ends`, or the job has taken
    `patience` times its estimated seconds plus SLACK seconds in this call. The session has what all jobs share, `jobs`
    are all jobs of the call, and `place` is a text that is printed before the job's own lines.

    Returns the job's seconds and processes, each with those of earlier calls of the command, and its status: "ok", or
    the reason why it is not done. A job that does not fit is not started. Ctrl-C does not raise here: it ends the job,
    and the status says so.
    """
    estimate, folder = job.work.on(session.card), session.out / job.out
    before, processes = _earlier(session.out, job.name)
    spent, allowed = 0.0, patience * estimate + SLACK
    status = planning.refusal(job, session.card, ends - time.monotonic(), vars(session.options), jobs)
    while not status:
        left = ends - time.monotonic()
        limit = min(planning.LONGEST, left, allowed - spent)
        print(f"{place}, about {planning.shown(estimate)}: {job.shows}", flush=True)
        held, log = _held(folder), session.out / "logs" / f"{job.name}.txt"
        started = time.monotonic()
        try:
            ended = execute.run_command(_command(job, session), limit, log, _say)
        except KeyboardInterrupt:
            return before + spent + time.monotonic() - started, processes + 1, INTERRUPTED
        spent, processes = spent + ended.seconds, processes + 1
        if ended.status is not None:
            status = OK if ended.status == 0 else f"failed ({ended.status}): {ended.last[:200]}"
        elif ends - time.monotonic() < min(estimate / job.parts, planning.LONGEST):
            status = "unfinished: the time is over"
        elif limit == planning.LONGEST and _held(folder) == held:
            status = f"unfinished: nothing new in {planning.shown(limit)}"
        elif spent >= allowed:
            status = LATE
    return before + spent, processes, status


def _earlier(out: Path, name: str) -> tuple[float, int]:
    """Return the wall seconds and the number of processes that earlier calls of the command spent on the job `name`, by
    the rows in the folder `out`; zeros if there are no such rows."""
    try:
        rows = read_rows(out / "jobs", failed=True)
    except FileNotFoundError:
        return 0.0, 0
    mine = rows[rows["job"] == name]
    return float(mine["wall_s"].sum()), int(mine["processes"].sum())


def _command(job: Job, session: Session) -> list[str]:
    options, device = session.options, "cpu" if session.card is PROCESSOR else "cuda"
    words = job.words(options.preset, device=device, data=options.data, model=options.model)
    module, *flags = words
    run = ["benchmarks", module.removeprefix("benchmarks.")] if module.startswith("benchmarks.") else [module]
    return [sys.executable, "-m", *run, *flags, "--out", str(session.out / job.out)]


def _held(folder: Path) -> int:
    """Return how many bytes all files below a folder have together, 0 if there is no such folder. A job whose folder
    does not grow makes no progress."""
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def _say(line: str) -> None:
    print(f"  | {line}", flush=True)


def _draw(folder: Path) -> None:
    subprocess.run([sys.executable, "-m", "figures.gpu", "--rows", folder, "--out", folder / "figures"], check=False)


def _summary(folder: Path, names: Sequence[str]) -> int:
    """Print a line for each job that has a row below `folder`, the folder of the whole call. Returns 1 if the status of
    one of the jobs in `names` begins with "failed", else 0."""
    rows = read_rows(folder / "jobs", failed=True)
    rows = rows.set_index("job").reindex([name for name in NAMES if name in set(rows["job"])])
    for name, row in rows.iterrows():
        print(f"{name:18} {row['wall_s']:8.1f} s (estimated {row['estimate_s']:.1f})  {row['status']}")
    print(f"results: {shown(folder)}")
    ours = rows.loc[rows.index.isin(list(names)), "status"]
    return int(ours.str.startswith("failed").any())


EXPERIMENT = Command(
    "gpu",
    __doc__,
    _body,
    [
        flag("--minutes", type=number(above=0, at_most=10_000), required=True),
        flag("--only", nargs="+", action=Several, type=_name, help=f"these jobs: {', '.join(NAMES)} (default: all)"),
        flag("--dry-run", action="store_true", help="print the plan and run nothing"),
        flag("--card", choices=tuple(known()), help="plan for this one (with --dry-run)"),
        flag("--device", choices=("auto", "cpu"), default="auto"),
        flag("--preset", choices=PRESETS, default="full"),
        flag("--data", type=input_folder(), help="folder of local files, for the tables"),
        flag("--model", type=input_folder("config.json"), help="folder of RoBERTa-large, for its table"),
        flag("--out", type=output_folder, help="folder (default: out/gpu for smoke, else benchmarks/results/gpu/CARD)"),
    ],
)

if __name__ == "__main__":
    sys.exit(EXPERIMENT.main())
