"""Groups: what releases cost data sets that differ in up to k records, so a user who owns up to k of them.

Given the batch's other records, the outputs under the two data sets are mixtures in which, with a probability w, some
of the k records are in the batch and move the sum by at most k times what one may.

- poisson: w = 1 - (1-q)^k. Whatever mixture of shifts of at most k clips the records bring, no set of outputs of a
  given probability without them has more of it than a half-space has under the shift by k clips (Neyman and Pearson).
  So the pair of one record at rate w and noise multiplier s/k dominates, in every relation; for Laplace noise too,
  with half-lines.
- cyclic-poisson: the same at the rate b q of a turn. Records of several groups have their turns in steps of one round
  of b: given that any is drawn the round's outputs are shifted by a vector of norm at most k, chosen adaptively.
- fixed-size (replace-one, zero-out): w <= k q. Where j of the group's records take others' places, sums move as those
  of one record and of one that makes way, j times as far; the divergence is at most the mean over j, and rises with j,
  which gives the pair of one record at rate w and s/k.
- full, fixed-order: every batch's change is at most k times one record's, in no more batches; full is exact.

Each is a dominating pair of one release, so histories compose (`group_release`). Any history, by one record after
another: delta_k(epsilon) <= sum over i < k of e^(i epsilon/k) delta(epsilon/k). The smaller of both counts: where noise
is little beside k clips and records are seldom drawn together, it is the second.
"""

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from dpzero_theory import check
from dpzero_theory.privacy.accountant import delta_of_history, epsilon_of_history
from dpzero_theory.privacy.bracket import Bracket
from dpzero_theory.privacy.calibration import calibrate_noise_multiplier
from dpzero_theory.privacy.relation import Relation
from dpzero_theory.privacy.sampling import CyclicPoisson
from dpzero_theory.privacy.step import Release, Steps, releases_of
from dpzero_theory.search import smallest_real

_ROUNDING = 1e-15
_MECHANISMS = ("gaussian", "discrete-gaussian", "laplace")
_MOST_EPSILON = 700.0
_ONE_BY_ONE = "one record after another"
_NOTHING = Bracket(0.0, math.inf, math.inf, "none")


def group_release(release: Release, size: int) -> Release:
    """Releases whose certified upper ends hold for `release` and data sets that differ in up to `size` records.

    Args:
        release: Gaussian or Laplace noise; sampling full, poisson, cyclic-poisson, fixed-size (not add-remove) or
            fixed-order.
        size: k >= 1.

    Raises:
        ValueError: another mechanism or sampling, or a size below 1.
    """
    k = check.integer("size", size)
    rate, kind = release.sample_rate, release.step.sampling
    if release.mechanism not in _MECHANISMS:
        raise ValueError(f"release must have mechanism {', '.join(_MECHANISMS)} for a group; got {release.mechanism}")
    if isinstance(kind, CyclicPoisson):
        rate = min(_any(kind.groups * rate, k) / kind.groups, kind.most_rate)
    elif kind.name == "poisson":
        rate = _any(rate, k)
    elif kind.name == "fixed-size" and release.relation is not Relation.ADD_REMOVE:
        rate = min(k * rate, 1.0)
    elif rate < 1 and kind.name != "fixed-order":
        raise ValueError(
            "release must be full, poisson, cyclic-poisson, fixed-size (not add-remove) or fixed-order for a group;"
            f" got {release.sampling}, {release.relation}"
        )
    return release.drawn_as(kind.at(rate)).with_noise(release.noise_multiplier / k)


def _any(rate: float, size: int) -> float:
    """The chance that any of so many records is drawn."""
    if size == 1 or rate >= 1:
        return rate
    return min(-math.expm1(size * math.log1p(-rate)) * (1 + _ROUNDING), 1.0)


def group_delta(history: Steps, epsilon: float, *, size: int) -> Bracket:
    """delta(epsilon) of `history` for data sets that differ in up to `size` records: the smaller of both bounds.

    The lower end is that of one record, unless all batches are full. Arguments and errors as of
    `accountant.delta_of_history`; size: k >= 1.
    """
    k, eps = check.integer("size", size), check.real("epsilon", epsilon, at_least=0)
    made = releases_of(history)
    one = delta_of_history(made, eps)
    if k == 1:
        return one
    together = _together(made, k)
    found = delta_of_history(together, eps) if together is not None else _NOTHING
    if _exact(made, together):
        return found
    upper = _one_by_one(made, eps / k, k)
    if upper < found.upper:
        found = Bracket(0.0, upper, upper, _ONE_BY_ONE)
    return _bracket(k, found, one)


def group_epsilon(history: Steps, delta: float, *, size: int) -> Bracket:
    """The smallest epsilon at `delta`; otherwise as `group_delta`."""
    k, made = check.integer("size", size), releases_of(history)
    one = epsilon_of_history(made, delta)
    if k == 1:
        return one
    together = _together(made, k)
    found = epsilon_of_history(together, delta) if together is not None else _NOTHING
    if _exact(made, together):
        return found
    most = min(found.upper / k, _MOST_EPSILON)
    share = smallest_real(lambda x: _one_by_one(made, x, k) <= delta, max(one.lower, 1e-6), most, 1e-3)
    if share is not None:
        upper = share * k * (1 + _ROUNDING)
        found = Bracket(0.0, upper, upper, _ONE_BY_ONE)
    return _bracket(k, found, one)


def group_noise(*, target_epsilon: float, target_delta: float, size: int, **releases: Any) -> Bracket:
    """The smallest noise multiplier that meets the target for groups of `size` records, to 1e-4.

    Arguments and errors as `calibration.calibrate_noise_multiplier`. The lower end is that of one record.
    """
    k = check.integer("size", size)
    one = calibrate_noise_multiplier(target_epsilon=target_epsilon, target_delta=target_delta, **releases)
    if k == 1:
        return one
    unit = Release(one.value, **releases)
    if unit.sample_rate == 1:
        more = k * one.upper * (1 + _ROUNDING)
        return replace(one, lower=k * one.lower, value=more, upper=more)

    def meets(noise: float) -> bool:
        return group_delta([unit.with_noise(noise)], target_epsilon, size=k).upper <= target_delta

    value = smallest_real(meets, one.value, 2 * k * k * one.value, 1e-4)
    check.precondition(value is not None, f"target must be met with noise {2 * k * k * one.value:g}; got groups of {k}")
    assert value is not None
    return _bracket(k, Bracket(0.0, value, value, "search"), one)


def _together(history: Sequence[Release], size: int) -> list[Release] | None:
    try:
        return [group_release(release, size) for release in history]
    except ValueError:
        return None


def _exact(history: Sequence[Release], together: Sequence[Release] | None) -> bool:
    return together is not None and all(release.sample_rate == 1 for release in history)


def _one_by_one(history: Sequence[Release], epsilon: float, size: int) -> float:
    """The bound of the module at `size` times epsilon."""
    each = delta_of_history(history, epsilon).upper
    times = sum(math.exp(min(i * epsilon, _MOST_EPSILON)) for i in range(size))
    return min(each * times * (1 + 1e-12), 1.0)


def _bracket(size: int, found: Bracket, one: Bracket) -> Bracket:
    note = f"groups of {size} records: the upper end is certified, the lower end is that of one record"
    lower = min(one.lower, found.upper)
    return Bracket(lower, found.upper, found.upper, found.method, (*one.notes, note))
