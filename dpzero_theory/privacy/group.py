"""Groups: what releases cost data sets that differ in up to k records, so a user who owns up to k of them.

Given the batch's other records, the outputs under the two data sets are mixtures in which, with a probability w, some
of the k records are in the batch and move the sum by at most k times what one may.

- poisson: w = 1 - (1-q)^k. Whatever mixture of shifts of at most k clips the records bring, no set of outputs of a
  given probability without them has more of it than a half-space has under the shift by k clips (Neyman and Pearson).
  So the pair of one record at rate w and noise multiplier s/k dominates, in every relation.
- fixed-size (replace-one, zero-out): w <= k q. An exchange of the group's records for others moves the sum by at most
  2 k clips; advanced joint convexity (Balle, Barthe and Gaboardi 2018) gives the pair at rate w and s/k.
- full, fixed-order: every batch's change is at most k times one record's, in no more batches; full is exact.

Each is a dominating pair of one release, so histories compose.
"""

import math
from collections.abc import Callable, Sequence

from dpzero_theory import check
from dpzero_theory.privacy.accountant import delta_of_history, epsilon_of_history
from dpzero_theory.privacy.bracket import Bracket
from dpzero_theory.privacy.relation import Relation
from dpzero_theory.privacy.release import Release

_ROUNDING = 1e-15


def group_release(release: Release, size: int) -> Release:
    """Releases whose certified upper ends hold for `release` and data sets that differ in up to `size` records.

    Args:
        release: Gaussian noise; sampling full, poisson, fixed-size (not add-remove) or fixed-order.
        size: k >= 1.

    Raises:
        ValueError: another mechanism or sampling, or a size below 1.
    """
    k = check.integer("size", size)
    rate, sampling = release.sample_rate, release.sampling
    if release.mechanism != "gaussian":
        raise ValueError(f"release must have mechanism gaussian for a group; got {release.mechanism}")
    if sampling == "poisson" and rate < 1:
        rate = min(-math.expm1(k * math.log1p(-rate)) * (1 + _ROUNDING), 1.0) if k > 1 else rate
    elif sampling == "fixed-size" and release.relation is not Relation.ADD_REMOVE:
        rate = min(k * rate, 1.0)
    elif rate < 1 and sampling != "fixed-order":
        raise ValueError(
            "release must be full, poisson, fixed-size (not add-remove) or fixed-order for a group;"
            f" got {sampling}, {release.relation}"
        )
    noise = release.noise_multiplier / k
    return Release(noise, release.steps, sampling=sampling, relation=release.relation, sample_rate=rate)


def group_delta(history: Sequence[Release], epsilon: float, *, size: int) -> Bracket:
    """delta(epsilon) of `history` for data sets that differ in up to `size` records.

    The lower end is that of one record, unless all batches are full. Arguments and errors as of `group_release` and
    `accountant.delta_of_history`.
    """
    return _bracket(history, size, lambda releases: delta_of_history(releases, epsilon))


def group_epsilon(history: Sequence[Release], delta: float, *, size: int) -> Bracket:
    """The smallest epsilon at `delta`; otherwise as `group_delta`."""
    return _bracket(history, size, lambda releases: epsilon_of_history(releases, delta))


def _bracket(history: Sequence[Release], size: int, cost: Callable[[Sequence[Release]], Bracket]) -> Bracket:
    found = cost([group_release(release, size) for release in history])
    exact = all(release.sample_rate == 1 for release in history)
    lower = found.lower if exact or size == 1 else min(cost(history).lower, found.upper)
    note = f"groups of {size} records: the upper end is certified, the lower end is that of one record"
    return Bracket(lower, found.upper, found.upper, found.method, (*found.notes, *(() if exact else (note,))))
