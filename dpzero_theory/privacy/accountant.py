"""Computes delta or epsilon of a history of private steps as an interval that is proved to contain the exact number.

The protected unit is one record or a group of k records, such as all records of one user. Intervals for one record are
about 1e-3 wide relative to delta, and 1e-4 relative to epsilon.

Two upper bounds are known for a group, and the smaller one is returned. The first treats all k records at once
(`Sampling.group_amplified`). The second changes one record after another and holds for any history: delta_k(epsilon) <=
sum over i < k of e^(i epsilon/k) delta_1(epsilon/k), with delta_k for k records. Proofs: laws/derivation.md, section 5.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

from dpzero_theory import check
from dpzero_theory.privacy import contour, grid
from dpzero_theory.privacy.bracket import Bounds, Bracket
from dpzero_theory.privacy.gaussian import GDP_ACCURACY, delta_from_gdp, epsilon_from_gdp
from dpzero_theory.privacy.laws.concentrated import MOST_RHO, concentrated_pair
from dpzero_theory.privacy.laws.finite import Ends
from dpzero_theory.privacy.laws.gaussian import Gaussian
from dpzero_theory.privacy.laws.law import NOTHING, Cost, Law, Parts, chernoff_epsilon, crossed, crossing
from dpzero_theory.privacy.mechanism import MECHANISMS
from dpzero_theory.privacy.relation import Relation
from dpzero_theory.privacy.step import Step, Steps, steps_of

_CLOSE = 3.0  # Farther than this/(1 + tilt) from the epsilon of its integral `contour` gives wide bounds: do it again.
_VAGUE = 1.5  # Where upper > this * lower, the bound by releases without sampling is tried too, as it may be smaller.
_ROUNDING = 1e-12  # `Group._one_by_one` has at most this relative rounding error, by which its answers are raised.
_MOST_EPSILON = 700.0  # A group is bounded only up to this epsilon of one record, since e^700 must be a float.
_MOST_IN_GROUP = 10**9  # the largest number of records in a group
_GROUPED, _BEGINNING = 2e-4, 0.1
"""`_GROUPED` is the relative error allowed for a group's epsilon that is found by changing one record after another.
The search starts from one record's epsilon, known to the relative width `_BEGINNING`."""
_ONE_BY_ONE = "one record after another"
_LARGE = 10.0  # above this epsilon a note says that the guarantee protects hardly anything
_ABOUT_EXACT = 1.1  # Where upper <= this * lower for a group, changing one record after another would gain little.


def delta_of_history(history: Steps, epsilon: float, *, group: int = 1, n: int | None = None) -> Bracket:
    """Computes the smallest delta for which a history of steps is (epsilon, delta)-differentially private.

    Args:
        history: steps such as `step * 1000`, or a sum of such steps, all with the same neighbouring relation. The
            function of the records that a step releases may depend on earlier outputs. Its noise, its batches and the
            number of steps must be fixed beforehand.
        epsilon: epsilon >= 0.
        group: the number k of records in which neighbouring data sets may differ, 1 <= k <= n. Use 1, or the largest
            number of records of one user to protect users.
        n: the number of records of the larger data set, or None if unknown. Needed only if `group` > 1 and batches have
            a fixed size under the relation "add-remove".

    Returns:
        A `Bracket`: the exact delta lies between `lower` and `upper`, and `value` is an estimate of it. State `upper`
        as the guarantee. For `group` > 1 the interval is mostly narrow with full, Poisson and cyclic-Poisson batches
        and with `FixedOrder` batches. With other batches `lower` may be the delta of fewer than k records, which is far
        below `upper`.

    Raises:
        ValueError: an argument is outside its range; the steps have several relations; or batches of B records have a
            fixed size under "add-remove" and `group` is above n - B.
    """
    eps, asked = check.real("epsilon", epsilon, at_least=0), Group(history, group, n)
    found = asked.delta(eps)
    value = found.lower + (found.upper - found.lower) / 3 if found.lower > 0 else found.upper
    return replace(asked.bracket(found), value=value)


def epsilon_of_history(history: Steps, delta: float, *, group: int = 1, n: int | None = None) -> Bracket:
    """Computes the smallest epsilon for which a history of steps is (epsilon, delta)-differentially private.

        epsilon_of_history(step * 10_000, delta=1e-5)  # dpzero_theory.epsilon is this function

    Args:
        history: steps such as `step * 1000`, or a sum of such steps, all with the same neighbouring relation. The
            function of the records that a step releases may depend on earlier outputs. Its noise, its batches and the
            number of steps must be fixed beforehand: use `privacy.filter` for steps that are chosen during the run, and
            count all planned steps of a run that may stop early.
        delta: 1e-30 <= delta < 1, or 0 for histories that are private without a delta, as with Laplace noise only.
        group: the number of records in which neighbouring data sets may differ. Use 1, or the largest number of records
            of one user to protect users.
        n: the number of records of the larger data set, or None if unknown. Needed only if `group` > 1 and batches have
            a fixed size under the relation "add-remove".

    Returns:
        A `Bracket`: the exact epsilon lies between `lower` and `upper`; `value` equals `upper`, the number to state.
        For `group` > 1 `lower` may be the epsilon of fewer records than the group has. An epsilon above 10 brings a
        note that it protects hardly anything.

    Raises:
        ValueError: an argument is outside its range, steps have several relations, or the true delta exceeds `delta` at
            every epsilon.
        PreconditionError: no epsilon up to 700 times `group` is known to hold for the group. Some samplings, such as
            truncated Poisson batches, have no bound for all records of a group at once; nor have Poisson batches for a
            noise multiplier below 0.03 times `group`, unless it is 0.2 or more and the group has at most 2,000 records.
    """
    target, asked = check.real("delta", delta, at_least=0, below=1), Group(history, group, n)
    found = asked.epsilon(target)
    check.precondition(
        group == 1 or found.upper < math.inf,
        f"group must be small enough for this noise to protect the group; got {group}, and no epsilon up to"
        f" {_MOST_EPSILON * group:g} is known to hold (`calibrate` with this group says how much noise protects it)",
    )
    bracket = asked.bracket(found)
    return replace(bracket, notes=(*bracket.notes, *weak(found.upper, group=group)))


def weak(epsilon: float, delta: float = 0.0, *, n: int | None = None, group: int = 1) -> tuple[str, ...]:
    """Returns a tuple of sentences that warn of a guarantee that protects hardly anything; it is empty for a sound
    guarantee. One sentence warns of an `epsilon` above 10. Another warns of a `delta` above 1/n, where `n` is the
    number of records; None for `n` omits this check. `group` is the number of records in which neighbouring data sets
    may differ; it changes the wording only."""
    notes, what = [], "a record" if group == 1 else f"these {group} records"
    if epsilon > _LARGE:
        notes.append(
            f"epsilon {epsilon:.4g} protects hardly anything: an attacker's odds that the data hold {what} may grow"
            f" e^{epsilon:.4g}-fold"
        )
    if n is not None and delta * n > 1:
        notes.append(
            f"delta {delta:g} is above 1/n = {1 / n:.3g}: to publish whole records, one in n of them, would be allowed"
        )
    return tuple(notes)


def deltas_of_both_orders(history: Steps, epsilon: float) -> tuple[Bounds, Bounds]:
    """Computes bounds on the delta of a history at `epsilon` >= 0, one for each order of two neighbouring data sets.
    Let P be the distribution of what is released with the record (under replace-one: with its first value), and Q that
    without it (with its second value). The first `Bounds` are on the largest P(E) - e^epsilon Q(E) over events E, the
    second on the largest Q(E) - e^epsilon P(E). Raises ValueError if steps have several relations."""
    cost = cost_of(steps_of(history))
    first, second = (replace(cost, above=(cost.above[way],) * 2, below=(cost.below[way],) * 2) for way in (0, 1))
    found = _cost_delta(first, epsilon)
    return found, found if first == second else _cost_delta(second, epsilon)


class Group:
    """Computes privacy guarantees of a history for data sets that differ in up to `size` records.

    Args:
        history: steps such as `step * 1000`, all with one neighbouring relation.
        size: the number of records in which neighbouring data sets may differ, from 1 to n.
        n: the number of records of the larger data set, or None if unknown. Needed only if `size` > 1 and batches have
            a fixed size under the relation "add-remove".

    Attributes:
        made, size: the history as a tuple of `Step` objects, and the argument `size`.
        one: the `Cost` of all steps for data sets that differ in one record.
        together: the `Cost` of all steps for data sets that differ in `size` records at once. Its upper bound is
            infinite if none is known.
        each: the `Cost` that bounds each change if the `size` records are changed one after another. It equals `one`,
            except for fixed-size batches under "add-remove", whose sample rate grows with each removal. Not set for
            `size` 1.

    Raises:
        ValueError: an argument is outside its range, steps have several relations, or n is missing where it is needed.
    """

    def __init__(self, history: Steps, size: int = 1, n: int | None = None) -> None:
        self.made, self.size, self._method = steps_of(history), size, ""
        self.one = self.together = cost_of(self.made)
        if size != 1:
            known = [part.sampling.records or _MOST_IN_GROUP for part in self.made]
            if n is not None:
                known.append(check.integer("n", n))
            self.size = check.integer("group", size, at_most=min([_MOST_IN_GROUP, *known]))
            self.each = cost_of(_links(self.made, self.size, n))
            self.together = sum((part.cost(self.size, n) for part in self.made), NOTHING)
        self._known = self.together.squares[0] < math.inf

    def delta(self, epsilon: float, *, near: float | None = None, wanted: float = 1e-3, ends: Ends = "both") -> Bounds:
        """Returns bounds on the smallest delta at which the history is (`epsilon`, delta)-private for data sets that
        differ in up to `size` records; `epsilon` >= 0. `near` is a delta with which the caller compares the answer, or
        None; bounds far from it may be wide. Bounds are narrowed until upper - lower <= `wanted` * upper, or until more
        work hardly helps. `ends` says which bounds the caller uses: "lower", "upper" or "both"; an unused bound is true
        but may be trivial."""
        found = _cost_delta(self.together, epsilon, near=near, wanted=wanted, ends=ends if self.size == 1 else "both")
        if self.size == 1 or found.upper <= _ABOUT_EXACT * found.lower or (near and found.upper < near / 3):
            return found
        upper = found.upper
        if ends != "lower" and (each := self._one_by_one(epsilon / self.size, near)) < upper:
            upper, self._method = each, _ONE_BY_ONE
        lower = found.lower
        if ends != "upper":
            lower = max(lower, _cost_delta(self.one, epsilon, near=near, wanted=wanted, ends="lower").lower)
        return Bounds(min(lower, upper), upper)

    def epsilon(self, delta: float, *, ends: Ends = "both") -> Bounds:
        """Returns bounds on the smallest epsilon at which the history is (epsilon, `delta`)-private for data sets that
        differ in up to `size` records. `delta` is 0, or at least 1e-30 and below 1. `ends` says which bounds the caller
        uses: "lower", "upper" or "both"; an unused bound is true but may be trivial. If `size` > 1, the upper bound is
        infinite where no epsilon is known to hold. Raises ValueError if `delta` is outside its range or exceeded at
        every epsilon."""
        if self.size == 1:
            return _cost_epsilon(self.one, delta, ends=ends)
        found = _cost_epsilon(self.together, delta, ends="both" if self._known else "lower")
        if found.upper <= _ABOUT_EXACT * found.lower or delta == 0:
            return found
        # One record alone costs at least `least`, so the search for the epsilon of each changed record begins there.
        least = _cost_epsilon(self.one, delta, wanted=_BEGINNING, ends="lower").lower

        def missed(each: float) -> float:
            found = self._one_by_one(each, delta)
            return math.log(found / delta) if found > 0 else -math.inf

        upper, first, most = found.upper, max(least, 1e-6), min(found.upper / self.size, _MOST_EPSILON)
        if first <= most:
            guess = 2 * first if least > 0 else math.sqrt(first * most)
            _, share = crossing(missed, guess, least=first, most=most, share=_GROUPED)
            if share is not None and share * self.size * (1 + _ROUNDING) < upper:
                upper, self._method = share * self.size * (1 + _ROUNDING), _ONE_BY_ONE
        if ends != "upper":
            least = _cost_epsilon(self.one, delta, ends="lower").lower
        return Bounds(min(max(found.lower, least), upper), upper)

    def excess(self, target_epsilon: float, target_delta: float) -> float:
        """Returns by how much the history misses the target (`target_epsilon`, `target_delta`), as a relative amount:
        0.1 means 10% too much, and a number <= 0 means that the target is met. It is the larger of (upper bound on
        epsilon at `target_delta`) / `target_epsilon` - 1 and (upper bound on delta at `target_epsilon`) /
        `target_delta` - 1, or the first of them alone if `target_delta` is 0. Raises ValueError if `target_delta` is
        outside its range or exceeded at every epsilon."""
        beyond = self.epsilon(target_delta, ends="upper").upper / target_epsilon - 1
        if target_delta == 0:
            return beyond
        return max(beyond, self.delta(target_epsilon, ends="upper").upper / target_delta - 1)

    def _one_by_one(self, epsilon: float, near: float | None) -> float:
        # The delta of the group of k records at the epsilon k * `epsilon` is bounded by changing one record after
        # another, each at `epsilon`. Where the bound is far from the delta `near`, it may be much too large.
        k = self.size
        far = k * epsilon > _MOST_EPSILON
        times = k if epsilon == 0 else 1.0 if far else math.expm1(k * epsilon) / math.expm1(epsilon)
        small = None if far or near is None or near / times < 1e-30 else near / times
        each = _cost_delta(self.each, epsilon, near=small, ends="upper").upper
        if each == 0:
            return 0.0
        if far:
            more = (k - 1) * epsilon
            return math.exp(min(math.log(each) + more - math.log(-math.expm1(-epsilon)) + _ROUNDING * more, 0.0))
        return min(each * times * (1 + _ROUNDING), 1.0)

    def bracket(self, found: Bounds) -> Bracket:
        """Returns `found`, bounds on a number computed from this history, as a `Bracket` whose `value` is the upper
        bound. Its method is "one record after another" if `Group.delta` or `Group.epsilon` of this object needed that,
        else "closed form" or "grid"; its notes are about samplings, noise and groups."""
        cost = self.together
        told = [part.sampling.note(part.relation) for part in self.made if part.sampling.sample_rate < 1]
        told += [MECHANISMS[part.mechanism].note for part in self.made]
        if self.size > 1 and not (self._known and cost.above == cost.below and cost.squares[0] == cost.squares[1]):
            held = "the upper end is certified, the lower end is attained by data of a group"
            told.append(f"groups of {self.size} records: {held}")
        method = self._method or ("closed form" if cost.closed else "grid")
        return Bracket(found.lower, found.upper, found.upper, method, tuple(dict.fromkeys(filter(None, told))))


def _links(history: Sequence[Step], size: int, n: int | None) -> list[Step]:
    """Returns the steps of `history` with sample rates raised, so that their cost for one record bounds the cost of
    each change when `size` of n records are removed one after another. Under "add-remove" each removal leaves fewer
    records, so a remaining record is in more batches of fixed size. Raises ValueError for such batches if n is None, or
    if a batch leaves out fewer than `size` records."""
    parts = []
    for part in history:
        kind = part.sampling
        if kind.refilled and kind.sample_rate < 1 and part.relation is Relation.ADD_REMOVE:
            if n is None:
                raise ValueError(f"n must be given for groups with sampling {kind.word} and add-remove; got None")
            batch = kind.batch_size(n)
            assert batch is not None
            if size > n - batch:
                rule = f"group must be at most n - B = {n - batch} with batches of {batch} of {n} records"
                raise ValueError(f"{rule}, add-remove; got {size}")
            part = replace(part, sampling=replace(kind, sample_rate=batch / (n - size + 1)))
        parts.append(part)
    return parts


def cost_of(made: Sequence[Step]) -> Cost:
    """Returns the `Cost` of a history: the sum of the costs of the steps `made`. The cost of an empty history is zero.
    Raises ValueError unless all steps have the same relation."""
    relations = dict.fromkeys(part.relation for part in made)
    if len(relations) > 1:
        raise ValueError(f"history must have one relation; got {', '.join(map(str, relations))}")
    costs = [part.cost() for part in made] or [NOTHING]
    return sum(costs[1:], costs[0])


def _cost_delta(
    cost: Cost, epsilon: float, *, near: float | None = None, wanted: float = 1e-3, ends: Ends = "both"
) -> Bounds:
    """Returns bounds on the smallest delta of a `cost` at `epsilon` >= 0, of about the relative width `wanted`. Bounds
    far from `near`, a delta with which the caller compares them, may be wider. A bound that is not among the `ends`
    that the caller uses may be trivial."""
    pure, ratio = cost.pure[0], cost.ratio
    if epsilon >= pure:
        return Bounds(0.0, 0.0)
    # Noise on a fine lattice costs what continuous noise does up to a ratio e^G of probabilities: delta(epsilon) is at
    # most e^G delta'(epsilon - 2 G), with delta' for continuous noise.
    left, shifted = epsilon - 2 * ratio, 2.0**-50 * (ratio > 0)
    at, lower_at = max(left, 0.0) * (1 - shifted), (epsilon + 2 * ratio) * (1 + shifted)

    def integral(parts: Parts) -> Bounds | None:
        answers = contour.answers(parts, at)
        return Bounds(answers.lower(lower_at), answers.upper(at)) if answers else None

    gridded = partial(grid.delta_bounds, epsilon=at, lower_at=lower_at, near=near, wanted=wanted)
    found = _bounds(cost, ends, partial(_largest, integral, gridded), partial(_plain_delta, (at, lower_at)))
    # No loss exceeds the epsilon at delta = 0 (`pure`), so delta is at most 1 - e^(epsilon - pure epsilon).
    most = min(-math.expm1(epsilon - pure) * (1 + 1e-15), 1.0)
    if not shifted:
        return Bounds(min(found.lower, most), min(found.upper, most))
    # Delta at an epsilon below 0 exceeds delta at 0 by at most 1 - e^epsilon.
    upper = min((found.upper - math.expm1(min(left, 0.0))) * math.exp(ratio) * (1 + 1e-15), most)
    return Bounds(min(found.lower * math.exp(-ratio) * (1 - 1e-15), upper), upper)


def _cost_epsilon(cost: Cost, delta: float, *, wanted: float = 1e-4, ends: Ends = "both") -> Bounds:
    """Returns bounds on the smallest epsilon of a `cost` at `delta`, of about the relative width `wanted`. A bound that
    is not among the `ends` that the caller uses may be trivial. Raises ValueError if the true delta exceeds `delta` at
    every epsilon, or if `delta` is outside [1e-30, 1); 0 is allowed if the cost is private without a delta."""
    pure, least = cost.pure
    if delta == 0:
        if pure == math.inf:
            check.real("delta", delta, above=0, below=1)
        return Bounds(least, pure)
    if cost.closed and not any(cost.squares):
        return Bounds(0.0, pure)
    check.real("delta", delta, at_least=grid.LEAST_DELTA, below=1)
    shifted = 2.0**-50 * (cost.ratio > 0)
    more = math.exp(cost.ratio) * (1 + shifted)
    at, lower_at = delta / more, delta * more
    integral = partial(_integral_epsilon, delta=at, lower_at=lower_at)
    gridded = partial(grid.epsilon_bounds, delta=at, lower_at=lower_at, wanted=wanted)
    found = _bounds(cost, ends, partial(_largest, integral, gridded), partial(_plain_epsilon, (at, lower_at)))
    if min(found.upper, pure) == math.inf and ends != "lower":
        shown = max((sum(n * law.infinite for law, n in parts) for parts in _compositions(cost, 0)), default=1.0)
        raise ValueError(f"delta must be above {shown:.3g}, what this history shows for certain; got {delta!r}")
    upper = min((found.upper + 2 * cost.ratio) * (1 + shifted), pure)
    return Bounds(min(max(found.lower - 2 * cost.ratio * (1 + 2.0**-50), 0.0), upper), upper)


def _bounds(
    cost: Cost, ends: Ends, composed: Callable[[list[Parts], Ends], Bounds], plain: Callable[[float, int], float]
) -> Bounds:
    """Returns bounds on a number, either the delta of a cost at a given epsilon or its epsilon at a given delta. A
    bound that is not among the `ends` that the caller uses is true but may be trivial. `composed(compositions, ends)`
    bounds the largest such number among several compositions (of releases with a known `Law`). `plain(square, end)`
    bounds the number for Gaussian releases without sampling whose mu^2 sum to `square`, from above with `end` 0, from
    below with `end` 1."""
    known, closed = cost.squares[0] < math.inf, cost.closed
    exact = known and cost.above == cost.below and cost.squares[0] == cost.squares[1] and not any(cost.zcdp)
    if exact and not closed:
        found = composed(_compositions(cost, 0), ends)
    else:
        upper, lower = math.inf, 0.0
        if known and ends != "lower":
            upper = plain(cost.squares[0], 0) if closed else composed(_compositions(cost, 0), "upper").upper
        if ends != "upper":
            below = any(cost.below)
            lower = composed(_compositions(cost, 1), "lower").lower if below else plain(cost.squares[1], 1)
        found = Bounds(min(lower, upper), upper)
    if not closed and cost.unamplified < math.inf and (not exact or found.upper > _VAGUE * found.lower):
        found = found.within(Bounds(0.0, plain(cost.unamplified, 0)))
    return found


def _integral_epsilon(parts: Parts, delta: float, lower_at: float) -> Bounds | None:
    # The upper bound is for `delta`. The lower one is for `lower_at`, a larger delta if the laws' probabilities are
    # only known up to a factor. None means that the integral of module `contour` does not fit these laws.
    z = 3 + math.sqrt(2 * math.log((1 + sum(count for _, count in parts)) / delta))
    if contour.fits(parts):
        at = 0.95 * chernoff_epsilon(((count, *law.sketch(z)) for law, count in parts), delta)
        while (found := contour.answers(parts, at)) is not None:
            upper = crossed(found.upper, delta, at, 1 + found.tau, way=1)
            if abs(upper - at) * (1 + found.tau) < _CLOSE:
                return Bounds(min(crossed(found.lower, lower_at, upper, 1 + found.tau, way=-1), upper), upper)
            at = upper
    return None


def _largest(
    integral: Callable[[Parts], Bounds | None], gridded: Callable[..., Bounds], compositions: list[Parts], ends: Ends
) -> Bounds:
    """Returns bounds on the largest delta, or the largest epsilon, of several compositions of releases with known
    `Law`s. The caller uses only the bounds named by `ends`: "lower", "upper" or "both". `integral` bounds the delta (or
    epsilon) of one composition, or returns None if it cannot. Compositions for which it returns None are passed as one
    list to `gridded`, which bounds the largest delta (or epsilon) among them; its keyword arguments are `ends` and
    `known`, the largest lower bound so far."""
    answers = [integral(parts) for parts in compositions]
    found = [one for one in answers if one]
    if left := [parts for parts, one in zip(compositions, answers, strict=True) if not one]:
        found.append(gridded(left, ends=ends, known=max((one.lower for one in found), default=0.0)))
    return Bounds(max(one.lower for one in found), max(one.upper for one in found))


def _compositions(cost: Cost, end: int) -> list[Parts]:
    """Returns the compositions whose largest delta bounds the delta of a cost from above (`end` 0) or from below (`end`
    1). A composition is a tuple of pairs (`Law` of one release's privacy loss, number of such releases). There is one
    for each order of two neighbouring data sets, or a single one if both orders have equal laws. One Gaussian law
    stands for all Gaussian releases without sampling, whose mu^2 add up. For `end` 0 one law stands for all zCDP steps,
    and ValueError is raised if their rho is above 100. For `end` 1 zCDP steps are left out, which can only lower
    delta."""
    extra: list[tuple[Law, int]] = []
    if square := cost.squares[end]:
        extra.append((Gaussian("remove", 1.0, 1 / math.sqrt(square)), 1))
    if end == 0 and any(cost.zcdp):
        if not cost.zcdp[0] <= MOST_RHO:
            rule = f"rho must be at most {MOST_RHO:g} for all zCDP steps of a history"
            raise ValueError(f"{rule}; got {cost.zcdp[0]!r}")
        extra.append((concentrated_pair(*cost.zcdp), 1))
    found = []
    for parts in dict.fromkeys((cost.above, cost.below)[end]):
        counts: dict[Law, int] = {}
        for law, count in (*parts, *extra):
            counts[law] = counts.get(law, 0) + count
        found.append(tuple(counts.items()))
    return found


def _plain_delta(at: tuple[float, float], square: float, end: int) -> float:
    # An upper (`end` 0) or lower (1) bound on delta at the epsilon at[end], if the releases' mu^2 sum to `square` >= 0
    if square == 0:
        return 0.0
    found = float(delta_from_gdp(at[end], math.sqrt(square)))
    return found * (1 - GDP_ACCURACY) if end else min(found * (1 + GDP_ACCURACY) + 5e-324, 1.0)


def _plain_epsilon(at: tuple[float, float], square: float, end: int) -> float:
    return float(epsilon_from_gdp(math.sqrt(square), at[end])) * (1 - 1e-9 * end) if square > 0 else 0.0
