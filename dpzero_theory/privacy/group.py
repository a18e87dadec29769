"""Groups of records: what releases cost data sets that differ in up to k records, such as all records of one user.

One bound takes the group's records together (`Sampling.group_amplified`): each sampling gives a pair that dominates a
release, so histories compose. A second one holds for any history, by changing one record after another: delta_k(e) <=
sum over i < k of e^(i e/k) delta(e/k), where e is epsilon, and delta is for one record and delta_k for the group. The
smaller of the two is taken. It is the second where the noise is little compared with k clips and records of the group
are seldom drawn together. Proofs are in laws/derivation.md, section 5.
"""

import math
from collections.abc import Sequence
from dataclasses import replace

from dpzero_theory import check
from dpzero_theory.bisection import smallest
from dpzero_theory.privacy.accountant import cost_delta, cost_epsilon, cost_of, notes
from dpzero_theory.privacy.bracket import Bounds, Bracket
from dpzero_theory.privacy.laws.finite import Ends
from dpzero_theory.privacy.laws.law import NOTHING
from dpzero_theory.privacy.relation import Relation
from dpzero_theory.privacy.step import Step, Steps, steps_of

_ROUNDING = 1e-12
_MOST_EPSILON = 700.0
_MOST_SIZE = 10**9
_ONE_BY_ONE = "one record after another"
_VACUOUS = 50.0
"""If the epsilon of a group is at least this, a note says that the guarantee protects nothing."""
_ABOUT_EXACT = 1.1
"""Where the upper end of a group's bracket is at most this many times the lower end, no bound by changing one record
after another is tried."""


def group_delta(history: Steps, epsilon: float, *, size: int, n: int | None = None) -> Bracket:
    """delta(epsilon) of `history` for data sets that differ in up to `size` records: the smaller of two bounds.

    One bound takes the group's records together, and the other changes one record after another.

    Args:
        history: steps, such as `step * 1000`, all with one relation.
        epsilon: epsilon >= 0.
        size: k, 1 <= k <= n.
        n: the number of records of the larger data set, or None if it is not known. For fixed-size batches under
            add-remove it must be given.

    Returns:
        A bracket, whose `upper` is certified and is the number to state. For full, Poisson and cyclic-Poisson batches
        and a fixed order both ends are bounds on one number, delta for the worst data of a group. For other batches the
        lower end is that of one record, or of fewer records than the group has.

    Raises:
        ValueError: an argument outside its range; with fixed-size batches of B records a `size` above n - B, the most
            records that can be removed.
    """
    eps = check.real("epsilon", epsilon, at_least=0)
    group = Group(history, size, n)
    return group.bracket(group.delta(eps))


def group_epsilon(history: Steps, delta: float, *, size: int, n: int | None = None) -> Bracket:
    """The smallest epsilon at `delta` for data sets that differ in up to `size` records.

    A note tells if epsilon is so large that it protects nothing.

    Args:
        history: steps, such as `step * 1000`, all with one relation.
        delta: 1e-30 <= delta < 1, or 0 where every step has pure epsilon, as with Laplace noise.
        size: k, 1 <= k <= n.
        n: the number of records of the larger data set, or None if it is not known (see `group_delta`).

    Returns:
        A bracket with value = upper, which is certified. Its ends are as those of `group_delta`.

    Raises:
        ValueError: an argument outside its range.
        PreconditionError: no epsilon is known to hold. The group's records are not accounted together (for that
            batches, or because the noise is less than 0.03 of the clips by which the group moves a batch), and by one
            record after another no epsilon up to 700 times `size` holds.
    """
    target = check.real("delta", delta, at_least=0, below=1)
    group = Group(history, size, n)
    found = group.epsilon(target)
    check.precondition(
        found.upper < math.inf,
        f"size must be small enough for this noise to protect the group; got {size}, and no epsilon up to"
        f" {_MOST_EPSILON * size:g} is known to hold (`calibrate` with this group says how much noise protects it)",
    )
    bracket = group.bracket(found)
    if size > 1 and found.upper >= _VACUOUS:
        vacuous = (
            f"epsilon {found.upper:.4g} protects nothing: this noise does not hide what {size} records may do"
            " together (`calibrate` with this group says how much does)"
        )
        bracket = replace(bracket, notes=(*bracket.notes, vacuous))
    return replace(bracket, value=bracket.upper)


class Group:
    """A history for data sets that differ in up to `size` of n records.

    The arguments are those of `group_delta`, and so are the errors.
    """

    def __init__(self, history: Steps, size: int, n: int | None) -> None:
        self.made = steps_of(history)
        known = [part.sampling.records or _MOST_SIZE for part in self.made]
        if n is not None:
            known.append(check.integer("n", n))
        self.size = check.integer("size", size, at_most=min([_MOST_SIZE, *known]))
        self.one, self.method = cost_of(self.made), ""
        self.together = self.one
        if self.size > 1:
            self.each = cost_of(_links(self.made, self.size, n))
            self.together = sum((part.cost(self.size, n) for part in self.made), NOTHING)
        self._known = self.together.squares[0] < math.inf

    def delta(self, epsilon: float, *, near: float | None = None, wanted: float = 1e-3, ends: Ends = "both") -> Bounds:
        """Bounds on delta. The arguments are those of `accountant.cost_delta`."""
        found = cost_delta(self.together, epsilon, near=near, wanted=wanted, ends=ends if self.size == 1 else "both")
        if self.size == 1 or found.upper <= _ABOUT_EXACT * found.lower or (near and found.upper < near / 3):
            return found
        upper = found.upper
        if ends != "lower" and (each := self._one_by_one(epsilon / self.size, near)) < upper:
            upper, self.method = each, _ONE_BY_ONE
        lower = found.lower
        if ends != "upper":
            lower = max(lower, cost_delta(self.one, epsilon, near=near, wanted=wanted, ends="lower").lower)
        return Bounds(min(lower, upper), upper)

    def epsilon(self, delta: float, *, ends: Ends = "both") -> Bounds:
        """Bounds on epsilon, of which `ends` are used."""
        if self.size == 1:
            return cost_epsilon(self.one, delta, ends=ends)
        found = cost_epsilon(self.together, delta, ends="both" if self._known else "lower")
        if found.upper <= _ABOUT_EXACT * found.lower or delta == 0:
            return found
        least = cost_epsilon(self.one, delta, ends="lower").lower
        # One record's share is at least its epsilon. What data of the group attain is no bound on the share.
        upper, first, most = found.upper, max(least, 1e-6), min(found.upper / self.size, _MOST_EPSILON)
        if first <= most:
            share = smallest(lambda x: self._one_by_one(x, delta) <= delta, first, most, 1e-3)
            if share is not None and share * self.size * (1 + _ROUNDING) < upper:
                upper, self.method = share * self.size * (1 + _ROUNDING), _ONE_BY_ONE
        return Bounds(min(max(found.lower, least), upper), upper)

    def excess(self, target_epsilon: float, target_delta: float) -> float:
        """The share by which the group misses a target: at most 0 if it is certified to meet it, both where epsilon is
        asked at the target delta and where delta is asked at the target epsilon."""
        beyond = self.epsilon(target_delta, ends="upper").upper / target_epsilon - 1
        if target_delta == 0:
            return beyond
        return max(beyond, self.delta(target_epsilon, ends="upper").upper / target_delta - 1)

    def _one_by_one(self, epsilon: float, near: float | None) -> float:
        """An upper bound on delta at `size` times `epsilon`, by changing one record after another, each at epsilon.

        `near` is a delta with which the caller compares the bound, or None.
        """
        k = self.size
        far = k * epsilon > _MOST_EPSILON
        times = k if epsilon == 0 else 1.0 if far else math.expm1(k * epsilon) / math.expm1(epsilon)
        small = None if far or near is None or near / times < 1e-30 else near / times
        each = cost_delta(self.each, epsilon, near=small, ends="upper").upper
        if each == 0:
            return 0.0
        if far:
            more = (k - 1) * epsilon
            return math.exp(min(math.log(each) + more - math.log(-math.expm1(-epsilon)) + _ROUNDING * more, 0.0))
        return min(each * times * (1 + _ROUNDING), 1.0)

    def bracket(self, found: Bounds) -> Bracket:
        """The bracket with these ends, and with notes; one tells if the ends do not bound one number."""
        said, cost = notes(self.made), self.together
        if self.size > 1 and not (self._known and cost.above == cost.below and cost.squares[0] == cost.squares[1]):
            held = "the upper end is certified, the lower end is attained by data of a group"
            said += (f"groups of {self.size} records: {held}",)
        return Bracket(found.lower, found.upper, found.upper, self.method or cost.method, said)


def _links(history: Sequence[Step], size: int, n: int | None) -> list[Step]:
    """The history with sample rates at which one record costs at least as much as any of `size` records that are
    removed one by one.

    Only fixed-size batches under add-remove change their rate. Raises ValueError if more records are removed than such
    batches leave out, or if the number n of all records is None for them.
    """
    parts = []
    for part in history:
        kind = part.sampling
        if kind.refilled and kind.sample_rate < 1 and part.relation is Relation.ADD_REMOVE:
            if n is None:
                raise ValueError(f"n must be given for groups with sampling {kind.word} and add-remove; got None")
            batch = kind.batch_size(n)
            assert batch is not None
            if size > n - batch:
                rule = f"size must be at most n - B = {n - batch} with batches of {batch} of {n} records"
                raise ValueError(f"{rule}, add-remove; got {size}")
            part = replace(part, sampling=kind.at(batch / (n - size + 1)))
        parts.append(part)
    return parts
