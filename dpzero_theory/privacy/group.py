"""Groups of records: what releases cost data sets that differ in up to k records, such as all records of one user.

Given the batch's other records, the outputs under the two data sets are mixtures in which, with a probability w, some
of the k records are in the batch and move the sum by at most k clips. The noise multiplier is s, and q is the sample
rate.

- poisson, Gaussian noise: if j of the group's records are drawn the sum moves by at most j clips. So a mixture of
  normal laws with binomial weights dominates. Records that all pull one way attain it, so that the answer is exact
  (`certified.laws.groups`).
- poisson, Laplace noise: the same with Laplace laws for up to 300 records, also exact (`certified.laws.exponential`).
  For more, w = 1 - (1-q)^k, and the pair of one record at rate w and noise multiplier s/k dominates: no set of outputs
  of a given probability without the records has more of any shift by at most k clips than a half-line has of the shift
  by k clips (Neyman and Pearson). That pair also stands in for the exact Gaussian ones where these are not computed:
  for more than 2,000 records, or noise below 0.2 clips or above 10,000.
- cyclic-poisson: the pair of a Poisson batch of the group at the rate b q of a turn among b groups of records, once a
  round. If the records belong to several of these groups, j of them are drawn in the turns of a round with the same
  binomial probability, and move the round's outputs by a vector of norm at most j, chosen adaptively, so that a
  half-line is again the best event. Records that all take the same turn attain it.
- fixed-size (replace-one, zero-out): w <= k q. Where j of the k records take others' places, the sum moves as for one
  record and the one that makes way for it, but j times as far. The divergence is at most the mean over j, and rises
  with j, which gives the pair of one record at rate w and noise multiplier s/k. The lower end is that of records which
  all contribute 1 clip, among others that contribute -1.
- full, fixed-order: every batch's change is at most k times one record's, in no more batches; exact where a batch can
  hold k records.

Each of these is a dominating pair of one release, so histories compose; `group_release` makes the releases, from what
`Sampling.of_group` says. A second bound holds for any history, by changing one record after another: delta_k(epsilon)
<= sum over i < k of e^(i epsilon/k) delta(epsilon/k), where delta is for one record and delta_k for the group. The
smaller of the two bounds is taken. It is the second where the noise is little compared with k clips and records of the
group are seldom drawn together. With fixed-size batches and add-remove, the record after i others is removed from n - i
records, of which a batch holds B, so that its sample rate is B/(n - i); every record counts at the last one's rate,
B/(n - k + 1). If n is not given it is taken as the smallest number of records for which q n is a whole number.
"""

import math
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from fractions import Fraction
from typing import Unpack

from dpzero_theory import check
from dpzero_theory.bisection import smallest_real
from dpzero_theory.privacy.accountant import delta_of_history, epsilon_of_history, excess, upper_delta, upper_epsilon
from dpzero_theory.privacy.bracket import Bracket
from dpzero_theory.privacy.calibration import calibrated, settled
from dpzero_theory.privacy.certified.laws.exponential import MOST_IN_LAPLACE_GROUP
from dpzero_theory.privacy.composition import Pairs
from dpzero_theory.privacy.relation import Relation
from dpzero_theory.privacy.step import Release, Steps, Words, releases_of

_BOUND_ROUNDING = 1e-15
_MECHANISMS = ("gaussian", "discrete-gaussian", "laplace")
_MOST_EPSILON = 700.0
_MOST_SIZE = 10**9
_LEAST_SAMPLED_NOISE = 0.03
"""The least noise of a sampled batch, over the clips by which a group may move it, for which the group's pair is used.
Less noise needs a grid of 1/noise points."""
_VACUOUS = 50.0
"""If the epsilon of a group is at least this, a note says that the guarantee protects nothing."""
_BELOW = (1e-3, 1e-2, 0.1, 0.3, 0.5, 0.7)
"""`group_noise` seeks a noise that certainly misses the target. It tries noises that are below the one that meets it by
these shares of it."""
_ABOUT_EXACT = 1.1
"""Where the upper end of a group's bracket is at most this many times the lower end, no bound by changing one record
after another is tried."""
_ONE_BY_ONE = "one record after another"
_NOTHING = Bracket(0.0, math.inf, math.inf, "none")


def group_release(release: Release, size: int) -> Release:
    """The releases whose delta for one record is, at every epsilon, at least that of `release` for a group of up to
    `size` records.

    The upper ends of their delta and epsilon therefore hold for the group.

    Args:
        release: releases with Gaussian or Laplace noise and with full, poisson, cyclic-poisson, fixed-size (not
            add-remove) or fixed-order batches.
        size: k >= 1.

    Raises:
        ValueError: another mechanism or sampling, or a size that is not a whole number >= 1.
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
    """delta(epsilon) of `history` for data sets that differ in up to `size` records: the smaller of two bounds.

    One bound takes the group's records together, and the other changes one record after another.

    Args:
        history: steps, such as `step * 1000`, all with one relation.
        epsilon: epsilon >= 0.
        size: k, 1 <= k <= n.
        n: the number of records of the larger data set, or None if it is not known. It matters for fixed-size batches
            under add-remove; there None stands for the smallest number of records for which the batch size is a whole
            number.

    Returns:
        A bracket, whose `upper` is certified and is the number to state. For full, Poisson and cyclic-Poisson batches
        and a fixed order both ends are bounds on one number, delta for the worst data of a group. For other batches the
        lower end is attained by data of a group, or, for random allocations, truncated batches and discrete noise on a
        coarse lattice, it is that of one record.

    Raises:
        ValueError: an argument outside its range; with fixed-size batches of B records a `size` above n - B, the most
            records that can be removed.
    """
    made = releases_of(history)
    k, eps = _size(made, size, n), check.real("epsilon", epsilon, at_least=0)
    links = _links(made, k, n)
    one = delta_of_history(made, eps)
    if k == 1:
        return one
    together, attained = _together(made, k), _attained(made, k, n)
    bracket = delta_of_history(together, eps) if together is not None else _NOTHING
    if together is not None and together == attained and bracket.upper <= _ABOUT_EXACT * bracket.lower:
        return bracket
    if attained is not None:
        least = delta_of_history(attained, eps).lower
        one = replace(one, lower=max(one.lower, least))
    upper = _one_by_one(links, eps / k, k)
    if upper < bracket.upper:
        bracket = Bracket(0.0, upper, upper, _ONE_BY_ONE)
    return _bracket(k, bracket, one, of_group=attained is not None)


def group_epsilon(history: Steps, delta: float, *, size: int, n: int | None = None) -> Bracket:
    """The smallest epsilon at `delta` for data sets that differ in up to `size` records.

    A note tells if epsilon is so large that it protects nothing.

    Args:
        history: steps, such as `step * 1000`, all with one relation.
        delta: 0 < delta < 1, or 0 where every step has pure epsilon, as with Laplace noise.
        size: k, 1 <= k <= n.
        n: the number of records of the larger data set, or None if it is not known (see `group_delta`).

    Returns:
        A bracket with value = upper, which is certified. For full, Poisson and cyclic-Poisson batches and a fixed order
        both ends are bounds on one number, epsilon for the worst data of a group. For other batches the lower end is
        attained by data of a group, or, for random allocations, truncated batches and discrete noise on a coarse
        lattice, it is that of one record.

    Raises:
        ValueError: an argument outside its range.
        PreconditionError: no epsilon is known to hold. The group's records are not accounted together (for that
            batches, or because the noise is less than 0.03 of the clips by which the group moves a batch), and by one
            record after another no epsilon up to 700 times `size` holds.
    """
    made = releases_of(history)
    k = _size(made, size, n)
    links = _links(made, k, n)
    one = epsilon_of_history(made, delta)
    if k == 1:
        return one
    least_of_one = one.lower
    together, attained = _together(made, k), _attained(made, k, n)
    ask = epsilon_of_history if together == attained else upper_epsilon
    bracket = ask(together, delta) if together is not None else _NOTHING
    if together is not None and together == attained and bracket.upper <= _ABOUT_EXACT * bracket.lower:
        return _warned(k, bracket)
    if attained is not None:
        with suppress(ValueError):  # so small a delta may not be resolved for them
            one = replace(one, lower=max(one.lower, epsilon_of_history(attained, delta).lower))
    most = min(bracket.upper / k, _MOST_EPSILON)
    least = max(least_of_one, 1e-6)
    share = (
        smallest_real(lambda x: _one_by_one(links, x, k, delta) <= delta, least, most, 1e-3) if least <= most else None
    )
    if share is not None:
        upper = share * k * (1 + _BOUND_ROUNDING)
        bracket = Bracket(0.0, upper, upper, _ONE_BY_ONE)
    check.precondition(
        bracket.upper < math.inf,
        f"size must be small enough for this noise to protect the group; got {k}, and no epsilon up to"
        f" {_MOST_EPSILON * k:g} is known to hold (`group_noise` says how much noise protects it)",
    )
    return _warned(k, _bracket(k, bracket, one, of_group=attained is not None))


def _warned(size: int, bracket: Bracket) -> Bracket:
    """This `bracket` of epsilon for a group of `size` records, with a note if it is so large that it protects
    nothing."""
    if bracket.upper < _VACUOUS:
        return bracket
    vacuous = (
        f"epsilon {bracket.upper:.4g} protects nothing: this noise does not hide what {size} records may do together"
    )
    return replace(bracket, notes=(*bracket.notes, f"{vacuous} (`group_noise` says how much does)"))


def group_excess(
    history: Steps, target_epsilon: float, target_delta: float, *, size: int, n: int | None = None
) -> float:
    """Compares what a history costs groups of up to `size` records with a target; at most 0 where the target is met.

    It returns the larger of epsilon(target_delta)/target_epsilon - 1 and delta(target_epsilon)/target_delta - 1, with
    certified upper ends of epsilon and delta for the group (with target_delta = 0 only the former); for one record it
    is `accountant.excess`. n: the number of all records; None stands, for batches of fixed size, for the smallest
    number for which the batch size is a whole number.
    """
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
    """The smallest noise multiplier with which `steps` releases are (target_epsilon, target_delta)-DP for groups of
    `size` records.

    It is found to about 1e-4 of it where it is searched for. n: the number of all records, or None if it is not known.
    words: sampling, relation, sample_rate, mechanism and coordinates, as of `step.Words`. The errors are those of
    `calibration.calibrate_noise_multiplier` and `group_delta`. Returns a bracket with value = upper, which is
    certified. Below its lower end the target is certainly missed, by the lower ends of `group_delta`.
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
    bracket = settled(Bracket(0.0, value, value, "search"), beyond)
    history = [unit.with_noise(value)]
    attained = _attained(history, k, n)
    for share in _BELOW if attained is not None else ():
        low = max(value * (1 - share), one.lower)
        missed = group_delta([unit.with_noise(low)], target_epsilon, size=k, n=n)
        if missed.lower > target_delta:
            one = replace(one, lower=low)
            break
    if attained is not None and attained == _together(history, k):
        return replace(bracket, lower=min(one.lower, bracket.upper))
    return _bracket(k, bracket, one, of_group=attained is not None)


def _size(history: Sequence[Release], size: int, n: int | None) -> int:
    """`size`, the number of records of a group, as an integer. Raises ValueError if it is more than the number n of all
    records.

    n: the number of all records; if it is None, that which a sampling of the history knows, if any.
    """
    known = [made.step.sampling.records or _MOST_SIZE for made in history]
    if n is not None:
        known.append(check.integer("n", n))
    return check.integer("size", size, at_most=min([_MOST_SIZE, *known]))


def _links(history: Sequence[Release], size: int, n: int | None) -> list[Release]:
    """The history with sample rates at which one record costs at least as much as any of `size` records that are
    removed one by one.

    n: the number of all records, or None. Only fixed-size batches under add-remove change their rate. Raises ValueError
    if more records are removed than such batches leave out.
    """
    releases = []
    for made in history:
        kind = made.step.sampling
        if size > 1 and kind.refilled and kind.sample_rate < 1 and made.relation is Relation.ADD_REMOVE:
            records = _fewest_records(kind.sample_rate) if n is None else n
            batch = kind.batch_size(records)
            assert batch is not None
            if size > records - batch:
                rule = f"size must be at most n - B = {records - batch} with batches of {batch} of {records} records"
                raise ValueError(
                    f"{rule}, add-remove; got {size}" + (" (with more records say n)" if n is None else "")
                )
            made = made.drawn_as(kind.at(batch / (records - size + 1)))
        releases.append(made)
    return releases


def _fewest_records(sample_rate: float) -> int:
    """The smallest n for which sample_rate times n is a whole number >= 1, up to an absolute error of 1e-9.

    It is the denominator of a convergent of the continued fraction of sample_rate.
    """
    rest, before, last = Fraction(sample_rate), (0, 1), (1, 0)
    while True:
        whole = math.floor(rest)
        before, last = last, (whole * last[0] + before[0], whole * last[1] + before[1])
        if last[0] > 0 and (rest == whole or abs(sample_rate * last[1] - last[0]) <= 1e-9):
            return last[1]
        rest = 1 / (rest - whole)


def _together(history: Sequence[Release], size: int) -> list[Release] | None:
    try:
        releases = [group_release(release, size) for release in history]
    except ValueError:
        return None
    unclear = any(isinstance(each.part, Pairs) and each.noise_multiplier < _LEAST_SAMPLED_NOISE for each in releases)
    return None if unclear else releases


def _attained(history: Sequence[Release], size: int, n: int | None) -> list[Release] | None:
    """Releases whose delta for one record is at most that of this history for a group of `size` records at some data;
    they give lower ends.

    n: the number of all records, or None for any number. None is returned if no such releases are known.
    """
    if not all(made.mechanism in _MECHANISMS for made in history):
        return None
    releases = []
    for made in history:
        kind = made.step.sampling
        fewest = n is None and kind.refilled and kind.sample_rate < 1 and made.relation is Relation.ADD_REMOVE
        records = _fewest_records(kind.sample_rate) if fewest else n
        drawn = kind.attained_by_group(size, made.relation, records)
        if drawn is None or (made.mechanism == "laplace" and drawn.sample_rate < 1 and size > MOST_IN_LAPLACE_GROUP):
            return None
        releases.append(made.drawn_as(drawn).with_noise(made.noise_multiplier / size))
    return releases


def _one_by_one(history: Sequence[Release], epsilon: float, size: int, near: float | None = None) -> float:
    """An upper bound on delta for a group of `size` records, by changing one record after another: delta at `size`
    times `epsilon`.

    epsilon: that of each change of one record. history: the releases, with the sample rates that one change of a record
    counts with. near: a delta with which the caller compares the bound, or None; the bound may be far above it where it
    is not met.
    """
    far = size * epsilon > _MOST_EPSILON
    times = size if epsilon == 0 else 1.0 if far else math.expm1(size * epsilon) / math.expm1(epsilon)
    each = upper_delta(history, epsilon, near=None if far or near is None else near / times)
    if each == 0:
        return 0.0
    more = (size - 1) * epsilon
    if far:
        return math.exp(min(math.log(each) + more - math.log(-math.expm1(-epsilon)) + 1e-12 * more, 0.0))
    return min(each * times * (1 + 1e-12), 1.0)


def _bracket(size: int, bracket: Bracket, one: Bracket, *, of_group: bool = False) -> Bracket:
    """The bracket, with value = upper, from the lower end of `one` to the upper end of `bracket`, with a note that says
    whose number each end bounds.

    bracket: of epsilon, delta or the noise multiplier for groups of `size` records. one: a bracket of that number whose
    lower end holds for groups too. of_group: whether this lower end is attained by data of a group; else it is that of
    a single record.
    """
    whose = "attained by data of a group" if of_group else "that of one record"
    note = f"groups of {size} records: the upper end is certified, the lower end is {whose}"
    lower = min(one.lower, bracket.upper)
    return Bracket(lower, bracket.upper, bracket.upper, bracket.method, (*one.notes, note))
