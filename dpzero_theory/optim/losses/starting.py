"""Starting values for a private run, from public or synthetic records alone and by forward passes alone.

    start = starting_values(model, losses, public, declared="public", n=len(data), evaluations=4096, target_epsilon=2,
                            target_delta=1e-5, expected_batch=256, relation="add-remove", sampling="poisson")
    run = make_private_with_epsilon(model, losses, data, folder="run", **start.target)

Measured are, at the model's weights x, along random directions u_k at the distance lambda, on some public records i:
the differences s_ik = (f_i(x + lambda u_k) - f_i(x - lambda u_k))/(2 lambda), or those of another rule, whose root mean
square over k estimates the gradient norm ||grad f_i||; and the second differences of the mean loss F. The mean of these
estimates tr(H), H the Hessian of F, and their variance is 2 ||H||_F^2 (with random signs, without the diagonal). The
settings are then, in the notation of `theory/sharp/proof.md` (K directions a step, T steps, clip C, step size alpha),

    lambda   the largest of 1e-1 ... 1e-4 at which halving it changes the differences by at most 1%; if there is none,
             the one at which halving it changes them least. Left out are those at which rounding, as it is seen on the
             public records, would be visible (`isolation.visible`, for half the clip), unless isolation is "exact" or
             none would be left
    K        the power of 4 nearest to sqrt(K T)/8, at most 256 (`benchmarks.equal_evaluations`)
    C        sqrt(K) times the median of ||grad f_i||
    alpha    min(K/(tr(H) + (K + 1) h), sqrt(2 gap K/(T tr(H) (sigma^2 + v)))), h = ||H||_F, gap = F(x_0) - least_loss,
             sigma the noise of a released average, v = (the mean of ||grad f_i||^2)/(the expected batch size)

The step size has the theorem's form: the smaller of the largest stable one and the minimiser of gap/(alpha T) +
alpha tr(H) (sigma^2 + v)/(2 K). The theorem's prescription puts bounds into it that hold for every record at every
point, as a certificate needs; here averages of what is measured are put in. The theorem's clip is 1 to 2.4 times the
largest gradient norm of a record, and here it is the median. As sigma is proportional to the clip, and alpha to
1/sigma, a certified step size is smaller than the best one by about as much as its clip is larger (on digits 15 and 11
times, on a sentence encoder 3 and 4 times: `benchmarks.prescription`). Nothing is certified by these values.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Unpack

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from dpzero_theory import check
from dpzero_theory.difference import DIFFERENCES
from dpzero_theory.optim.losses.evaluation import Evaluation, Losses, on_host
from dpzero_theory.optim.losses.identity import shared
from dpzero_theory.optim.losses.isolation import ISOLATIONS, visible
from dpzero_theory.optim.losses.records import Collate, Data, fetcher, require_data
from dpzero_theory.optim.plan import Plan
from dpzero_theory.optim.step.differences import RULES, Point, Rule
from dpzero_theory.optim.weights.directions import Directions
from dpzero_theory.optim.weights.module import Weights
from dpzero_theory.privacy.step import Drawing

DECLARED = ("public", "synthetic")
WIDTHS = (1e-1, 1e-2, 1e-3, 1e-4)
"""The distances lambda that are tried, from the largest on."""
MOST_RECORDS, DIRECTIONS, TRIED = 256, 32, 4
"""How many public records are looked at at most; along how many directions they are measured at the chosen distance;
and along how many at each distance that is tried before."""
_LITTLE = 0.01
"""The distance lambda that is chosen is the largest one whose halving changes the differences by at most this share of
their L2 norm."""
_KEY = bytes(16)
"""The key from which the directions are computed along which public records are looked at. It is always the same, since
it need not be random or secret."""

Array = NDArray[np.float64]
Evaluate = Callable[[nn.Module], Tensor]
"""A function from the module to the losses of some records, shape (records,)."""


@dataclass(frozen=True)
class Start:
    """Settings of a run and what they come from.

    target: keyword arguments of `make_private_with_epsilon`, including those that were given. norm: the median over the
    public records of the gradient norm ||grad f_i||. trace, frobenius: estimates of the trace and the Frobenius norm of
    the Hessian of the mean loss F. noise: sigma, the standard deviation of the noise on a released average. assumed:
    sentences that say what the values rest on.
    """

    target: dict[str, Any]
    norm: float
    trace: float
    frobenius: float
    noise: float
    assumed: tuple[str, ...]


class Measured(NamedTuple):
    """What was measured on public records.

    differences: of each record along each direction, shape (records, directions). second: the second differences of the
    mean loss F, shape (directions,). loss: F at the module's weights.
    """

    differences: Array
    second: Array
    loss: float

    @property
    def norms(self) -> Array:
        """Estimates of the gradient norm ||grad f_i|| of each record, shape (records,). Each is the root mean square of
        the record's differences over the directions."""
        return _norms(self.differences)


def starting_values(
    module: nn.Module,
    losses: Losses,
    public_data: Data,
    *,
    declared: str,
    n: int,
    evaluations: int,
    target_epsilon: float,
    target_delta: float,
    expected_batch: float,
    directions_per_step: int | None = None,
    direction: str = "rademacher",
    least_loss: float = 0.0,
    difference: str = "central",
    isolation: str = "probed",
    collate: Collate = None,
    private_data: Data | None = None,
    **drawing: Unpack[Drawing],
) -> Start:
    """Choose clip, step size, smoothing, K and T for a run on n private records.

    Args:
        module: the module to train, with the weights that the run begins with.
        losses: a function (module, batch) -> a tensor of shape (batch,), one loss for each record.
        public_data: the records that are looked at, 256 of them at most.
        declared: what they are, `public` or `synthetic`. Only if this is true do the values cost no privacy.
        evaluations: the product K T of directions a step and steps. It is the number of loss differences of a record
            that is in every batch.
        n: the number of private records.
        target_epsilon, target_delta: the privacy budget of the run, epsilon > 0 and 0 < delta < 1.
        expected_batch: the expected number of records in a batch of the run, above 0 and at most n.
        relation, sampling: which data sets are neighbours, and how batches are drawn, as in `Plan.for_target`.
        directions_per_step: K, if it is not to be chosen.
        direction: the law of the random directions, a name in `dpzero_theory.DIRECTIONS`.
        least_loss: a lower bound on the loss.
        collate: makes the batch of a list of records; torch's default_collate if None.
        difference: the run's difference rule, a name of `dpzero_theory.difference.DIFFERENCES`. The smoothing is chosen
            for it; it is 0 for exact differences, of which central ones at the steadiest distance are what is measured.
        isolation: the run's, `probed` or `exact`. With `exact` rounding is no reason for a larger smoothing.
        private_data: if given, public records that it holds too are refused.

    Raises:
        ValueError: an argument outside its range, records that are also private ones, losses that are not finite.
        PreconditionError: the losses of half of the public records do not change along the directions.
    """
    check.choice("declared", declared, DECLARED)
    check.choice("isolation", isolation, ISOLATIONS)
    require_other(public_data, private_data)
    k = nearest_directions(evaluations) if directions_per_step is None else directions_per_step
    check.integer("directions_per_step", k, at_most=check.integer("evaluations", evaluations))
    weights = Weights(module, Directions(_KEY, direction))
    shifts = DIFFERENCES[difference].smoothing
    records = _Records(losses, public_data, collate)
    rule = RULES[difference if shifts else "central"]
    rounding = records.rounding(weights) if shifts and isolation == "probed" else 0.0
    batch = check.real("expected_batch", expected_batch, above=0)

    def shows(width: float, norm: float) -> bool:
        return visible(rounding * rule.rounded(width), batch, math.sqrt(k) * norm / 2)

    found, width = _measured(weights, records, rule, shows)
    smoothing = width if shifts else 0.0
    steps, norm = evaluations // k, float(np.median(found.norms))
    check.precondition(norm > 0, "public_data must show a slope: half of its records' losses do not change")
    target: dict[str, Any] = {
        "target_epsilon": target_epsilon, "target_delta": target_delta, "steps": steps,
        "expected_batch": expected_batch, "clip": math.sqrt(k) * norm, "smoothing": smoothing, **drawing,
        "direction": direction, "directions_per_step": k, "difference": difference,
    }  # fmt: skip
    plan = Plan.for_target(n=n, step_size=0.0, **target)
    noise = plan.noise_multiplier * plan.clip / plan.expected_batch
    variance = noise**2 + float(np.mean(found.norms**2)) / plan.expected_batch
    frobenius = math.sqrt(max(float(np.var(found.second, ddof=1)) / 2, np.finfo(float).tiny))
    trace = max(float(np.mean(found.second)), frobenius)
    gap = check.real("the loss on public_data", found.loss, above=least_loss) - least_loss
    stable = k / (trace + (k + 1) * frobenius)
    step_size = min(stable, math.sqrt(2 * gap * k / (steps * trace * variance)))
    return Start(
        {**target, "step_size": step_size},
        norm,
        trace,
        frobenius,
        noise,
        _assumed(declared, found, private_data, shows(width, norm)),
    )


def public_clip(
    module: nn.Module,
    losses: Losses,
    public_data: Data,
    data: Data,
    *,
    smoothing: float,
    directions_per_step: int = 1,
    direction: str = "rademacher",
    difference: str = "central",
    collate: Collate = None,
) -> float:
    """Return a clip for a run: sqrt(K) times the median gradient norm of public records, at the module's weights.

    Args:
        module, losses, collate: the module, the function that gives one loss for each record of a batch, and the one
            that makes a batch of records.
        public_data: the records that are looked at, 256 of them at most.
        data: the private records, of which none may be public too.
        smoothing: lambda, the distance at which losses are evaluated; 0 with difference="exact".
        directions_per_step: K >= 1.
        direction: the law of the random directions, a name in `dpzero_theory.DIRECTIONS`.
        difference: the run's difference rule, a name in `dpzero_theory.difference.DIFFERENCES`.

    Raises:
        ValueError: records that are also private ones, or losses that are not finite.
        PreconditionError: the losses of half of the public records do not change along the directions.
    """
    require_other(public_data, data)
    weights = Weights(module, Directions(_KEY, direction))
    columns = _differences(weights, _Records(losses, public_data, collate), RULES[difference], smoothing, DIRECTIONS)
    norm = float(np.median(_norms(columns)))
    check.precondition(norm > 0, "public_data must show a slope: half of its records' losses do not change")
    return math.sqrt(directions_per_step) * norm


def require_other(public_data: Data, data: Data | None) -> None:
    """Raise ValueError if some record of `public_data` is in the private `data` too, as far as records can be compared.

    Where `data` is None nothing is compared.
    """
    require_data(public_data, "public_data")
    if data is not None and (both := shared(data, public_data)):
        raise ValueError(f"public_data must hold no private records; got {both} that data holds too")


def nearest_directions(evaluations: int) -> int:
    """Return a number K of directions a step: the power of 4 nearest to sqrt(K T)/8 in ratio, between 1 and 256.

    evaluations: the product K T of directions a step and steps, an integer >= 1.
    """
    count = check.integer("evaluations", evaluations)
    power = round(math.log(max(math.sqrt(count) / 8, 1), 4))
    found: int = 4 ** min(power, 4)
    return found


class _Records:
    """Computes the losses of up to `MOST_RECORDS` = 256 records of a data set, evenly spread, at the module's current
    weights: called with the module, it returns them, shape (records,)."""

    def __init__(self, losses: Losses, data: Data, collate: Collate) -> None:
        count = min(len(data), MOST_RECORDS)
        self._evaluation = Evaluation(losses, fetcher(data, collate))
        self._parts = np.array_split(np.arange(count) * len(data) // count, math.ceil(count / 64))

    def __call__(self, module: nn.Module) -> Tensor:
        return torch.cat(
            [self._evaluation.where_they_are(module, self._evaluation.batch(part)) for part in self._parts]
        )

    def rounding(self, weights: Weights) -> float:
        """Return how much rounding changes a record's loss at the module's weights, >= 0.

        It is the largest change of a loss of the first 64 records or fewer when they are evaluated among half as many,
        and alone, or the spacing of floating-point numbers at the largest of these losses if that is more, as in
        `probe`.
        """
        every = self._parts[0]
        together, half, alone = (
            _found(weights, self._among(every[:count]), [(0, 0.0)], 0.0)[0]
            for count in (len(every), math.ceil(len(every) / 2), 1)
        )
        size = np.abs(together).max()
        single = bool((together.astype(np.float32) == together).all())
        spacing = float(np.spacing(np.float32(size) if single else size))
        changes = (np.abs(few - together[: len(few)]).max() for few in (half, alone))
        return float(max(spacing, *changes))

    def _among(self, part: NDArray[np.int_]) -> Evaluate:
        return lambda module: self._evaluation.where_they_are(module, self._evaluation.batch(part))


def _norms(differences: Array) -> Array:
    found: Array = np.sqrt(np.mean(differences**2, axis=1))
    return found


def _found(weights: Weights, records: Evaluate, points: Sequence[Point], width: float) -> Array:
    """Return the losses (or derivatives) of the records at these points beside the module's weights, float64 of shape
    (points, records).

    Raises ValueError where some are not finite; width: the distance lambda of the points, for the message.
    """
    found = on_host(weights.evaluated(points, records))
    if not np.isfinite(found).all():
        raise ValueError(f"losses of public_data must be finite at a width of {width:g}; got others")
    return found


def _differences(weights: Weights, records: _Records, rule: Rule, width: float, count: int) -> Array:
    """Return the differences of the records along the first `count` directions, shape (records, count).

    rule: the difference rule. width: the distance lambda.
    """
    return rule.combine(_found(weights, records, rule.points(range(count), width), width), width)


def _measure(weights: Weights, records: _Records, rule: Rule, width: float, count: int) -> Measured:
    """Measure the records' differences by the rule, and second differences of their mean loss, along the first `count`
    directions u.

    Both come from the same evaluations, at the weights x and at x + width u and x - width u.
    """
    points = [(0, 0.0), *RULES["central"].points(range(count), width)]
    found = dict(zip(points, _found(weights, records, points, width), strict=True))
    loss = float(found[0, 0.0].mean())
    differences = rule.combine(np.stack([found[point] for point in rule.points(range(count), width)]), width)
    sides = [(found[number, width].mean(), found[number, -width].mean()) for number in range(count)]
    return Measured(differences, np.array([(plus - 2 * loss + minus) / width**2 for plus, minus in sides]), loss)


def _measured(
    weights: Weights, records: _Records, rule: Rule, shows: Callable[[float, float], bool]
) -> tuple[Measured, float]:
    """Measure public records at the distances lambda that `_steadiest` chooses for differences and second differences.

    These two may have different distances. Returns what was measured, and the distance of the differences. weights: the
    module's trained ones. rule: the difference rule. shows: (a distance, the median gradient norm) -> whether rounding
    would be visible at it; such distances are not chosen for the differences, unless all are such.
    """
    tried = {width: [_measure(weights, records, rule, w, TRIED) for w in (width, width / 2)] for width in WIDTHS}
    free = [width for width, pair in tried.items() if not shows(width, float(np.median(pair[0].norms)))] or WIDTHS
    first = _steadiest({width: [one.differences for one in tried[width]] for width in free})
    second = _steadiest({width: [one.second for one in pair] for width, pair in tried.items()})
    found = _measure(weights, records, rule, first, DIRECTIONS)
    curved = found if second == first else _measure(weights, records, rule, second, DIRECTIONS)
    return Measured(found.differences, curved.second, found.loss), first


def _steadiest(pairs: dict[float, Sequence[Array]]) -> float:
    """Return the largest distance whose halving changes the results, in L2 norm, by at most a share `_LITTLE` = 0.01 of
    those at half the distance. If there is none, it is the distance whose halving changes them by the smallest share.
    pairs: for each distance, from the largest on, the results at it and at half of it.
    """

    def change(width: float) -> float:
        one, half = pairs[width]
        size = float(np.linalg.norm(half))
        return float(np.linalg.norm(one - half)) / size if size > 0 else math.inf

    return next((width for width in pairs if change(width) <= _LITTLE), min(pairs, key=change))


def _assumed(declared: str, found: Measured, private_data: Data | None, shown: bool) -> tuple[str, ...]:
    looked = "none of them is a private record, as far as records can be compared"
    rounded = "rounding may be visible at every smoothing that was tried: run with isolation='exact'"
    return (
        f"the {len(found.norms)} records that were looked at are {declared}, as was declared",
        looked if private_data is not None else "that none of them is a private record was not looked at",
        "private records have gradients and curvature like theirs, at the start and along the run",
        "averages, not bounds: no theorem certifies these values, and they cost no privacy",
        *([rounded] if shown else []),
    )
