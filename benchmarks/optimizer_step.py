"""Time and peak memory of one step, beside two plain forward passes.  python -m benchmarks optimizer_step

    two-forwards         the losses at x, twice, without gradients: what any two-point method must pay
    rademacher, ...      a step of this library without clip and noise, per direction law (`Plan.without_privacy`)
    private-rademacher   a private step: ledger and transcript on disk, discrete noise (`make_private_with_epsilon`)
    four-pass            the published way: u drawn again from a seed four times, the weights perturbed in place
    adamw                forward, backward, AdamW
    dp-adamw             the same with Opacus: per-sample gradients, clipped and noised
    forwards-N           the losses at x, N times, without gradients
    together-N           the same for N copies of the batch in one pass, the least that N stacked points can take
    low-rank-K, ...      a private step of K directions, by central differences, per direction law; beside forwards-2K
    separate-K           a private step of rank 1 by forward differences, whose K + 1 points are evaluated one by one
    stacked-K            the same with all points in one pass; both beside forwards-(K + 1)

Here x are the weights and u is a step's direction. Models have random weights and a classifier of two classes; the loss
of a record is its cross entropy. The methods take turns in one process, and a ratio of two methods' times is taken
within a turn. The median ratio is reported, with the smallest and the largest. The private step, AdamW and DP-AdamW are
each timed apart from the other methods, in turns with the two forwards. The private step is also timed in turns with
the same step without clip and noise (column to_non_private: the median ratio, and its standard error from the
quartiles). On the CPU, seconds are processor time, as the machine may be shared, and wall time stands in another
column; on a GPU, seconds are synchronised wall time.

On the CPU, peak memory is measured in a new process for each method, less what the process held before the model was
built. Freed memory is given back at once there; otherwise the peak varies by a quarter from run to run. Of it
code_mb is code of libraries that the method loads, which all processes share. On a GPU it is the allocator's peak.

    python -m benchmarks optimizer_step --preset cpu
    python -m benchmarks optimizer_step --preset low-rank --turns 3    (K = 1, 4 and 16 on small models, on the CPU)
    python -m benchmarks optimizer_step --preset lengths --turns 5     (9 batches of 1 to 64 records, 16 to 256 tokens)
    python -m benchmarks optimizer_step --device cuda --preset gpu-low-rank    (RoBERTa-large and OPT-1.3B, bfloat16)
    python -m benchmarks optimizer_step --device cuda --preset gpu     (one GPU of 141 GB for the largest)
"""

import gc
import math
import statistics
import time
from argparse import Namespace
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, TypeVar

import torch

from benchmarks.kit.device import chosen_device
from benchmarks.kit.experiment import Cell, Experiment, flag
from benchmarks.kit.peaks import code, in_new_process, peak, reset_peak
from benchmarks.kit.rows import RESULTS
from benchmarks.kit.tables import rounded
from benchmarks.kit.timing import median_ratio
from benchmarks.llm.models import DTYPES
from benchmarks.optimizer_methods import (
    BASE,
    METHODS,
    PRIVATE,
    PUBLIC,
    SMOOTHING,
    STEP_SIZE,
    Bench,
    Step,
    StepCase,
    base_of,
    classification_model,
)
from dpzero_theory.cli import Parser, Several, integer
from dpzero_theory.sphere import DIRECTIONS

Answer = TypeVar("Answer")

KEY = ("size", "batch", "length", "dtype", "device", "threads", "method")
FIELDS = (
    "parameters",
    "turns",
    "seconds",
    "wall_s",
    "ratio",
    "ratio_low",
    "ratio_high",
    "wall_ratio",
    "to_non_private",
    "to_non_private_error",
    "peak_mb",
    "peak_to_inference",
    "largest_mb",
    "peak_less_largest_to_inference",
    "code_mb",
    "peak_less_code_to_inference",
)
_STACKED = ("forwards-17", "together-17", "separate-16", "stacked-16")
_KS = tuple(name for k in (1, 4, 16) for name in (f"forwards-{2 * k}", f"low-rank-{k}", f"rademacher-{k}"))
PRESETS = {
    "smoke": [StepCase("tiny", 4, 16)],
    "gpu-smoke": [StepCase(size, 4, 16, methods=(BASE, PUBLIC)) for size in ("tiny", "opt-tiny")],
    "cpu": [
        *(StepCase("roberta-base", batch, 64) for batch in (8, 1)),
        *(StepCase("small", batch, 64) for batch in (64, 8)),
        *(StepCase("tiny", batch, 64) for batch in (64, 8)),
        StepCase("roberta-base", 64, 64, methods=(BASE, "gaussian", PUBLIC, PRIVATE, "four-pass")),
    ],
    "low-rank": [
        StepCase("tiny", 64, 64, methods=_KS + _STACKED),
        StepCase("minilm", 16, 32, methods=_KS),
        StepCase("smollm2-shape", 8, 16, methods=_KS[:8]),
        StepCase("tiny", 8, 64, methods=_KS + _STACKED),
        StepCase("tiny", 1, 64, methods=_KS + _STACKED),
    ],
    "gpu-low-rank": [
        StepCase(size, batch, length, "bfloat16", (BASE, PUBLIC, "four-pass", "forwards-2", "low-rank-1"))
        for size, length in (("roberta-large", 128), ("opt-1.3b", 256))
        for batch in (64, 8)
    ],
    "low-rank-smoke": [StepCase("tiny", 4, 16, methods=("forwards-2", "low-rank-1", "forwards-5", "stacked-4"))],
    "lengths": [
        StepCase("small", batch, length, methods=(BASE, *DIRECTIONS, "four-pass"))
        for batch in (1, 8, 64)
        for length in (16, 64, 256)
    ],
    "gpu": [
        StepCase("roberta-large", 64, 128, "float32"),
        StepCase("roberta-large", 64, 128, "bfloat16"),
        *(StepCase(f"opt-{size}", 8, 256, "bfloat16", METHODS[:-1]) for size in ("1.3b", "2.7b", "6.7b")),
        *(StepCase(f"opt-{size}", 8, 256, "bfloat16", METHODS[:-2]) for size in ("13b", "30b", "66b")),
    ],
}
"""The models and batches that each preset measures. RoBERTa is measured at the paper's batch of 64, and on the CPU also
at smaller ones; OPT is measured at the paper's batch of 8. The preset `lengths` measures direction laws at several
batches and lengths, beside the published step."""


def measure(case: StepCase, device: str, turns: int, budget: float) -> list[dict[str, Any]]:
    """Return a row for each method of a case (a model and a batch) on the device. A method that does not run has a
    status that says why, in place of numbers.

    turns: the number of turns in which methods that are compared are timed. Fewer turns are made if they do not fit
    into `budget` seconds, but at least 2.
    """
    used: dict[str, Any] = {
        method: None if _large(method) else _tried(device, _peak_megabytes, case, device, method)
        for method in case.methods
    }
    memory = {method: found[0] if isinstance(found, tuple) else found for method, found in used.items()}
    runs = [method for method in case.methods if not isinstance(memory[method], str)]
    alone = {PRIVATE: [BASE, PUBLIC, PRIVATE], "adamw": [BASE, "adamw"], "dp-adamw": [BASE, "dp-adamw"]}
    together = [method for method in runs if method not in alone and base_of(method) == BASE]
    points = dict.fromkeys(base_of(method) for method in runs if base_of(method) != BASE)
    samples: dict[str, dict[str, list[tuple[float, float]]]] = {}
    failed = {method: why for method, why in memory.items() if isinstance(why, str)}
    groups = [together, *(alone[method] for method in runs if method in alone)]
    groups += [[method for method in runs if base_of(method) == base] for base in points]
    for group in filter(None, groups):
        found = _tried(device, _turns, case, device, group, turns, budget)
        if isinstance(found, str):
            failed |= dict.fromkeys(set(group) - set(samples), found)
        else:
            samples |= {method: found for method in group if method not in samples}
    plain = next((method for method in memory if method in (BASE, "forwards-2")), BASE)
    inference: Any = memory.get(plain)
    parameters, largest = _sizes(case)
    rows = []
    for method in case.methods:
        row: dict[str, Any] = {"method": method, "size": case.size, "batch": case.batch, "length": case.length}
        row |= {"dtype": case.dtype, "device": device, "threads": torch.get_num_threads(), "parameters": parameters}
        megabytes = memory[method]
        if method in failed or isinstance(megabytes, str) or isinstance(inference, str):
            rows.append({**row, "status": failed.get(method) or f"{plain}: {failed[plain]}"})
            continue
        own, base = samples[method][method], samples[method][base_of(method)]
        pairs = list(zip(own, base, strict=True))
        ratios = [busy / other for (busy, _), (other, _) in pairs]
        row |= {
            "turns": len(ratios),
            "seconds": rounded(statistics.median(busy for busy, _ in own)),
            "wall_s": rounded(statistics.median(wall for _, wall in own)),
            "ratio": rounded(statistics.median(ratios)),
            "ratio_low": rounded(min(ratios)),
            "ratio_high": rounded(max(ratios)),
            "wall_ratio": rounded(statistics.median(wall / other for (_, wall), (_, other) in pairs)),
            "largest_mb": round(largest, 1),
        }
        if megabytes is not None:
            row |= {
                "peak_mb": round(megabytes, 1),
                "peak_to_inference": share(megabytes, inference),
                "peak_less_largest_to_inference": share(megabytes - largest, inference),
                "code_mb": round(used[method][1], 1),
                "peak_less_code_to_inference": share(megabytes - used[method][1], inference - used[plain][1]),
            }
        if method == PRIVATE:
            public = [busy for busy, _ in samples[method][PUBLIC]]
            ratio, error = median_ratio([busy for busy, _ in own], public)
            row |= {"to_non_private": rounded(ratio), "to_non_private_error": rounded(error)}
        rows.append(row)
    return rows


def _large(method: str) -> bool:
    """Whether a step of a method has so many points that its memory, that of one point, is not measured again."""
    return base_of(method) not in (BASE, "forwards-2") and not method.startswith("stacked")


def _turns(case: StepCase, device: str, methods: Sequence[str], turns: int, budget: float) -> dict[str, list[Any]]:
    """Time steps of the methods in turns, and return for each method the pairs (processor seconds, or synchronised wall
    seconds on a GPU; wall seconds), one for each turn.

    There are `turns` turns, and one before them that only warms up. After two turns another one is made only if it is
    expected to end within `budget` seconds of the start. `case` has the model and batch.
    """
    samples: dict[str, list[Any]] = {method: [] for method in methods}
    with ExitStack() as stack:
        bench = Bench(case, device, stack)
        steps = {method: bench.step(method) for method in methods}
        started = time.monotonic()
        for turn in range(turns + 1):
            order = methods if turn % 2 else methods[::-1]
            for method in order:
                seconds = _timed(steps[method], device)
                if turn:
                    samples[method].append(seconds)
            if turn >= 2 and (time.monotonic() - started) * (turn + 1) / turn > budget:
                break
    return samples


def _timed(step: Step, device: str) -> tuple[float, float]:
    if device == "cuda":
        torch.cuda.synchronize()
    wall, busy = time.perf_counter(), time.process_time()
    step()
    if device == "cuda":
        torch.cuda.synchronize()
    wall, busy = time.perf_counter() - wall, time.process_time() - busy
    return (wall if device == "cuda" else busy), wall


def _tried(device: str, work: Callable[..., Answer], *arguments: Any) -> Answer | str:
    """Return what `work` returns for these arguments, or, if it raises an exception, a text that says why: "out of
    memory", or the exception's type and message. Either way the memory that torch keeps on the device without using it
    is released."""
    try:
        return work(*arguments)
    except (torch.OutOfMemoryError, MemoryError):
        return "out of memory"
    except Exception as error:
        return f"{type(error).__name__}: {error}"[:200]
    finally:
        _release(device)


def _peak_megabytes(case: StepCase, device: str, method: str) -> tuple[float, float]:
    """Return the peak memory of a method's first steps and the code in it, as `_peak_of_steps` does: in a new process
    on the CPU, in this one on a GPU.
    Raises MemoryError if weights, gradients and optimizer state alone need more than a quarter of the memory that is
    free. `case` has the model and batch; the device is "cpu" or "cuda"."""
    if device == "cuda":
        return _peak_of_steps(case, device, method, 1)
    if _needed_megabytes(case, method) > 0.25 * _available_megabytes():
        raise MemoryError
    return in_new_process(_peak_of_steps, case, device, method, torch.get_num_threads())


def _peak_of_steps(case: StepCase, device: str, method: str, threads: int) -> tuple[float, float]:
    """Return the largest memory in MiB held during a method's first steps, less what was held before the model was
    built: that of torch's allocator on a GPU, that of the process on the CPU. Of the latter the second number is code
    of libraries, which all processes share; it is 0 on a GPU. `case` has the model and batch, and
    `threads` is the number of torch's threads on the CPU."""
    if device == "cpu":
        torch.set_num_threads(threads)
    with ExitStack() as stack:
        classification_model(
            StepCase("tiny", 1, 8), device
        )  # a first model is built only to import the modules that building needs, whose memory is not the method's
        before, loaded = reset_peak(device), code()
        bench = Bench(case, device, stack)
        step = bench.step(method)
        if method == "dp-adamw":
            del bench.module
        for _ in range(2 if "adamw" in method else 1):  # the first step of AdamW only creates the optimizer's state
            step()
        return peak(device) - before, code() - loaded if device == "cpu" else 0.0


def _needed_megabytes(case: StepCase, method: str) -> float:
    """Return an estimate, in MiB, of the memory that weights, gradients and optimizer state of the method need in
    float32, as if nothing else were held. It decides whether the method is tried on the CPU. `case` has the model and
    batch."""
    parameters, _ = _sizes(case)
    copies = {"adamw": 4, "dp-adamw": 6 + case.batch}.get(method, 1)
    return copies * parameters * 4 / 2**20


def _available_megabytes() -> float:
    try:
        text = Path("/proc/meminfo").read_text()
    except OSError:
        return math.inf
    return int(text.split("MemAvailable:")[1].split()[0]) / 2**10


def _sizes(case: StepCase) -> tuple[int, float]:
    """Return the number of the model's parameters, tied ones counted once, and the size in MiB of the largest tensor of
    parameters. `case` has the name of the model and its dtype."""
    counts = [parameter.numel() for parameter in classification_model(case, "meta").parameters()]
    return sum(counts), max(counts) * DTYPES[case.dtype].itemsize / 2**20


def _release(device: str) -> None:
    gc.collect()
    if device == "cuda":
        torch.cuda.empty_cache()


def share(megabytes: float, inference: float) -> float | None:
    """Return the memory of a method over that of inference, both in MiB, rounded to four digits; None if the memory of
    inference is 0, as if it was too small to be seen."""
    return rounded(megabytes / inference) if inference > 0 else None


def _check(parser: Parser, options: Namespace) -> None:
    options.device = chosen_device(parser, options.device)
    cases = PRESETS[options.preset]
    unknown = set(options.sizes or ()) - {case.size for case in cases}
    if unknown:
        parser.error(f"--sizes must be in preset {options.preset}; got {sorted(unknown)[0]!r}")
    torch.set_num_threads(options.threads)
    options.cases = {(case.size, case.batch, case.length, case.dtype): case for case in cases}


def _folder(options: Namespace) -> Path:
    name = {
        "lengths": "optimizer_step_lengths",
        "low-rank": "optimizer_step_low_rank",
        "gpu-low-rank": "optimizer_step_low_rank_gpu",
    }.get(options.preset, "optimizer_step")
    return (Path("out") if "smoke" in options.preset else RESULTS) / name


def _cells(options: Namespace) -> Iterator[Cell]:
    for size, batch, length, dtype in options.cases:
        if not options.sizes or size in options.sizes:
            yield {"size": size, "batch": batch, "length": length, "dtype": dtype}


def _keys(options: Namespace, at: Cell) -> Iterator[Cell]:
    for method in options.cases[tuple(at.values())].methods:
        yield {**at, "device": options.device, "threads": options.threads, "method": method}


def _told(at: Cell, rows: list[dict[str, Any]]) -> str:
    lines = []
    for row in rows:
        base = base_of(row["method"])
        told = (
            f"{row.get('seconds')} s, {row.get('ratio')} of {base}, {row.get('peak_to_inference', '-')} of its memory"
        )
        lines.append(f"{at['size']} batch {at['batch']}: {row['method']} {row.get('status', told)}")
    return "\n".join(lines)


EXPERIMENT = Experiment(
    name="optimizer_step",
    about=__doc__,
    flags=[
        flag("--preset", choices=PRESETS, default="smoke"),
        flag("--sizes", nargs="+", action=Several, metavar="SIZE", help="only the preset's cases with these models"),
        flag("--turns", type=integer(2, 1000), default=15),
        flag("--budget", type=integer(1, 10**9), default=300, help="seconds of a group of methods"),
        flag("--threads", type=integer(1, 1024), default=1, help="of the processor"),
        flag("--device", choices=("auto", "cpu", "cuda"), default="auto"),
    ],
    folder=_folder,
    key=KEY,
    fields=FIELDS,
    seeds=[0],
    device=lambda options: str(options.device),
    dtype="a column",
    settings={"smoothing": SMOOTHING, "step_size": STEP_SIZE, "loss": "cross entropy of two classes"},
    check=_check,
    cells=_cells,
    keys=_keys,
    measure=lambda options, at: measure(
        options.cases[tuple(at.values())], options.device, options.turns, options.budget
    ),
    told=_told,
)
