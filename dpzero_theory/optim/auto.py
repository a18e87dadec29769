"""Settings that nobody chose: `settings="auto"` of `make_private_with_epsilon`. No private record is read.

What is trained is the parameters with requires_grad; if all of a transformers model have it, the last normalisation
and, where the model has a new head, the head (`narrow`). With K directions, T steps and G, the median norm of a
record's gradient, the settings are

    clip                   sqrt(K) G
    step size at step t    f sqrt(1000/T) (1 - t/T)/G^2
    K; T and the batch     16; 1,000 steps with n/16 records each, or 250 or 62 with n/4, or 62 with n/16 if the run
                           would take more than ten minutes otherwise; 62 with n/4 if epsilon times n is below 300

Public records give G; the smoothing lambda, the largest of three whose halving changes differences by at most 1%; how
many records and points fit into one pass; and the factor f. Short runs on half of them, with the noise of a private run
of that length, are compared by the loss on the other half: the first one's verdict says how much larger or smaller f
should be, and the next ones go from there by factors of sqrt(10). Without public records all is as it was good for
weights of that kind (`benchmarks/results/llm_directions_total`, `llm_verdicts`, `llm_last_layer`, `llm_all_weights`).
"""

import math
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils import _pytree
from torch.utils._python_dispatch import TorchDispatchMode

from dpzero_theory import check
from dpzero_theory.check import Array
from dpzero_theory.difference import DIFFERENCES, Difference
from dpzero_theory.optim.engines.probe import rounding
from dpzero_theory.optim.files.transcript import Record
from dpzero_theory.optim.losses.evaluation import BatchSum, Evaluation
from dpzero_theory.optim.plan import Plan, Target
from dpzero_theory.optim.run import watched
from dpzero_theory.optim.step.distributed import Ranks
from dpzero_theory.optim.verdict import Descent
from dpzero_theory.optim.weights.directions import Directions
from dpzero_theory.optim.weights.module import Weights
from dpzero_theory.privacy.noise import SeededNoise
from dpzero_theory.privacy.sampling import FullBatch

_CHOOSING, _READING, _PILOT, _RUN = 50.0, 12.0, 8.0, 600.0
"""How long choosing may take, reading public records, a short run, and the run that is chosen, in seconds."""
_LENGTHS, _LITTLE = ((1000, 16), (250, 4), (62, 4), (62, 16)), 300
"""The pairs (T, n over the expected batch) that are tried, from the most steps; below this product of epsilon and n
only the last two are."""
_LONG = 60  # Given settings with a longer text stand in the program by their names alone.
_MOST, _FEW, _FEWEST_STEPS, _FEWEST_ROWS = 256, 8, 30, 64
"""The most public records that are read; as many as settle the smoothing; the fewest steps of a short run, and records
in it if there are so many: on fewer it learns these by heart, which small step sizes hide."""


class _Kind(NamedTuple):
    """Settings that were good in earlier runs which trained weights of one kind, such as adapters.

    Attributes:
        name: the kind of weights, in words.
        norm: the median norm of a record's gradient.
        smoothing: the smoothing lambda.
        factor: the number f in the step size f sqrt(1000/T) (1 - t/T)/norm^2 at step t of T.
        steps: the most steps T.
    """

    name: str
    norm: float
    smoothing: float
    factor: float
    steps: int


class _Falling(NamedTuple):
    """The step size as a function of the step, which falls evenly from `first` at step 0 to 0 at step `steps`."""

    first: float
    steps: int

    def __call__(self, step: int) -> float:
        return self.first * (1 - step / self.steps)

    def __repr__(self) -> str:
        return f"lambda step: {self.first:g} * (1 - step / {self.steps})"


def narrow(module: nn.Module) -> bool:
    """Freeze most of a model of transformers if all its parameters have requires_grad, and return whether that was so.

    Trainable stay the parameters of the last normalisation and, if the model has no output embeddings, those outside of
    its base model, which are then a new head.
    """
    model: Any = module
    norms = [part for part in module.modules() if "Norm" in type(part).__name__ and part._parameters]
    if not (hasattr(model, "base_model_prefix") and norms and all(p.requires_grad for p in module.parameters())):
        return False
    body = {id(parameter) for parameter in model.base_model.parameters()}
    new = model.get_output_embeddings() is None
    head = [parameter for parameter in module.parameters() if new and id(parameter) not in body]
    module.requires_grad_(False)
    for parameter in [*norms[-1].parameters(), *head]:
        parameter.requires_grad_(True)
    return True


def choose(
    module: nn.Module, n: int, given: Mapping[str, Any], public: Evaluation | None, count: int, *, narrowed: bool
) -> tuple[dict[str, Any], str]:
    """Choose the settings of a private run that are not given. The module is afterwards as it was.

    Args:
        module: the module, whose parameters with requires_grad will be trained.
        n: the number of private records.
        given: the settings that stay as they are, arguments of `make_private_with_epsilon`; target_epsilon and
            target_delta must be among them.
        public: an object that evaluates the losses of public records; None if there are no public records.
        count: how many public records there are.
        narrowed: whether `narrow` has frozen most of the module, so that the program must do so too.

    Returns:
        All settings, the given ones included; and a program that sets them, as lines of Python, the first of which is a
        comment. It says how the settings were chosen, and how much time and memory the run takes.

    Raises:
        ValueError: a given setting is outside its range, or the losses of public records are not finite.
        PreconditionError: the losses of half of the public records do not change with the weights.
    """
    began = time.monotonic()
    weights = Weights(module, Directions(bytes(16), "gaussian", given.get("shape", "")))
    kind = _kind(weights)
    settings: dict[str, Any] = {
        "relation": "add-remove", "sampling": "poisson", "difference": "forward", "direction": "low-rank",
        "directions_per_step": min(16, weights.d), **given,
    }  # fmt: skip
    settings.setdefault("smoothing", 0.0 if settings["difference"] == "exact" else kind.smoothing)

    def plan_of(**changes: Any) -> Plan:
        target = {"step_size": 0.0, **settings, **changes}
        return Plan.for_target(n=n, **{name: target[name] for name in target if name in Target.__annotations__})

    length = {} if "steps" in given or "epochs" in given else {"steps": kind.steps}
    # This refuses given settings outside their ranges before anything is read
    plan = plan_of(**{"clip": 1.0, "expected_batch": n, **length, **given})
    k, norm, seen = plan.directions_per_step, kind.norm, None
    points = len(plan.difference_rule.at(range(k), 1.0))
    if public is not None:
        seen = _Public(weights, public, count, plan.difference_rule, settings, began)
        norm = seen.norm
        settings |= {"smoothing": seen.smoothing, "micro_batch": seen.micro_batch, "points_at_once": seen.at_once}
    settings = {"clip": _short(math.sqrt(k) * norm), **settings, **given}

    def minutes(plan: Plan, each: float, once: float = 0.0) -> float:
        drawn = plan.steps * plan.expected_batch
        return (drawn * points * each + min(n, drawn) * once) / 60

    lengths = [pair for pair in _LENGTHS if seen or pair[0] <= kind.steps]
    if given["target_epsilon"] * n < _LITTLE:
        lengths = [pair for pair in lengths if pair[0] < 100]
    if "steps" in given:
        lengths = [pair for pair in lengths if pair[0] <= plan.steps] or lengths[-2:]
    for steps, part in lengths:
        length = {"steps": steps} if length else {}
        batch = n if settings["sampling"] == "full" else max(1.0, n / part)
        plan = plan_of(**length, **({} if "expected_batch" in given else {"expected_batch": batch}))
        if seen is None or minutes(plan, seen.seconds) * 60 <= _RUN:
            break
    settings = {**settings, "expected_batch": plan.expected_batch, "steps": plan.steps}
    settings.pop("epochs", None)
    how = f"from {count:,} public records" if seen else f"without public records, as tested for {kind.name}"
    if "step_size" not in given:
        factor = seen.factor(kind.factor, points, plan, lambda steps: plan_of(steps=steps)) if seen else None
        if seen and factor is None:
            how += f" (the step size as tested for {kind.name}: there was no time for short runs)"
        first = _first(kind.factor if factor is None else factor, plan.steps, norm)
        settings["step_size"] = _Falling(_short(first), plan.steps)
    weights.untrained.settle()
    texts = {name: repr(value) for name, value in settings.items()}
    texts |= {name: name for name in given if callable(given[name]) or len(texts.get(name, "")) > _LONG}
    if seen:
        takes = f"about {minutes(plan, seen.seconds, seen.once):,.1f} min; peak memory so far {_peak():.1f} GiB"
    else:
        held = sum(parameter.nbytes for parameter in module.parameters()) / 2**30
        takes = (
            f"at most {minutes(plan, _forward(module)):,.2g} min for each token or pixel of a record; {held:.1f} GiB"
        )
        takes += " of weights"
    return settings, (
        f"# settings='auto', {how}, in {time.monotonic() - began:.0f} s: {weights.d:,} weights, {plan.steps:,} steps of"
        f" {points} evaluations of {plan.expected_batch:,.0f} records, {takes}; the same again:\n"
        + "for name, weight in model.named_parameters():\n" * narrowed
        + f"    weight.requires_grad_(name in {list(weights.names)})\n" * narrowed
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
    # The gradient of a linear layer is the product of its outputs' gradient and its inputs, which are taken to be +-1
    columns = max((math.prod(shape[1:]) for shape in matrices), default=weights.d)
    return _Kind("a head or a small model", 0.7 * math.sqrt(columns), 1e-2, 1.0, 1000)


class _Public:
    """What is measured on public records: settings for a run, and how long the run takes.

    Attributes:
        smoothing: the smoothing lambda; 0 for exact differences.
        norm: the median norm of a record's gradient.
        micro_batch, at_once: how many records, and how many points of a step, fit into one pass.
        once: how many seconds it takes to read a record for the first time, when frozen layers run.
        seconds: how long the evaluation of one record at one point takes.
    """

    def __init__(
        self, weights: Weights, evaluation: Evaluation, count: int, rule: Difference, settings: Any, began: float
    ) -> None:
        self._weights, self._evaluation, self._began = weights, evaluation, began
        weights.guarded = False  # Losses that read weights unseen are looked for and refused at the start of the run
        rows, read = np.random.default_rng(0).permutation(count)[:_MOST], 0
        while read < len(rows) and (read < 2 * _FEW or time.monotonic() - began < _READING):
            self._say(f"read {read} of {len(rows)} public records")
            evaluation.batch(rows[read : read + _FEW])  # This runs the frozen layers, whose outputs are kept
            read += _FEW
        self._rows, self.once = rows[:read], (time.monotonic() - began) / read
        few, start = self._rows[:_FEW], time.monotonic()
        own, tried, width = rule if rule.smoothing else DIFFERENCES["central"], 0, settings["smoothing"] or 1e-2
        best = math.inf, width
        for tried in range(3):
            (one, _), (half, _) = (self._slopes(own, width / 10**tried / part, few, 4) for part in (1, 2))
            change = float(np.linalg.norm(one - half) / max(float(np.linalg.norm(half)), 1e-300))
            best = min(best, (change, width / 10**tried))
            if change <= 0.01 or time.monotonic() - began > 1.5 * _READING:
                break
        width = best[1]
        self.seconds = (time.monotonic() - start) / ((tried + 1) * 10 * len(few))
        some = self._rows[: max(_FEW, int(_PILOT / (9 * self.seconds)))]
        self._say("measuring gradients")
        differences, self._loss = self._slopes(own, width, some, 8)
        self.smoothing = width if rule.smoothing else 0.0
        self.norm = float(np.median(np.sqrt(np.mean(differences**2, axis=1))))
        flat = f"the losses of half of its records do not change at a smoothing of {width:g}"
        check.precondition(self.norm > 0, f"public_data must show a slope: {flat}")
        self._fit(rule, settings)

    def _slopes(self, rule: Difference, width: float, rows: Any, count: int) -> tuple[Array, float]:
        """Return the differences of records along `count` directions by a rule with the smoothing `width`, shape
        (records, count), and the mean loss. `rows` has the numbers of the public records. Raises ValueError for losses
        that are not finite."""
        points = rule.at(range(count), width)
        parts = [self._evaluation.batch(part) for part in np.array_split(rows, math.ceil(len(rows) / _FEW))]
        values = np.concatenate([self._evaluation.at(self._weights, points, part) for part in parts], axis=1)
        if not np.isfinite(values).all():
            raise ValueError(f"losses of public_data must be finite at a width of {width:g}; got others")
        return rule.combine(values, width), float(values.mean())

    def _fit(self, rule: Difference, settings: Mapping[str, Any]) -> None:
        points, weights = rule.at(range(settings["directions_per_step"]), self.smoothing), self._weights
        few, device = self._rows[:_FEW], weights.parameters[0].device
        batch = self._evaluation.batch(few)
        weights.directions = Directions(bytes(16), settings["direction"], settings.get("shape", ""))
        with _Largest() as largest:  # type: ignore[no-untyped-call]
            one = self._evaluation.at(weights, points[:2], batch)
        memory = torch.cuda.get_device_properties(device).total_memory >> 4 if device.type == "cuda" else 1 << 28
        fit = max(1, memory * len(few) // max(1, largest.bytes))
        self.micro_batch = settings.get("micro_batch", 1 << min(6, fit.bit_length() - 1))
        self.at_once = settings.get("points_at_once", min(len(points), max(1, fit // self.micro_batch)))
        if self.at_once > 1 and "points_at_once" not in settings:
            together = one + math.inf
            with suppress(Exception):  # losses for several points in one pass may raise anything
                together = self._evaluation.at(weights, points[:2], batch, 2)
            if not np.abs(together - one).max() <= rounding(float(torch.finfo(torch.float32).eps), one):
                self.at_once = 1
        some, start = self._rows[: self.micro_batch], time.monotonic()
        if self.seconds * len(some) * len(points) < _PILOT:
            self._evaluation.at(weights, points, self._evaluation.batch(some), self.at_once)
            self.seconds = (time.monotonic() - start) / (len(some) * len(points))

    def factor(self, guess: float, points: int, plan: Plan, plan_of: Callable[[int], Plan]) -> float | None:
        """Return the number f, of those tried, for which a short run on public records ends at the least loss.

        At step t of T a run has the step size f sqrt(1000/T) (1 - t/T)/norm^2, where norm is the median norm of a
        record's gradient. The first run has f = `guess`, and none begins after 50 seconds of choosing. `plan` is the
        plan of the private run, a step of which evaluates `points` points, and plan_of(T) is a like plan with T steps.
        Returns None if a run that is long enough to tell, of 30 steps, would take more than 24 seconds.
        """
        cost, most = points * self.seconds, min(plan.steps, 10 * _FEWEST_STEPS)
        rows = self._rows[::2][: max(_FEWEST_ROWS, int(_PILOT / (cost * most)))]
        steps = min(most, max(_FEWEST_STEPS, int(_PILOT / (cost * len(rows)))))
        if steps * cost * len(rows) > 3 * _PILOT:
            return None
        plan, before = plan_of(steps), self._weights.values()
        found: dict[int, tuple[float, float]] = {}

        def at(power: int) -> float:
            if power not in found and time.monotonic() - self._began < _CHOOSING and abs(power) <= 6:
                self._say(f"short run {len(found) + 1} of at most 8")
                try:
                    found[power] = self._tried(plan, rows, _first(guess * 10 ** (power / 2), steps, self.norm))
                finally:
                    self._weights.load_values(before)
            return found[power][0] if power in found else math.inf

        at(0)
        at(round(2 * math.log10(found[0][1])))
        best = min(found, key=at)
        for way in (1, -1):
            while at(best + way) < at(best):
                best += way
        return guess * 10 ** (best / 2)

    def _tried(self, plan: Plan, rows: Any, first: float) -> tuple[float, float]:
        """Make a short run on the public records with the numbers `rows`, all in each step, with the noise of the
        averages that `plan` releases and a step size that falls from `first` to 0.

        Returns the mean loss of other public records at its end, infinity if it diverges; and by what to multiply
        `first` in the next try: if its releases show clearly that it hardly moved or diverged (`optim.verdict`), the
        loss at its start over how far they say that the loss fell, from 1/1000 to 1000; else 1.
        """
        release = plan.release.with_noise(plan.noise_multiplier * len(rows) / plan.expected_batch)
        falling = _Falling(first, plan.steps)
        sizes = tuple(falling(step) for step in range(plan.steps))
        plan = replace(plan, n=len(rows), step=replace(release, sampling=FullBatch()), step_sizes=sizes)
        sums = BatchSum(plan, self._weights, self._evaluation, Ranks(), self.micro_batch, self.at_once)
        descent, noise = Descent(plan, max(self._loss, 1e-6)), SeededNoise(0)
        for number in range(plan.steps):
            record = Record(number, tuple(plan.noisy(sums.total(number, rows), noise).tolist()))
            self._weights.move_(plan.moves(*record))
            descent.add(record)
        other, found = self._rows[1::2], descent.verdict
        batches = map(self._evaluation.batch, np.array_split(other, math.ceil(len(other) / self.micro_batch)))
        loss = float(np.concatenate([self._evaluation.at(self._weights, [(0, 0.0)], one)[0] for one in batches]).mean())
        if not math.isfinite(loss) or found.word == "diverges":
            loss = math.inf
        wrong = found.word in ("diverges", "stands still") and found.descent > found.error
        return loss, min(max(self._loss / found.descent, 1e-3), 1e3) if wrong else 1.0

    def _say(self, what: str) -> None:
        if watched():
            bar = "#" * round(20 * min(1.0, (time.monotonic() - self._began) / _CHOOSING))
            print(f"\r[{bar:20}] choosing settings: {what:40}", end="", file=sys.stderr, flush=True)


class _Largest(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """A context manager whose attribute `bytes` is the size of the largest tensor that an operation inside it returned,
    by which `choose` sets how many records are evaluated at a time."""

    bytes = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        self.bytes = max(
            self.bytes, *(leaf.nbytes for leaf in _pytree.tree_leaves(result) if isinstance(leaf, Tensor)), 0
        )
        return result


def _first(factor: float, steps: int, norm: float) -> float:
    return factor * math.sqrt(1000 / steps) / norm**2


def _short(value: float) -> float:
    return float(f"{value:.3g}")  # The program that repeats the choice then shows the value itself.


def _forward(module: nn.Module) -> float:
    """Return about how many seconds the module takes for one token, if its time is that of a matrix product with as
    many numbers as it has weights, on the CPU."""
    x, y, start = torch.ones(256, 1024), torch.ones(1024, 1024), time.monotonic()
    x @ y
    return sum(p.numel() for p in module.parameters()) * (time.monotonic() - start) / (256 * 1024**2)


def _peak() -> float:
    """Return the most memory that was held so far, in GiB: of the GPU, or else of the process (0 if unknown)."""
    if torch.cuda.is_available():
        return torch.cuda.max_memory_allocated() / 2**30
    with suppress(ImportError):
        import resource

        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    return 0.0
