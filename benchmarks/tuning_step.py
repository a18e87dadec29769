"""Peak memory and time of one step of each way to tune a pretrained model.  python -m benchmarks tuning_step

    dpzero                 a private step on all weights: ledger and transcript on disk, discrete noise
    mezo-four-pass         MeZO as published: the direction drawn again four times, the weights perturbed in place
    adamw                  AdamW on all weights, not private
    dp-adamw               DP-AdamW by Opacus, with a gradient for each record
    dp-adamw-ghost         DP-AdamW by Opacus' ghost clipping: norms of the records' gradients, and a second backward
    lora, dp-lora          AdamW and DP-AdamW by Opacus on adapters of rank 8 beside the query and value matrices
    dpzero-lora            a private step on these adapters

The model has the sizes of SmolLM2-135M (`python -m benchmarks pretrained smollm2` makes its configuration) with two
classes and random weights, which change neither memory nor time. Records are 16 random tokens. Each method has a
process of its own for each dtype. A batch's row has the processor seconds of a forward pass (half of two) and of one
step, made after a first step, and the largest memory held while each of them runs, less what the process held before
the model was built; freed memory is given back at once. A step that needs more than `LIMIT` for weights, gradients and
optimizer state alone is not tried, and its row says what it needs.
"""

import gc
import time
from argparse import Namespace
from contextlib import ExitStack
from itertools import product
from pathlib import Path
from typing import Any

import torch

from benchmarks.kit.experiment import Experiment, flag
from benchmarks.kit.peaks import in_new_process, peak, reset_peak
from benchmarks.kit.rows import OK, RESULTS, having, read_rows
from benchmarks.kit.tables import markdown, rounded
from benchmarks.llm.models import DTYPES
from benchmarks.llm.top import MODEL
from benchmarks.optimizer_methods import BASE, Bench, Step, StepCase, classification_model
from benchmarks.optimizer_step import share
from benchmarks.pretrained import pretrained_folder
from dpzero_theory.cli import Parser

LENGTH, LIMIT = 16, 9 * 2**30
"""The number of tokens of a record, and the most bytes that a step may need for what LIMIT counts."""
BATCHES = (1, 8, 64)
METHODS = {
    "dpzero": "private-rademacher", "mezo-four-pass": "four-pass", "adamw": "adamw", "dp-adamw": "dp-adamw",
    "dp-adamw-ghost": "dp-adamw-ghost", "dpzero-lora": "private-lora", "lora": "lora", "dp-lora": "dp-lora",
}  # fmt: skip
"""The methods, with their names in `Bench.step`."""
OWN = ("dp-adamw", "dp-adamw-ghost", "lora", "dp-lora")
"""Methods that have a model of their own, because they put hooks or adapters into it."""
KINDS = ("float32", "bfloat16")
DTYPE_LABELS = {"float32": "f32", "bfloat16": "bf16", "int8": "8-bit integers, frozen"}
LABELS = {
    "dpzero": "DPZero", "mezo-four-pass": "MeZO as published", "adamw": "AdamW", "dp-adamw": "DP-AdamW",
    "dp-adamw-ghost": "DP-AdamW, ghost clipping", "dpzero-lora": "DPZero on LoRA", "lora": "LoRA", "dp-lora": "DP-LoRA",
}  # fmt: skip


def measure(dtype: str, method: str, batches: tuple[int, ...] = BATCHES, size: str = MODEL) -> list[dict[str, Any]]:
    """Return a row for each batch size in `batches`, measured in this process. dtype: the weights' type, "float32" or
    "bfloat16". method: a key of METHODS. size: the name of the model's sizes."""
    torch.set_num_threads(1)
    classification_model(StepCase("tiny", 1, 8), "cpu")  # imports what building needs, whose memory is not the method's
    return [{"dtype": dtype, "batch": batch, "method": method, **_row(dtype, method, batch, size)} for batch in batches]


def _row(dtype: str, method: str, batch: int, size: str) -> dict[str, Any]:
    """Return what a step of a method with `batch` records costs, as columns of a row: seconds, and peak memory in MiB
    less what was held before the model was built. If weights, gradients and optimizer state alone need more than LIMIT
    bytes, nothing is run, and the one column is a status that says how much they need. dtype, method, size: as in
    `measure`."""
    case = StepCase(size, batch, LENGTH, dtype)
    weights = sum(p.numel() for p in classification_model(case, "meta").parameters())
    copies = {"adamw": 4, "dp-adamw": 6 + batch, "dp-adamw-ghost": 6}.get(method, 1)
    if (needed := copies * weights * DTYPES[case.dtype].itemsize) > LIMIT:
        return {"status": f"needs more than {needed / 2**30:.0f} GiB"}
    gc.collect()
    before = reset_peak("cpu")
    with ExitStack() as stack:
        bench = Bench(case, "cpu", stack)
        forwards, inference = _cost(bench.step(BASE))
        step = bench.step(METHODS[method])
        if method in OWN:
            del bench.module
        seconds, most = _cost(step)
    return {
        "inference_s": rounded(forwards / 2), "seconds": rounded(seconds), "ratio": rounded(2 * seconds / forwards),
        "inference_mib": round(inference - before), "peak_mib": round(most - before),
        "memory_ratio": share(most - before, inference - before),
    }  # fmt: skip


def _cost(step: Step) -> tuple[float, float]:
    """Make two steps by calling `step`. Return the processor seconds of the second, and this process's peak memory in
    MiB."""
    gc.collect()
    reset_peak("cpu")
    step()
    started = time.process_time()
    step()
    return time.process_time() - started, peak("cpu")


def table(folder: Path = RESULTS / "tuning_step") -> str:
    """Return a table, by dtype and method, of a step's time and peak memory at each batch, in units of a forward
    pass."""
    rows = read_rows(folder, failed=True)
    lines = []
    for dtype, method in product(DTYPE_LABELS, METHODS):
        of = {row["batch"]: row for row in having(rows, dtype=dtype, method=method).to_dict("records")}
        if of:
            cells = [_cell(of.get(batch)) for batch in BATCHES]
            lines.append([DTYPE_LABELS[dtype], LABELS[method], *cells])
    first = rows[rows["status"] == OK].drop_duplicates(["dtype", "batch"]).sort_values(["dtype", "batch"])
    told = "; ".join(
        f"{DTYPE_LABELS[of['dtype']]}, batch {of['batch']}: {of['inference_mib']:,.0f} MiB, {of['inference_s']:.2g} s"
        for of in first.to_dict("records")
    )
    heads = ["weights", "method", *(f"batch {batch}: time; memory" for batch in BATCHES)]
    return f"{markdown(heads, lines)}\n\nA forward pass: {told}."


def _cell(row: dict[Any, Any] | None) -> str:
    if row is None:
        return "-"
    return f"{row['ratio']:.1f}; {row['memory_ratio']:.2f}" if row["status"] == OK else str(row["status"])


def _check(parser: Parser, options: Namespace) -> None:
    with parser.refusals():
        pretrained_folder(MODEL)


EXPERIMENT = Experiment(
    name="tuning_step",
    about=__doc__,
    flags=[
        flag("--dtypes", nargs="+", choices=KINDS, default=list(KINDS), help="some of them"),
        flag("--methods", nargs="+", choices=tuple(LABELS), default=list(LABELS), help="some of them"),
        flag("--batches", nargs="+", type=int, choices=BATCHES, default=list(BATCHES), help="some of them"),
    ],
    folder="tuning_step",
    key=("dtype", "method", "batch"),
    fields=("inference_s", "seconds", "ratio", "inference_mib", "peak_mib", "memory_ratio"),
    seeds=[0],
    dtype="a column",
    settings={"model": MODEL, "tokens": LENGTH, "rank": 8, "threads": 1},
    check=_check,
    cells=lambda options: [
        {"dtype": dtype, "method": name} for dtype, name in product(options.dtypes, options.methods)
    ],
    keys=lambda options, cell: [{**cell, "batch": batch} for batch in options.batches],
    measure=lambda options, cell: in_new_process(measure, cell["dtype"], cell["method"], tuple(options.batches)),
    told=lambda at, rows: "\n".join(
        f"{at['dtype']}, {at['method']}, batch {row['batch']}: "
        + row.get("status", f"{row.get('ratio')} forwards, {row.get('memory_ratio')} of their memory")
        for row in rows
    ),
    summary=table,
)  # fmt: skip
