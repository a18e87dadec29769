"""Chooses settings that are not given, for `settings="auto"` of `make_private_with_epsilon`. Reads no private record.

The parameters with requires_grad are trained; if all of a transformers model have it, only the last normalisation and,
where the model has a new head, the head (`narrow`). With d trained weights, K directions, T steps and G, the median
norm of a record's gradient, the settings are

    clip                   sqrt(K) G
    step size at step t    f sqrt(1000/T) (1 - t/T)/G^2
    K; T and the batch     min(16, d); the first of `_LENGTHS` with which the run takes at most ten minutes, such as
                           1,000 steps with n/16 records each, or the last; K = 4 in a run that takes more even then

Public records give G; the smoothing lambda, the largest of three at which halving lambda changes finite differences of
losses by at most 1%, or a larger one if rounding is large; how many records and shifted weights fit into one pass; and
the factor f. Short runs on half of the public records, with the noise of a private run of that length, try several f
and are compared by the loss on the other half. Whether the first run learns, stands still or diverges says where to
look for f; later runs vary f by factors of sqrt(10). Without public records G, lambda and f are those that did well in
earlier runs on the same kind of weights (`benchmarks/results`: `llm_directions_total`, `llm_verdicts`,
`llm_last_layer`, `llm_all_weights`), and a step's time is estimated from the number of weights.
"""

import math
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import nn

from dpzero_theory.difference import DIFFERENCES
from dpzero_theory.optim.losses.evaluation import Losses
from dpzero_theory.optim.losses.isolation import visibility
from dpzero_theory.optim.losses.records import Collate, Data
from dpzero_theory.optim.plan import Plan, Target
from dpzero_theory.optim.public import Falling, Public, first_step_size, short
from dpzero_theory.optim.weights.directions import Directions
from dpzero_theory.optim.weights.module import Weights

_RUN = 10.0
"""The most minutes that the chosen run may take, if fewer steps, smaller batches or fewer directions achieve that."""
_LENGTHS = ((1000, 16), (250, 4), (62, 4), (62, 16), (62, 64), (62, 256))
"""Pairs (number of steps, number of records over the expected batch), in the order in which `_fitting` tries them. It
takes the first whose run is short enough."""
_LITTLE, _MANY = 300, 64
"""If epsilon times n is below the first number, no run of more than 62 steps is tried. Batches of n/64 or n/256 records
are tried only if they have at least as many records as the second."""
_FEW_DIRECTIONS = 4
"""The most directions in a step of a run that takes too long with every length and batch size of `_LENGTHS`."""
_STEP = 5e-3  # About how many seconds a step takes in addition to evaluations
_LONG = 60  # If the text of a given setting is longer, the program has its name in place of its value
_TOKENS, _PIXELS = 64, 1024
"""The assumed number of tokens or pixels in a record if nothing is measured."""
_ROUNDED = 2e-6
"""Without public records: how much rounding is assumed to change a float32 loss up to 10 if others join its batch."""


class _Kind(NamedTuple):
    # Settings that did well in earlier runs that trained the same kind of weights
    name: str  # The kind, in words
    norm: float  # The median norm of a record's gradient
    smoothing: float  # How far the weights are shifted along a direction
    factor: float  # f in the step size f sqrt(1000/T) (1 - t/T)/norm^2 of step t of T
    steps: int  # The largest number of steps


def narrow(module: nn.Module) -> bool:
    """Freeze most of a transformers model whose parameters all have requires_grad=True. Return whether this was done.

    The parameters of the last normalisation layer stay trainable. So does a new head: the parameters outside the base
    model, if the model has no output embeddings (a classifier), or if the head has biases and all of them are 0, as
    before training. If some parameter is frozen already, the module is not a transformers model, or no normalisation
    layer has parameters, nothing changes and the result is False.
    """
    model: Any = module
    norms = [part for part in module.modules() if "Norm" in type(part).__name__ and part._parameters]
    if not (hasattr(model, "base_model_prefix") and norms and all(p.requires_grad for p in module.parameters())):
        return False
    body = {id(parameter) for parameter in model.base_model.parameters()}
    head = {name: parameter for name, parameter in module.named_parameters() if id(parameter) not in body}
    biases = [parameter for name, parameter in head.items() if name.endswith("bias")]
    new = model.get_output_embeddings() is None or (bool(biases) and not any(bias.any() for bias in biases))
    module.requires_grad_(False)
    for parameter in [*norms[-1].parameters(), *(head.values() if new else ())]:
        parameter.requires_grad_(True)
    return True


def choose(
    module: nn.Module,
    n: int,
    given: Mapping[str, Any],
    public: tuple[Losses, Data, Collate] | None,
    *,
    narrowed: bool,
) -> tuple[dict[str, Any], str, Public | None]:
    """Choose the settings of a private run that are not given, such as the clip. The module stays as it was.

    The run is the longest of a few, from 62 to 1,000 steps, that takes at most about ten minutes. From public records
    the function measures the norm of a record's gradient, which determines clip and step size, the smoothing, the time
    of an evaluation and, by short runs, a factor of the step size. Without public records it takes values that did well
    in earlier runs that trained the same kind of weights, and estimates the time from the number of weights.

    Args:
        module: the module, whose parameters with requires_grad=True will be trained.
        n: the number of private records.
        given: the settings to keep, arguments of `make_private_with_epsilon` with target_epsilon and target_delta.
        public: the loss function, the public records and their collate function; None without public records.
        narrowed: whether `narrow` has frozen most of the module. If True, the returned program does so too.

    Returns:
        The triple (settings, program, seen). `settings` has all settings, including the given ones. `program` is Python
        source that sets them. Its first line is a comment on how they were chosen, and how much time and memory the run
        takes. `seen` has measured the public records; None without them.

    Raises:
        ValueError: a given setting is outside its range, or the losses of public records are not finite, or not one for
            each record.
        PreconditionError: the losses of more than half of the public records tried do not change with the weights.
    """
    began = time.monotonic()
    weights = Weights(module, Directions(bytes(16), "gaussian", given.get("shape", "")))
    kind = _kind(weights)
    settings: dict[str, Any] = {
        "relation": "add-remove", "sampling": "poisson", "difference": "forward", "direction": "low-rank",
        "directions_per_step": min(16, weights.d), **given,
    }  # fmt: skip
    settings.setdefault("smoothing", 0.0 if settings["difference"] == "exact" else kind.smoothing)
    length = {} if "steps" in given or "epochs" in given else {"steps": kind.steps}
    # Raises for given settings outside their ranges, before anything is read
    plan = _plan(n, {"clip": 1.0, "expected_batch": n, **settings}, **length)
    seen: Public | _Tested
    if public is None:
        seen = _Tested.of(weights, kind)
    else:
        seen = Public(weights, public, plan.difference_rule, settings, began)
        found = {"smoothing": seen.smoothing, "micro_batch": seen.micro_batch, "points_at_once": seen.at_once}
        settings = {**settings, **found, **given}
    plan, settings = _fitting(n, settings, given, plan, seen, kind)
    if plan.smoothing and "smoothing" not in given and given.get("isolation") != "exact":
        smoothing = seen.smooth(plan)
        settings = {**settings, **({"smoothing": smoothing} if smoothing else seen.alone(settings)), **given}
        plan, settings = _fitting(n, settings, given, plan, seen, kind)
    how = (
        f"from {seen.count:,} public records"
        if public
        else f"without public records, not tried, as tested for {kind.name}"
    )
    if "step_size" not in given:
        factor = kind.factor
        if isinstance(seen, Public):
            tried = seen.factor(factor, plan, lambda steps: _plan(n, settings, steps=steps))
            if tried is None:
                how += " (no time for short runs: the step size is safe on them rather than good)"
            elif not seen.gained:
                how += " (no short run lowers the loss of the others: the run may do harm)"
            factor = tried or seen.gentle(factor, plan)
        first = first_step_size(factor, plan.steps, seen.norm)
        settings["step_size"] = Falling(short(first), plan.steps)
    weights.untrained.settle()
    how = f"{how}, in {time.monotonic() - began:.0f} s: {weights.d:,} weights"
    program = _program(settings, given, list(weights.names) if narrowed else [], how, plan, seen)
    return settings, program, seen if isinstance(seen, Public) else None


def _plan(n: int, settings: Mapping[str, Any], **changes: Any) -> Plan:
    target = {"step_size": 0.0, **settings, **changes}
    return Plan.for_target(n=n, **{name: target[name] for name in target if name in Target.__annotations__})


def _points(plan: Plan) -> int:
    return plan.difference_rule.points(plan.directions_per_step)


def _minutes(plan: Plan, seen: "Public | _Tested") -> tuple[float, float]:
    # How long the run takes: evaluations, and, before these, the frozen layers, once for each record that is drawn
    drawn = plan.steps * plan.expected_batch
    again = plan.steps * _STEP + drawn * _points(plan) * seen.seconds
    return again / 60, min(plan.n, drawn) * seen.once / 60


def _fitting(
    n: int, settings: Mapping[str, Any], given: Mapping[str, Any], plan: Plan, seen: "Public | _Tested", kind: _Kind
) -> tuple[Plan, dict[str, Any]]:
    # Returns plan and settings of the longest run that takes at most ten minutes beyond `least`, or else of the last
    # that is tried. Adds steps, batch, directions and clip that are not given; the step size is 0 until one is chosen.
    most = plan.steps if "steps" in given else 10**9 if isinstance(seen, Public) else kind.steps
    if given["target_epsilon"] * n < _LITTLE:
        most = min(most, 99)
    lengths = [(steps, part) for steps, part in _LENGTHS if part <= 16 or n >= _MANY * part]
    lengths = [pair for pair in lengths if pair[0] <= most] or lengths[-2:]
    # No length of these runs the frozen layers for fewer records; that time cannot be saved, so it does not count
    least = n * min(1, *(steps / part for steps, part in lengths)) * seen.once / 60
    k = settings["directions_per_step"]
    tried = [(*pair, k) for pair in lengths]
    if "directions_per_step" not in given:
        tried += [(*lengths[-1], min(_FEW_DIRECTIONS, k))]
    for steps, part, k in tried:
        batch = n if settings["sampling"] == "full" else max(1.0, round(n / part))
        chosen = {"clip": short(math.sqrt(k) * seen.norm), "expected_batch": batch, "directions_per_step": k}
        if "points_at_once" in settings:
            chosen["points_at_once"] = min(settings["points_at_once"], DIFFERENCES[settings["difference"]].points(k))
        found = {**settings, **({} if "epochs" in given else {"steps": steps}), **chosen, **given}
        plan = _plan(n, found)
        if sum(_minutes(plan, seen)) - least <= _RUN:
            break
    found.pop("epochs", None)
    return plan, {**found, "steps": plan.steps}


def _program(
    settings: Mapping[str, Any], given: Mapping[str, Any], names: list[str], how: str, plan: Plan,
    seen: "Public | _Tested",
) -> str:  # fmt: skip
    # Returns Python source that sets `settings`. `names` are the parameters that it makes trainable while it freezes
    # all others; if empty, it changes none. `how` is a text that says how the settings were chosen.
    texts = {name: repr(value) for name, value in settings.items()}
    texts |= {name: name for name in given if callable(given[name]) or len(texts.get(name, "")) > _LONG}
    (again, once), points = _minutes(plan, seen), _points(plan)
    minutes = again + once
    takes = f"{short(minutes, 2):,g} min" if minutes >= 1 else f"{short(60 * minutes, 2):g} s"
    fits = max(1, round(plan.expected_batch * _RUN / minutes))
    longer = f"# this is long: expected_batch={fits} takes {_RUN:g} minutes, or make fewer steps; both learn less\n"
    return (
        f"# settings='auto', {how}, {plan.steps:,} steps of {points} evaluations of {plan.expected_batch:,.0f} records,"
        f" about {takes}{seen.said}; the same again:\n"
        + longer * (again > _RUN)
        + "for name, weight in model.named_parameters():\n" * bool(names)
        + f"    weight.requires_grad_(name in {names})\n" * bool(names)
        + "".join(["private = dict(\n", *(f"    {name}={text},\n" for name, text in texts.items()), ")\n"])
    )


def _kind(weights: Weights) -> _Kind:
    whole = sum(parameter.numel() for parameter in weights.module.parameters())
    matrices = [shape for shape in weights.shapes if len(shape) > 1]
    if any("lora_" in name for name in weights.names):
        return _Kind("adapters", 1.0, 1e-3, 0.5, 250)
    if not matrices and weights.d < whole / 2:
        return _Kind("a normalisation", 1.4, 1e-2, 1.0, 1000)
    if len(matrices) > 4 and weights.d > whole / 2:
        return _Kind("all weights", 30.0, 3e-3, 0.1, 250)
    # The gradient of a linear layer is its outputs' gradient, here of norm 0.7, times its inputs, here all +-1
    columns = max((math.prod(shape[1:]) for shape in matrices), default=weights.d)
    return _Kind("a head or a small model of inputs near +-1", 0.7 * math.sqrt(columns), 1e-2, 1.0, 1000)


@dataclass(frozen=True)
class _Tested:
    # Takes the place of `Public` without public records. Its values are those of earlier runs, its times are estimated.
    said: str  # A text that says for which records the times are meant, and the memory of the weights
    norm: float  # The median norm of a record's gradient
    seconds: float  # How many seconds the evaluation of one record at one point takes
    once: float  # How many seconds the first reading of a record takes, with its frozen layers
    count: int = 0

    @classmethod
    def of(cls, weights: Weights, kind: _Kind) -> "_Tested":
        module = weights.module
        parts, sizes = list(module.modules()), {name: p.numel() for name, p in module.named_parameters()}
        held = sum(parameter.nbytes for parameter in module.parameters()) / 2**30
        values, of = 1, ""
        if any(isinstance(part, nn.Embedding) for part in parts):
            values, of = _TOKENS, f" for records of {_TOKENS} tokens"
        elif any("Conv" in type(part).__name__ for part in parts):
            values, of = _PIXELS, f" for records of {_PIXELS:,} pixels"
        # Frozen layers before the first trained weight run once for each record. An embedding look-up takes no time,
        # but the output layer, which may share its matrix, does: `last` adds that.
        looked_up = {id(part.weight): 0 for part in parts if isinstance(part, nn.Embedding)}
        found = [looked_up.get(id(p), p.numel()) for _, p in module.named_parameters()]
        below = list(sizes).index(next(name for name in sizes if name in set(weights.names)))
        outputs: Any = getattr(module, "get_output_embeddings", lambda: None)()
        last = 0 if outputs is None else outputs.weight.numel()
        each = values * _forward(weights.parameters[0].device)
        return cls(f"{of}; {held:.1f} GiB of weights", kind.norm, each * (sum(found[below:]) + last), each * sum(found))

    def smooth(self, plan: Plan) -> float | None:
        least = plan.smoothing * visibility(_ROUNDED, plan)
        return plan.smoothing if plan.smoothing >= least else short(1.07 * least, 2) if least <= 0.1 else None

    def alone(self, settings: Mapping[str, Any]) -> dict[str, Any]:
        return {"isolation": "exact", "micro_batch": 1}


def _forward(device: torch.device) -> float:
    # Returns about how many seconds one multiplication in a matrix product takes
    x, y, took = torch.ones(256, 1024, device=device), torch.ones(1024, 1024, device=device), 0.0
    for _ in range(2):  # The first product of a process takes longer
        start = time.monotonic()
        (x @ y).sum().item()
        took = time.monotonic() - start
    return took / (256 * 1024**2)
