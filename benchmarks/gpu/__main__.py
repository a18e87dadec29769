"""Everything that a GPU should show, in the time that one is available.  python -m benchmarks gpu --minutes 40

    python -m benchmarks gpu --minutes 40 --dry-run                      what would run, and why the rest would not
    python -m benchmarks gpu --minutes 40 --data DIR --model DIR         (DIR: local files, RoBERTa-large)

Jobs come in the order of their value. Each runs in a process of its own, which is ended after 9 minutes; if its folder
has grown by then, the job continues in another process. A job that does not fit into the time or the memory is left
out, with a line that says so. The command may be ended at any moment; the same command then continues, and tries again
what failed. Jobs write every row as soon as it is measured, below OUT/NAME, and OUT/jobs has a row for each job.
"""

import argparse
import json
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.kit.experiment import Command, flag, opened
from benchmarks.kit.rows import OK, RESULTS, Results, read_rows, shown
from dpzero_theory.cli import Parser, Several, input_folder, number, output_folder

LONGEST = 540.0
"""The seconds after which a job's process is ended."""
FIELDS = ("estimate_s", "memory_gib", "wall_s", "processes")
INTERRUPTED = "unfinished: interrupted"
_CARDS = {"H200": "h200", "H100": "h100-80gb", "A100-SXM4-40GB": "a100-40gb", "4090": "rtx-4090"}
"""Names of cards by words of the names that the devices give themselves."""
_ROOT = Path(__file__).resolve().parents[2]


class Job(NamedTuple):
    """One command to run on a GPU.

    shows: what the job is for. command: the words after `python -m`, in which {data} and {model} stand for the values
    of options; --out is added if `out` is the name of a folder below that of the whole call, in which the job's rows
    are. seconds: an estimate for an H100. memory_gib: the least memory of a card with which the job shows what it is
    for. parts: into how many equal parts the work falls, time for one of which is enough to begin.
    """

    name: str
    shows: str
    command: str
    out: str
    seconds: float
    memory_gib: float = 8.0
    parts: int = 1

    def words(self, folder: Path, **options: object) -> list[str]:
        """Return the words after `python -m`. folder: that of the whole call. options: the values of {data} and
        {model}."""
        found = [word.format(**options) for word in shlex.split(self.command)]
        return [*found, "--out", str(folder / self.out)] if self.out else found


_GPU_TESTS = (
    "tests/optim/weights/test_directions.py tests/optim/weights/test_recorded.py tests/optim/test_run.py"
    " tests/synthetic/test_engine.py tests/curvature/test_spectrum.py"
)
_STEP = "benchmarks optimizer_step --preset gpu --budget 60 --device cuda --sizes"
JOBS = (
    Job(
        "step-low-rank",
        "a private step of rank 1, recorded, beside two forwards and MeZO's in place: RoBERTa-large and OPT-1.3B",
        "benchmarks optimizer_step --preset gpu-low-rank --budget 25 --device cuda",
        "optimizer_step_low_rank",
        200,
        30,
        parts=4,
    ),
    Job(
        "tests",
        "bits of the directions against the CPU's, engines against the reference, replays",
        f"pytest -q -m gpu -W default -p no:cacheprovider {_GPU_TESTS}",
        "",
        150,
        2,
    ),
    Job(
        "step-roberta-large",
        "one step beside two forwards, MeZO's algorithm in place, AdamW and DP-AdamW: time and peak memory",
        f"{_STEP} roberta-large",
        "optimizer_step",
        150,
        12,
        parts=2,
    ),
    Job("step-opt-1.3b", "the same for OPT-1.3B, batch 8", f"{_STEP} opt-1.3b", "optimizer_step", 90),
    Job(
        "engine",
        "a step with K = 16 and batches of 64 by vLLM beside torch, the sizes of OPT-1.3B (needs the extra vllm)",
        "benchmarks llm.engine --speed 1.3b --device cuda",
        "llm_engine",
        300,
        40,
    ),
    Job(
        "only-d",
        "steps of DPZero with 16 layers and with all weights trained",
        'benchmarks llm.only_d --data {data} --device cuda --trained "last 16 layers" "all weights"',
        "llm_only_d",
        300,
        parts=16,
    ),
    Job(
        "grid",
        "the paper's synthetic grid: all methods, five seeds",
        "benchmarks synthetic --preset paper --seeds 5 --device cuda",
        "synthetic",
        300,
        4,
        parts=210,
    ),
    Job(
        "fixed-rank",
        "r = 5 whatever d, 10^2 to 10^7, five seeds (in the coordinates that runs can tell apart)",
        "benchmarks rank --experiments dimension --seeds 5 --device cuda",
        "rank",
        150,
        4,
        parts=35,
    ),
    Job(
        "many-directions",
        "SmolLM2-135M on SST-2, all weights trained: DPZero with 64,000 directions and DP-AdamW",
        "benchmarks llm.many_directions --data {data} --device cuda --seeds 1",
        "llm_many_directions",
        2_130,
        parts=12,
    ),
    *(
        Job(
            f"step-opt-{size}", f"one step of OPT-{size.upper()}, batch 8", f"{_STEP} opt-{size}", "optimizer_step", *of
        )
        for size, of in {"6.7b": (120, 15.0), "13b": (150, 27.0), "30b": (230, 61.0), "66b": (390, 130.0)}.items()
    ),
    *(
        Job(
            f"roberta-{method}",
            f"SST-2 at the paper's hyper-parameters: RoBERTa-large, 10,000 steps of {method}",
            f"benchmarks llm --data {{data}} --device cuda --rows 64 --model {{model}} --clip 200 --method {method}",
            f"llm_roberta_{method}",
            4_000,
            12,
            parts=80,
        )
        for method in ("dpzero", "mezo")
    ),
)
"""The jobs, the most valuable first."""


def refusal(job: Job, memory_gib: float, left: float, given: dict[str, Any]) -> str:
    """Return the reason why a job cannot run in the `left` seconds on a card with this memory, or "" if it can begin.
    given: the options by name, of which those that the job's command names must have values."""
    absent = [name for name in re.findall(r"\{(\w+)\}", job.command) if not given.get(name)]
    if absent:
        return f"needs --{absent[0]}"
    if job.memory_gib > memory_gib:
        return f"needs {job.memory_gib:,.0f} GiB, the card has {memory_gib:,.0f}"
    part = job.seconds / job.parts
    if part > left:
        what = "the smallest part of it needs" if job.parts > 1 else "needs"
        return f"{what} {timed(part)}, {timed(max(left, 0))} are left"
    return ""


def timed(seconds: float) -> str:
    """Return a time as text: in seconds if it is below two minutes, else in minutes."""
    return f"{seconds:.0f} s" if seconds < 120 else f"{seconds / 60:.1f} min"


def run_command(words: Sequence[str], limit: float, log: Path) -> tuple[int | None, str]:
    """Run `python -m` with the words for at most `limit` seconds. Returns its exit status, None if it was ended at the
    limit, and the last line that it printed. What it prints is appended to the file `log`, and told as it comes. The
    command and all its children are ended at the limit, and when this function ends, in whatever way."""
    log.parent.mkdir(parents=True, exist_ok=True)
    ends, status, last = time.monotonic() + limit, None, ""
    with log.open("ab") as out, log.open(errors="replace") as lines:
        lines.seek(0, 2)
        with subprocess.Popen(
            [sys.executable, "-m", *words], stdin=subprocess.DEVNULL, stdout=out, stderr=out, start_new_session=True,
            cwd=_ROOT,
        ) as child:  # fmt: skip
            try:
                while status is None and time.monotonic() < ends:
                    time.sleep(0.2)
                    status = child.poll()
                    for line in filter(None, map(str.strip, lines.readlines())):
                        last = line
                        print(f"  | {line}", flush=True)
            finally:
                if status is None:
                    os.killpg(child.pid, signal.SIGKILL)
    return status, last


def run_job(job: Job, folder: Path, memory_gib: float, ends: float, given: dict[str, Any]) -> tuple[float, int, str]:
    """Run one job in as many processes as it needs, until `time.monotonic()` reaches `ends`. folder: that of the whole
    call. The others are those of `refusal`. Returns the job's seconds and processes, and its status: "ok", or the
    reason why it is not done. Ctrl-C does not raise here: it ends the job, and the status says so."""
    begun, processes = time.monotonic(), 0
    status = refusal(job, memory_gib, ends - begun, given)
    while not status:
        held, started = _held(folder / job.out), time.monotonic()
        limit = min(LONGEST, ends - started)
        processes += 1
        try:
            code, last = run_command(job.words(folder, **given), limit, folder / "logs" / f"{job.name}.txt")
        except KeyboardInterrupt:
            status = INTERRUPTED
            break
        if code is not None:
            status = OK if code == 0 else f"failed ({code}): {last[:200]}"
        elif ends - time.monotonic() < job.seconds / job.parts:
            status = "unfinished: the time is over"
        elif _held(folder / job.out) == held:
            status = f"unfinished: nothing new in {timed(limit)}"
    return time.monotonic() - begun, processes, status


def _held(folder: Path) -> int:
    """Return how many bytes all files below a folder have together. A job whose folder does not grow makes no
    progress."""
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def card() -> tuple[str, float]:
    """Return the name and the memory in GiB of this machine's GPU; ("", infinity) if there is none."""
    program = "import json; from benchmarks.kit.card import described; print(json.dumps(described()))"
    done = subprocess.run([sys.executable, "-c", program], cwd=_ROOT, check=True, capture_output=True, text=True)
    found = json.loads(done.stdout)
    if not found:
        return "", float("inf")
    known = [label for words, label in _CARDS.items() if words in found["card"]]
    slug = re.sub(r"[^a-z0-9]+", "-", found["card"].lower().removeprefix("nvidia "))
    return known[0] if known else slug, float(found["memory_gib"])


def _body(parser: Parser, options: argparse.Namespace) -> int:
    """Run the jobs, or print the plan if `--dry-run` is given. Returns the exit status: 1 if a job failed, 130 after
    Ctrl-C."""
    label, memory = card()
    jobs, given = [job for job in JOBS if not options.only or job.name in options.only], vars(options)
    if options.dry_run:
        start, seconds = 0.0, 60.0 * options.minutes
        for job in jobs:
            why = refusal(job, memory, seconds - start, given)
            print(f"{job.name:18} {timed(job.seconds):>9} from {start / 60:6.1f} min  {why or job.shows}")
            start += 0 if why else min(job.seconds, seconds - start)
        return 0
    if not label:
        parser.error("--dry-run must be given where there is no CUDA device; got none")
    folder = (options.out or RESULTS / "gpu" / label).resolve()
    settings = {"preset": "full", "card": label}
    results = Results(
        folder / "jobs", key=("job", "card"), fields=FIELDS, seeds=[], dtype="each job's own", device="cuda",
        settings=settings,
    )  # fmt: skip
    ends, status = time.monotonic() + 60.0 * options.minutes, ""
    with opened(parser, "--out", results):
        for job in jobs:
            if results.done(job=job.name, card=label) or status == INTERRUPTED:
                continue
            print(f"{job.name}, about {timed(job.seconds)}: {job.shows}", flush=True)
            spent, processes, status = run_job(job, folder, memory, ends, given)
            row: dict[str, Any] = {
                "job": job.name,
                "card": label,
                "estimate_s": job.seconds,
                "memory_gib": job.memory_gib,
            }
            results.add([{**row, "wall_s": round(spent, 1), "processes": processes, "status": status}])
            print(f"{job.name}: {status}, {timed(spent)}", flush=True)
    rows = read_rows(folder / "jobs", failed=True)
    print(f"results: {shown(folder)}")
    failed = rows[rows["job"].isin([job.name for job in jobs])]["status"].str.startswith("failed").any()
    return 130 if status == INTERRUPTED else int(failed)


EXPERIMENT = Command(
    "gpu",
    __doc__,
    _body,
    [
        flag("--minutes", type=number(above=0, at_most=10_000), required=True),
        flag("--only", nargs="+", action=Several, choices=[job.name for job in JOBS], help="default: all"),
        flag("--dry-run", action="store_true", help="print the plan and run nothing"),
        flag("--data", type=input_folder(), help="folder of local files, for the language models"),
        flag("--model", type=input_folder("config.json"), help="folder of RoBERTa-large, for its table"),
        flag("--out", type=output_folder, help="folder (default: benchmarks/results/gpu/CARD)"),
    ],
)

if __name__ == "__main__":
    sys.exit(EXPERIMENT.main())
