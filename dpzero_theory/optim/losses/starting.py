"""Starting values for a private run, from public or synthetic records alone and by forward passes alone.

    start = starting_values(model, losses, public, n=len(data), evaluations=4096, target_epsilon=2, target_delta=1e-5,
                            expected_batch=256, relation="add-remove", sampling="poisson")
    run = make_private_with_epsilon(model, losses, data, folder="run", **start.target)

The differences s_ik of public records i along Gaussian directions u_k, at the module's weights x_0, estimate gradients:
the root mean square over k of s_ik estimates ||grad f_i||, where f_i is the record's loss. The second differences of
the mean loss F along the u_k have the mean tr(H) and the variance 2 ||H||_F^2, with H the Hessian of F. For T steps of
K directions, of which the caller chooses the product K T, the settings are

    lambda   the smoothing: the largest of 1e-1, 1e-2, 1e-3 and 1e-4 whose halving changes the differences by at most
             1%, else the one whose halving changes them least
    K        the power of 4 nearest to sqrt(K T)/8, from 1 to 256
    C        the clip: sqrt(K) times the median of ||grad f_i||
    alpha    the step size: min(K/(tr(H) + (K + 1) h), sqrt(2 F(x_0) K/(T tr(H) (sigma^2 + v)))), where h = ||H||_F,
             sigma is the standard deviation of the noise of a released average, and
             v = (the mean of ||grad f_i||^2)/(the expected batch size). Losses are taken to be >= 0

The step size has the form of the theorem in `theory/sharp/proof.md`, with averages in the place of its bounds. The
module is evaluated at shifted weights, of which nothing is written (`weights.module`); buffers and modes are put back,
no generator of random numbers is touched, and no file is written.
"""

import math
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from torch import nn

from dpzero_theory import check
from dpzero_theory.check import Array
from dpzero_theory.difference import DIFFERENCES
from dpzero_theory.optim.losses.evaluation import Evaluation, Losses
from dpzero_theory.optim.losses.identity import shared
from dpzero_theory.optim.losses.records import Collate, Data, require_data
from dpzero_theory.optim.losses.users import ByUser
from dpzero_theory.optim.plan import Plan
from dpzero_theory.optim.weights.directions import Directions
from dpzero_theory.optim.weights.module import Weights

_WIDTHS = (1e-1, 1e-2, 1e-3, 1e-4)
"""The values of the smoothing lambda that are tried."""
_MOST_RECORDS, _DIRECTIONS, _TRIED = 256, 32, 4
"""How many records are looked at; along how many directions at the chosen lambda, and at each that is tried."""
_TOGETHER = 64  # Memory is bounded by evaluating this many records at a time, or texts of one user.


class Start(NamedTuple):
    """Settings of a run, and what they were computed from.

    Attributes:
        target: the settings, as keyword arguments of `make_private_with_epsilon`.
        norm: an estimate of the median norm of a public record's gradient.
        trace, frobenius: estimates of the trace and the Frobenius norm of the Hessian of the mean public loss.
        noise: the standard deviation of the noise of a released average: a released sum over expected_batch.
    """

    target: dict[str, Any]
    norm: float
    trace: float
    frobenius: float
    noise: float


def starting_values(
    module: nn.Module,
    losses: Losses,
    public_data: Data,
    *,
    n: int,
    evaluations: int,
    collate: Collate = None,
    private_data: Data | None = None,
    **settings: Any,
) -> Start:
    """Choose clip, step size, smoothing, directions_per_step K and steps T for a run on n private records.

    Args:
        module, losses, collate: as in `make_private`, with the weights that the run begins with.
        public_data: public or synthetic records, of which at most 256 are looked at; made by `by_user` if the run's
            records are, and n is then the number of private users.
        n: the number of private records.
        evaluations: the product K T, an integer >= 1; T is evaluations // K.
        private_data: the private records; if given, public records that they hold too are refused.
        settings: the other settings of the run, as `Plan.for_target` takes them: target_epsilon, target_delta,
            expected_batch, relation and sampling must be given; clip, step_size, smoothing and steps must not, as they
            are chosen; all others, directions_per_step too, may be.

    Returns:
        A `Start`, whose `target` has the settings that were given and those that were chosen.

    Raises:
        ValueError: an argument outside its range, records that are also private ones, losses that are not finite, or
            whose mean is not above 0.
        PreconditionError: the losses of half of the public records do not change along the directions.
    """
    check.integer("evaluations", evaluations)
    if chosen := settings.keys() & {"clip", "step_size", "smoothing", "steps"}:
        raise ValueError(f"{min(chosen)} must be left out, as it is chosen; got {check.shown(settings[min(chosen)])}")
    require_data(public_data, "public_data")
    power = round(math.log(max(math.sqrt(evaluations) / 8, 1), 4))
    k = settings.pop("directions_per_step", 4 ** min(power, 4))
    check.integer("directions_per_step", k, at_most=evaluations)
    own, others = (data.texts if isinstance(data, ByUser) else data for data in (private_data, public_data))
    if own is not None and (both := shared(own, others)):
        raise ValueError(f"public_data must hold no private records; got {both} that private_data holds too")
    # Public records are looked at along directions that need not be random or secret: the key is always 0. They are
    # Gaussian whatever those of the run are: ||H||_F is estimated from how u^T H u varies with u, and along random
    # signs the diagonal of H adds the same to all of them.
    directions = Directions(bytes(16), "gaussian", settings.get("shape", ""))
    if isinstance(public_data, ByUser):
        losses, collate = public_data.losses(losses), public_data.collate(collate, _TOGETHER)
    weights, evaluation = Weights(module, directions), Evaluation(losses, public_data, collate)
    records = np.unique(np.arange(_MOST_RECORDS) * len(public_data) // _MOST_RECORDS)
    parts = [evaluation.batch(part) for part in np.array_split(records, math.ceil(len(records) / _TOGETHER))]
    measure = partial(measured, weights, evaluation, parts)
    difference = settings.get("difference", "central")
    shifts = DIFFERENCES[difference].smoothing
    rule = difference if shifts else "central"
    tried = {width: [measure(rule, w, _TRIED) for w in (width, width / 2)] for width in _WIDTHS}
    width = steadiest({w: [one[0] for one in pair] for w, pair in tried.items()})
    curved = steadiest({w: [one[1] for one in pair] for w, pair in tried.items()})
    (differences, _, loss), (_, second, _) = (measure(rule, w, _DIRECTIONS) for w in (width, curved))
    norm = float(np.median(np.sqrt(np.mean(differences**2, axis=1))))
    flat = f"the losses of half of its records do not change at a smoothing of {width:g}"
    hint = "starting values are for losses that change with every weight, and not for a 0-1 error or another step"
    check.precondition(norm > 0, f"public_data must show a slope: {flat}; {hint}")
    target: dict[str, Any] = {
        **settings, "steps": evaluations // k, "clip": math.sqrt(k) * norm, "smoothing": width if shifts else 0.0,
        "directions_per_step": k,
    }  # fmt: skip
    plan = Plan.for_target(n=n, step_size=0.0, **target)
    noise = plan.noise_multiplier * plan.clip / plan.expected_batch
    variance = noise**2 + float(np.mean(differences**2)) / plan.expected_batch
    frobenius = math.sqrt(max(float(np.var(second, ddof=1)) / 2, np.finfo(float).tiny))
    trace = max(float(np.mean(second)), frobenius)
    gap = check.real("the loss on public_data", loss, above=0)
    step_size = min(k / (trace + (k + 1) * frobenius), math.sqrt(2 * gap * k / (plan.steps * trace * variance)))
    return Start({**target, "step_size": step_size}, norm, trace, frobenius, noise)


def measured(
    weights: Weights, evaluation: Evaluation, parts: list[Any], difference: str, width: float, count: int
) -> tuple[Array, Array, float]:
    """Evaluate the records of the batches `parts` at the weights x and at x +- lambda u, where lambda is `width`.

    Returns three results: estimates, by the rule `difference`, of the derivatives of each record's loss along the
    directions u_0 to u_(count - 1), shape (records, count); estimates of the mean loss's second
    derivatives u^T H u, shape (count,); and the mean loss at x. Raises ValueError for losses that are not finite.
    """
    rule = DIFFERENCES[difference]
    points = [(0, 0.0), *DIFFERENCES["central"].at(range(count), width)]
    values = np.concatenate([evaluation.at(weights, points, part) for part in parts], axis=1)
    if not np.isfinite(values).all():
        raise ValueError(f"losses of public_data must be finite at a width of {width:g}; got others")
    found = dict(zip(points, values, strict=True))
    loss = float(found[0, 0.0].mean())
    differences = rule.combine(np.stack([found[point] for point in rule.at(range(count), width)]), width)
    sides = [found[number, width].mean() + found[number, -width].mean() for number in range(count)]
    return differences, (np.array(sides) - 2 * loss) / width**2, loss


def steadiest(pairs: dict[float, list[Array]]) -> float:
    """Return the largest width lambda whose halving changes a result by at most 1%, or if none does so, by least.

    `pairs` has for each width, from the largest on, the results at it and at half of it, two arrays of one shape. The
    change is the norm of their difference over that of the second.
    """

    def change(width: float) -> float:
        one, half = pairs[width]
        size = float(np.linalg.norm(half))
        return float(np.linalg.norm(one - half)) / size if size > 0 else math.inf

    return next((width for width in pairs if change(width) <= 0.01), min(pairs, key=change))
