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

Each is a dominating pair of one release, so histories compose (`group_release`; a sampling says in
`Sampling.of_group` which batches count). Any history, by one record after
another: delta_k(epsilon) <= sum over i < k of e^(i epsilon/k) delta(epsilon/k). The smaller of both counts: where noise
is little beside k clips and records are seldom drawn together, it is the second. With fixed-size batches, add-remove,
the record after i others is removed from n - i, of which a batch holds B: that link's rate is B/(n - i), and every link
counts at the last one's, B/(n - k + 1). n is then at least the fewest records of which q is a share.
"""

import math
from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction
from typing import Unpack

from dpzero_theory import check
from dpzero_theory.bisection import smallest_real
from dpzero_theory.privacy.accountant import delta_of_history, epsilon_of_history, excess
from dpzero_theory.privacy.bracket import Bracket
from dpzero_theory.privacy.calibration import calibrated, settled
from dpzero_theory.privacy.relation import Relation
from dpzero_theory.privacy.sampling import FixedSize
from dpzero_theory.privacy.step import Release, Steps, Words, releases_of

_BOUND_ROUNDING = 1e-15
_MECHANISMS = ("gaussian", "discrete-gaussian", "laplace")
_MOST_EPSILON = 700.0
_MOST_SIZE = 10**9
_LEAST_SAMPLED_NOISE = 0.03
"""The least noise of a sampled batch, over the clips by which a group may move it, for the pair of a whole group:
that needs a grid of 1/noise cells."""
_VACUOUS = 50.0
"""The epsilon from which a note says that it protects nothing."""
_ONE_BY_ONE = "one record after another"
_NOTHING = Bracket(0.0, math.inf, math.inf, "none")


def group_release(release: Release, size: int) -> Release:
    """Releases whose upper ends hold for `release` and data sets that differ in up to `size` records.

    Args:
        release: Gaussian or Laplace noise; full, poisson, cyclic-poisson, fixed-size (not add-remove) or fixed-order
            batches.
        size: k >= 1.

    Raises:
        ValueError: another mechanism or sampling, or a size below 1.
    """
    k = check.integer("size", size)
    if release.mechanism not in _MECHANISMS:
        raise ValueError(f"release must have mechanism {', '.join(_MECHANISMS)} for a group; got {release.mechanism}")
    drawn = release.step.sampling.of_group(k, release.relation)
    if drawn is None:
        raise ValueError(
            "release must be full, poisson, cyclic-poisson, fixed-size (not add-remove) or fixed-order for a group;"
            f" got {release.sampling}, {release.relation}"
        )
    return release.drawn_as(drawn).with_noise(release.noise_multiplier / k)


def group_delta(history: Steps, epsilon: float, *, size: int, n: int | None = None) -> Bracket:
    """delta(epsilon) of `history` for data sets that differ in up to `size` records: the smaller of the module's two
    bounds.

    Args:
        history: as of `accountant.delta_of_history`.
        epsilon: epsilon >= 0.
        size: k, 1 <= k <= n.
        n: the number of records of the larger data set, if it is known. It matters for fixed-size batches under
            add-remove; there the default is the least number of which the sample rate is a share.

    Returns:
        A bracket with value = upper, which is certified. Its lower end is that of one record, unless all batches are
        full.

    Raises:
        ValueError: an argument outside its range; more records than can be removed from fixed-size batches, n - B.
    """
    made = releases_of(history)
    k, eps = _size(made, size, n), check.real("epsilon", epsilon, at_least=0)
    links = _links(made, k, n)
    one = delta_of_history(made, eps)
    if k == 1:
        return one
    together = _together(made, k)
    found = delta_of_history(together, eps) if together is not None else _NOTHING
    if _exact(made, together):
        return found
    upper = _one_by_one(links, eps / k, k)
    if upper < found.upper:
        found = Bracket(0.0, upper, upper, _ONE_BY_ONE)
    return _bracket(k, found, one)


def group_epsilon(history: Steps, delta: float, *, size: int, n: int | None = None) -> Bracket:
    """The smallest epsilon at `delta` for data sets that differ in up to `size` records; otherwise as `group_delta`.

    A note tells where epsilon is so large that it protects nothing. Raises PreconditionError if neither bound gives an
    epsilon: the noise is less than 0.03 of the clips by which a group moves a batch, and one record after another costs
    more than 700.
    """
    made = releases_of(history)
    k = _size(made, size, n)
    links = _links(made, k, n)
    one = epsilon_of_history(made, delta)
    if k == 1:
        return one
    together = _together(made, k)
    found = epsilon_of_history(together, delta) if together is not None else _NOTHING
    if _exact(made, together):
        return found
    most = min(found.upper / k, _MOST_EPSILON)
    least = max(one.lower, 1e-6)
    share = smallest_real(lambda x: _one_by_one(links, x, k) <= delta, least, most, 1e-3) if least <= most else None
    if share is not None:
        upper = share * k * (1 + _BOUND_ROUNDING)
        found = Bracket(0.0, upper, upper, _ONE_BY_ONE)
    check.precondition(
        found.upper < math.inf,
        f"size must be small enough for this noise to protect the group; got {k}, and no epsilon up to"
        f" {_MOST_EPSILON * k:g} is known to hold (`group_noise` says how much noise protects it)",
    )
    bracket = _bracket(k, found, one)
    if bracket.upper < _VACUOUS:
        return bracket
    vacuous = f"epsilon {bracket.upper:.4g} protects nothing: this noise does not hide what {k} records may do together"
    return replace(bracket, notes=(*bracket.notes, f"{vacuous} (`group_noise` says how much does)"))


def group_excess(
    history: Steps, target_epsilon: float, target_delta: float, *, size: int, n: int | None = None
) -> float:
    """`accountant.excess` for data sets that differ in up to `size` records."""
    made = releases_of(history)
    if _size(made, size, n) == 1:
        return excess(made, target_epsilon, target_delta)
    beyond = [group_epsilon(made, target_delta, size=size, n=n).upper / target_epsilon - 1]
    if target_delta > 0:
        beyond.append(group_delta(made, target_epsilon, size=size, n=n).upper / target_delta - 1)
    return max(beyond)


def group_noise(
    *, target_epsilon: float, target_delta: float, size: int, steps: int, n: int | None = None, **words: Unpack[Words]
) -> Bracket:
    """The smallest noise multiplier that meets the target for groups of `size` records, to 1e-4.

    Arguments and errors are those of `calibration.calibrate_noise_multiplier` and `group_delta`. The lower end of the
    bracket is that of one record.
    """
    goal, unit = check.real("target_epsilon", target_epsilon, above=0), Release(1e6, steps, **words)
    k = _size([unit], size, n)
    _links([unit], k, n)
    one = calibrated(unit, goal, target_delta)
    if k == 1:
        return one

    def beyond(noise: float) -> float:
        return group_excess([unit.with_noise(noise)], target_epsilon, target_delta, size=k, n=n)

    if unit.sample_rate == 1:
        more = k * one.upper * (1 + _BOUND_ROUNDING)
        return settled(replace(one, lower=k * one.lower, value=more, upper=more), beyond)

    def meets(noise: float) -> bool:
        return group_delta([unit.with_noise(noise)], target_epsilon, size=k, n=n).upper <= target_delta

    value = smallest_real(meets, one.value, 2 * k * k * one.value, 1e-4)
    check.precondition(value is not None, f"target must be met with noise {2 * k * k * one.value:g}; got groups of {k}")
    assert value is not None
    return _bracket(k, settled(Bracket(0.0, value, value, "search"), beyond), one)


def _size(history: Sequence[Release], size: int, n: int | None) -> int:
    """The number of records of a group, as an integer in its range. Raises ValueError."""
    known = [made.step.sampling.records or _MOST_SIZE for made in history]
    if n is not None:
        known.append(check.integer("n", n))
    return check.integer("size", size, at_most=min([_MOST_SIZE, *known]))


def _links(history: Sequence[Release], size: int, n: int | None) -> list[Release]:
    """The releases for one link of the chain: its delta is at least that of any of `size` records, removed one by
    one."""
    found = []
    for made in history:
        kind = made.step.sampling
        if size > 1 and isinstance(kind, FixedSize) and kind.sample_rate < 1 and made.relation is Relation.ADD_REMOVE:
            records = _fewest_records(kind.sample_rate) if n is None else n
            batch = kind.batch_size(records)
            if size > records - batch:
                rule = f"size must be at most n - B = {records - batch} with batches of {batch} of {records} records"
                raise ValueError(
                    f"{rule}, add-remove; got {size}" + (" (with more records say n)" if n is None else "")
                )
            made = made.drawn_as(kind.at(batch / (records - size + 1)))
        found.append(made)
    return found


def _fewest_records(sample_rate: float) -> int:
    """The least n of which q n is a whole number, up to 1e-9: the denominator of a convergent of q."""
    rest, before, last = Fraction(sample_rate), (0, 1), (1, 0)
    while True:
        whole = math.floor(rest)
        before, last = last, (whole * last[0] + before[0], whole * last[1] + before[1])
        if last[0] > 0 and (rest == whole or abs(sample_rate * last[1] - last[0]) <= 1e-9):
            return last[1]
        rest = 1 / (rest - whole)


def _together(history: Sequence[Release], size: int) -> list[Release] | None:
    try:
        found = [group_release(release, size) for release in history]
    except ValueError:
        return None
    unclear = any(not each.part.plain and each.noise_multiplier < _LEAST_SAMPLED_NOISE for each in found)
    return None if unclear else found


def _exact(history: Sequence[Release], together: Sequence[Release] | None) -> bool:
    return together is not None and all(release.sample_rate == 1 for release in history)


def _one_by_one(history: Sequence[Release], epsilon: float, size: int) -> float:
    """The module's bound on delta by one record after another, at `size` times epsilon."""
    each = delta_of_history(history, epsilon).upper
    if each == 0:
        return 0.0
    more = (size - 1) * epsilon
    if size * epsilon > _MOST_EPSILON:
        return math.exp(min(math.log(each) + more - math.log(-math.expm1(-epsilon)) + 1e-12 * more, 0.0))
    times = math.expm1(size * epsilon) / math.expm1(epsilon) if epsilon > 0 else size
    return min(each * times * (1 + 1e-12), 1.0)


def _bracket(size: int, found: Bracket, one: Bracket) -> Bracket:
    note = f"groups of {size} records: the upper end is certified, the lower end is that of one record"
    lower = min(one.lower, found.upper)
    return Bracket(lower, found.upper, found.upper, found.method, (*one.notes, note))
