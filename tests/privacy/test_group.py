"""Tests of the privacy of groups of records, against the exact laws of k records that all pull one way.

The laws are sums over outputs and over subsets of the group.
"""

import itertools
import math

import numpy as np
import pytest
from scipy import stats

from dpzero_theory.check import PreconditionError
from dpzero_theory.privacy.accountant import delta_of_history, epsilon_of_history
from dpzero_theory.privacy.group import group_delta, group_epsilon, group_noise
from dpzero_theory.privacy.solve import fewest_records, largest_batch, most_steps
from dpzero_theory.privacy.step import Release
from tests.privacy.oracle import exact_delta


def law(shifts, chances, s):
    """Returns a mixture of Gaussians with standard deviation s, as probabilities on a grid of outputs.

    Its means are `shifts`, with the probabilities `chances`.
    """
    x = np.linspace(-14 * s - 6, 14 * s + 6, 6_001)
    mass = sum(c * np.exp(-((x - m) ** 2) / (2 * s * s)) for m, c in zip(shifts, chances, strict=True))
    return mass * (x[1] - x[0]) / (s * math.sqrt(2 * math.pi))


def binomial(k, q):
    return [math.comb(k, j) * q**j * (1 - q) ** (k - j) for j in range(k + 1)]


@pytest.mark.parametrize("relation", ["add-remove", "replace-one"])
@pytest.mark.parametrize(
    ("k", "q", "s", "steps"), [(1, 0.1, 1.0, 1), (2, 0.1, 1.5, 1), (3, 0.3, 2.0, 1), (3, 0.05, 2.0, 2)]
)
def test_poisson_against_all_records_at_once(relation, k, q, s, steps):
    release = Release(s, steps, sampling="poisson", relation=relation, sample_rate=q)
    there = law(range(k + 1), binomial(k, q), s)
    other = law([-j for j in range(k + 1)], binomial(k, q), s) if relation == "replace-one" else law([0], [1.0], s)
    for epsilon in (0.1, 0.8):
        found = group_delta([release], epsilon, size=k)
        truth = exact_delta(epsilon, [[(there, other), (other, there)]] * steps)
        assert found.lower <= truth * (1 + 1e-4)
        assert truth <= found.upper * (1 + 1e-4)
        assert found.upper == pytest.approx(found.lower, rel=1.1e-3)


@pytest.mark.parametrize("sampling", ["poisson", "cyclic-poisson:2"])
def test_a_group_that_is_drawn_all_but_always_has_ends_of_its_own(sampling):
    """The probability that no record of the group is drawn is so small that 1 minus it rounds to 1.

    The numbers of drawn records still count: the lower end is near the truth, and not that of a single record.
    """
    k, q, s, epsilon = 14, 0.97, 56.0, 1.5
    assert 1 - (1 - q) ** k in (1.0, math.nextafter(1.0, 0.0))
    rate = q if sampling == "poisson" else q / 2
    release = Release(s, 1, sampling=sampling, relation="add-remove", sample_rate=rate)
    couple = law(range(k + 1), binomial(k, q), s), law([0], [1.0], s)
    truth = exact_delta(epsilon, [[couple, couple[::-1]]])
    found = group_delta([release], epsilon, size=k)
    assert found.lower <= truth * (1 + 1e-4)
    assert truth <= found.upper * (1 + 1e-4)
    assert found.lower > 0.99 * truth


@pytest.mark.parametrize(
    ("s", "k", "q", "steps"), [(12.5, 3, 0.00512, 1000), (12.5, 50, 0.00512, 1000), (2.0, 5, 0.01, 100)]
)
def test_poisson_groups_beside_the_mixtures_of_dp_accounting(s, k, q, steps):
    """Poisson groups cost a little less than dp-accounting's bound for mixtures of Gaussians.

    dp-accounting composes the mixture's losses rounded up to a grid, so its epsilon is a little above the truth.
    """
    distribution = pytest.importorskip("dp_accounting.pld.privacy_loss_distribution")
    chances = np.array(binomial(k, q))
    grid = {12.5: 1e-4, 2.0: 5e-4}[s]
    theirs = distribution.from_mixture_gaussian_mechanism(
        s, range(k + 1), chances / chances.sum(), value_discretization_interval=grid
    )
    epsilon = theirs.self_compose(steps).get_epsilon_for_delta(1e-5)
    ours = group_epsilon([Release(s, steps, sampling="poisson", relation="add-remove", sample_rate=q)], 1e-5, size=k)
    assert ours.upper <= ours.lower * (1 + 1e-3)
    assert ours.lower <= epsilon <= ours.upper * (1 + 3e-3)


@pytest.mark.parametrize("relation", ["add-remove", "replace-one", "zero-out"])
def test_no_pull_of_the_group_costs_more_than_that_in_one_direction(relation):
    """A group whose records pull by different amounts, or against each other, costs no more.

    The bound is that of a group whose records all pull one way. The deltas are sums over the outputs of one release.
    """
    k, q, s, epsilon = 3, 0.3, 1.5, 0.4
    bound = group_delta([Release(s, 1, sampling="poisson", relation=relation, sample_rate=q)], epsilon, size=k).upper
    draw = np.random.default_rng(7)
    chances = [math.prod(q if i in kept else 1 - q for i in range(k)) for kept in _subsets(k)]
    largest = 0.0
    for _ in range(40):
        pulls, others = draw.uniform(-1, 1, (2, k))
        there = law([sum(pulls[i] for i in kept) for kept in _subsets(k)], chances, s)
        moved = [sum(others[i] for i in kept) for kept in _subsets(k)] if relation == "replace-one" else [0.0] * 2**k
        other = law(moved, chances, s)
        largest = max(largest, exact_delta(epsilon, [[(there, other), (other, there)]]))
    assert 0.2 * bound < largest <= bound


def _subsets(k):
    """Returns the subsets of the numbers 0, ..., k - 1."""
    return [kept for size in range(k + 1) for kept in itertools.combinations(range(k), size)]


def test_noise_for_a_poisson_group_lies_in_a_narrow_bracket():
    drawn = {"sampling": "poisson", "relation": "add-remove", "sample_rate": 0.01}
    found = group_noise(target_epsilon=2.0, target_delta=1e-5, size=4, steps=100, **drawn)
    assert found.lower > 0.99 * found.upper
    below = Release(found.lower, 100, **drawn)
    assert group_delta([below], 2.0, size=4).upper > 1e-5


def test_fixed_size_against_all_batches():
    n, batch, k, s = 6, 2, 2, 3.0
    release = Release(s, 1, sampling="fixed-size", relation="replace-one", sample_rate=batch / n)
    for side in (1, -1):
        sums = {1: [], -1: []}
        for members in itertools.combinations(range(n), batch):
            drawn = sum(i < k for i in members)
            for sign in (1, -1):
                sums[sign].append(side * (sign * drawn - (batch - drawn)))
        chances = [1 / math.comb(n, batch)] * math.comb(n, batch)
        there, other = (law(sums[sign], chances, s) for sign in (1, -1))
        found = group_delta([release], 0.3, size=k)
        assert 0 < exact_delta(0.3, [[(there, other), (other, there)]]) <= found.upper * (1 + 1e-6)


def batches_of(n, batch, k, s, group, other):
    """Returns the law of a fixed-size batch's sum, by enumeration, if k records contribute `group`, all others
    `other`."""
    members = list(itertools.combinations(range(n), batch))
    sums = [sum(group if i < k else other for i in drawn) for drawn in members]
    return law(sums, [1 / len(members)] * len(members), s)


@pytest.mark.parametrize("relation", ["add-remove", "replace-one", "zero-out"])
@pytest.mark.parametrize(("n", "batch", "k", "s", "steps"), [(6, 2, 2, 2.0, 1), (7, 3, 3, 1.5, 1), (6, 2, 2, 4.0, 2)])
def test_lower_ends_of_fixed_size_batches_are_attained_by_groups(relation, n, batch, k, s, steps):
    """All batches are enumerated; the group's records contribute 1, the others -1.

    Without the group the batches are of the others alone.
    """
    there = batches_of(n, batch, k, s, 1, -1)
    without = {
        "add-remove": lambda: batches_of(n - k, batch, 0, s, 1, -1),
        "replace-one": lambda: batches_of(n, batch, k, s, -1, -1),
        "zero-out": lambda: batches_of(n, batch, k, s, 0, -1),
    }[relation]()
    release = Release(s, steps, sampling="fixed-size", relation=relation, sample_rate=batch / n)
    for epsilon in (0.1, 0.7):
        truth = exact_delta(epsilon, [[(there, without), (without, there)]] * steps)
        found = group_delta([release], epsilon, size=k, n=n)
        one = delta_of_history([release], epsilon)
        assert one.lower < found.lower <= truth * (1 + 1e-3)
        assert max(found.lower * 1.01, one.lower) >= truth * (1 - 1e-3)
        assert truth <= found.upper * (1 + 1e-6)
        assert any("attained by data of a group" in note for note in found.notes)


def laplace_law(shifts, chances, s):
    """Returns a mixture of Laplace laws by exact masses of 12,001 intervals of outputs and the two rays beyond."""
    edges = np.linspace(-30 * s, 30 * s, 12_001)
    below = sum(c * stats.laplace.cdf(edges, m, s) for m, c in zip(shifts, chances, strict=True))
    above = sum(c * stats.laplace.sf(edges[-1:], m, s) for m, c in zip(shifts, chances, strict=True))
    return np.concatenate([below[:1], np.diff(below), above])


@pytest.mark.parametrize("relation", ["add-remove", "replace-one", "zero-out"])
@pytest.mark.parametrize(("k", "q", "s", "steps"), [(2, 0.1, 3.0, 1), (3, 0.3, 2.0, 1), (5, 0.05, 8.0, 2)])
def test_laplace_groups_are_exact(relation, k, q, s, steps):
    release = Release(s, steps, sampling="poisson", relation=relation, sample_rate=q, mechanism="laplace")
    there = laplace_law(range(k + 1), binomial(k, q), s)
    shifts = [-j for j in range(k + 1)]
    other = laplace_law(shifts, binomial(k, q), s) if relation == "replace-one" else laplace_law([0], [1.0], s)
    for epsilon in (0.01, 0.05):
        truth = exact_delta(epsilon, [[(there, other), (other, there)]] * steps)
        found = group_delta([release], epsilon, size=k)
        assert found.lower * (1 - 1e-3) <= truth <= found.upper * (1 + 1e-3)
        assert found.upper <= found.lower * 1.01
    factors = [abs(math.log(p / r)) for p, r in ((there[0], other[0]), (there[-1], other[-1]))]
    pure = group_epsilon([release], 0.0, size=k)
    assert pure.lower == pytest.approx(steps * max(factors), rel=1e-9)
    assert pure.upper == pytest.approx(pure.lower, rel=1e-9)


def test_no_pull_of_a_laplace_group_costs_more():
    k, q, s, epsilon = 3, 0.3, 2.5, 0.1
    release = Release(s, 1, sampling="poisson", relation="replace-one", sample_rate=q, mechanism="laplace")
    bound = group_delta([release], epsilon, size=k).upper
    draw = np.random.default_rng(11)
    chances = [math.prod(q if i in kept else 1 - q for i in range(k)) for kept in _subsets(k)]
    largest = 0.0
    for _ in range(40):
        pulls, others = draw.uniform(-1, 1, (2, k))
        there, other = (
            laplace_law([sum(p[i] for i in kept) for kept in _subsets(k)], chances, s) for p in (pulls, others)
        )
        largest = max(largest, exact_delta(epsilon, [[(there, other), (other, there)]]))
    assert 0.2 * bound < largest <= bound


@pytest.mark.parametrize("relation", ["add-remove", "replace-one", "zero-out"])
def test_cyclic_groups_are_those_of_one_turn(relation):
    """Records of one turn attain it: a round is one Poisson batch of them. Records of several turns cost less."""
    q, s, k = 0.4, 3.0, 2
    release = Release(s, 2, sampling="cyclic-poisson:2", relation=relation, sample_rate=q / 2)
    sign = -1 if relation == "replace-one" else 0
    there, other = (law([x * j for j in range(k + 1)], binomial(k, q), s) for x in (1, sign))
    apart, alone = (law([0, x], [1 - q, q], s) for x in (1, sign))
    for epsilon in (0.05, 0.4):
        found = group_delta([release], epsilon, size=k)
        exact = exact_delta(epsilon, [[(there, other), (other, there)]])
        assert found.lower * (1 - 1e-4) <= exact <= found.upper * (1 + 1e-4)
        assert found.upper <= found.lower * 1.001
        assert exact_delta(epsilon, [[(apart, alone), (alone, apart)]] * 2) < found.lower
    few = group_delta([release], 0.4, size=k, n=3)
    assert few.lower < found.lower <= few.upper
    always = Release(s, 6, sampling="cyclic-poisson:2", relation=relation, sample_rate=0.5)
    full = Release(s / k, 3, sampling="full", relation=relation)
    found = group_epsilon([always], 1e-5, size=k)
    assert found.lower == pytest.approx(epsilon_of_history([full], 1e-5).lower, rel=1e-9)


@pytest.mark.parametrize("sampling", ["poisson", "cyclic-poisson:2"])
def test_a_group_that_is_drawn_almost_surely_has_valid_ends(sampling):
    """With 200 records at rate 0.9, that none is drawn has probability 1e-200, and all of them 1e-9."""
    k, q, s = 200, 0.9, 90.0
    release = Release(s, 2, sampling="poisson", relation="add-remove", sample_rate=q)
    if sampling != "poisson":
        release = Release(s, 4, sampling=sampling, relation="add-remove", sample_rate=q / 2)
    x = np.linspace(-8 * s, k + 8 * s, 1001)
    without = np.exp(-(x**2) / (2 * s * s))
    there = sum(c * np.exp(-((x - j) ** 2) / (2 * s * s)) for j, c in enumerate(binomial(k, q)))
    pair = tuple(mass * (x[1] - x[0]) / (s * math.sqrt(2 * math.pi)) for mass in (there, without))
    for epsilon in (1.0, 4.0):
        truth = exact_delta(epsilon, [[pair, pair[::-1]]] * 2)
        found = group_delta([release], epsilon, size=k)
        assert found.lower <= truth * (1 + 1e-4)
        assert truth <= found.upper * (1 + 1e-4)


def test_steps_for_a_group_of_three_are_known():
    drawn = {"sampling": "poisson", "relation": "add-remove", "sample_rate": 0.01, "noise_multiplier": 4.0}
    found = most_steps(target_epsilon=1.0, target_delta=1e-5, group=3, **drawn)
    assert found.value > 100
    step = Release(4.0, found.value, sampling="poisson", relation="add-remove", sample_rate=0.01)
    assert group_delta([step], 1.0, size=3).upper <= 1e-5
    assert group_delta([step.with_steps(round(1.01 * found.value) + 1)], 1.0, size=3).lower > 1e-5


def test_full_batches_scale():
    found = group_epsilon([Release(50.0, 100, sampling="full", relation="replace-one")], 1e-6, size=5)
    plain = epsilon_of_history([Release(10.0, 100, sampling="full", relation="replace-one")], 1e-6)
    assert (found.lower, found.upper) == (plain.lower, plain.upper)


def test_one_record_is_a_group_of_one_and_more_cost_more():
    history = [Release(2.0, 500, sampling="poisson", relation="add-remove", sample_rate=0.01)]
    assert group_delta(history, 1.0, size=1).upper == delta_of_history(history, 1.0).upper
    costs = [group_epsilon(history, 1e-5, size=k) for k in (1, 2, 4)]
    assert costs[0].upper < costs[1].upper < costs[2].upper
    assert costs[0].upper < costs[1].lower < costs[1].upper < costs[2].lower


def positions(k, t, s, epsilon):
    """Returns delta of one epoch of t = 2 steps of random allocation for a group of k records.

    Each record adds 1 in a random one of the steps; both outputs are summed over. s is the noise multiplier.
    """
    x = np.linspace(-10 * s - k, 10 * s + k, 801)
    one = {m: law_at(x, m, s) for m in range(k + 1)}
    there = sum(math.comb(k, j) * 0.5**k * np.outer(one[j], one[k - j]) for j in range(k + 1))
    without = np.outer(one[0], one[0])
    assert t == 2
    return max(float(np.maximum(p - math.exp(epsilon) * q, 0).sum()) for p, q in ((there, without), (without, there)))


def law_at(x, mean, s):
    return np.exp(-((x - mean) ** 2) / (2 * s * s)) * (x[1] - x[0]) / (s * math.sqrt(2 * math.pi))


def test_any_sampling_by_one_record_after_another():
    """For random allocation a group's bound, by one record after another, holds and is near the exact cost.

    The groups have two and three records.
    """
    release = Release(4.0, 2, sampling="random-allocation", relation="add-remove", sample_rate=0.5)
    for k in (2, 3):
        for epsilon in (0.1, 0.4):
            exact = positions(k, 2, 4.0, epsilon)
            found = group_delta([release], epsilon, size=k)
            assert found.lower <= exact <= found.upper * (1 + 1e-6)
            assert found.method == "one record after another"
    laplace = Release(5.0, 10, sampling="full", relation="add-remove", mechanism="laplace")
    assert group_epsilon([laplace], 0.0, size=3).upper == pytest.approx(6.0, rel=1e-9)


def test_the_better_of_both_bounds_counts():
    """The better of two bounds for groups counts.

    For three records that are seldom drawn together it is 2.19, and not the epsilon of the pair of laws at three clips.
    """
    release = Release(4.0, 200, sampling="fixed-size", relation="replace-one", sample_rate=0.02)
    found = group_epsilon([release], 1e-5, size=3)
    assert found.upper < 2.2
    assert group_delta([release], found.upper, size=3).upper <= 1e-5


def test_cyclic_batches_of_two_groups_against_the_exact_law():
    """Cyclic batches of two groups agree with the exact law of two records, each of its own group, with one turn each.

    Both outputs are enumerated.
    """
    q, s = 0.4, 3.0
    release = Release(s, 2, sampling="cyclic-poisson:2", relation="add-remove", sample_rate=q / 2)
    there, without = law([0, 1], [1 - q, q], s), law([0], [1.0], s)
    for epsilon in (0.05, 0.4):
        exact = exact_delta(epsilon, [[(there, without), (without, there)]] * 2)
        assert exact <= group_delta([release], epsilon, size=2).upper * (1 + 1e-6)


def test_noise_steps_batch_and_records_for_groups():
    batches = {"sampling": "poisson", "relation": "add-remove"}
    noise = group_noise(target_epsilon=2.0, target_delta=1e-5, steps=50, sample_rate=0.05, size=2, **batches)
    release = Release(noise.value, 50, sample_rate=0.05, **batches)
    assert group_epsilon([release], 1e-5, size=2).upper == pytest.approx(2.0, rel=2e-3)
    given = {"target_epsilon": 2.0, "target_delta": 1e-5, "noise_multiplier": noise.value, "group": 2, **batches}
    assert 50 <= most_steps(**given, sample_rate=0.05).value <= 51
    assert 50 <= largest_batch(**given, n=1000, steps=50).value <= 51
    assert 990 <= fewest_records(**given, batch=50, steps=50).value <= 1000
    full = {"steps": 10, "sampling": "full", "relation": "replace-one"}
    one, five = (group_noise(target_epsilon=2.0, target_delta=1e-5, size=k, **full) for k in (1, 5))
    assert five.upper == pytest.approx(5 * one.upper, rel=1e-12)
    assert five.lower == pytest.approx(5 * one.lower, rel=1e-12)


def test_a_later_link_of_fixed_size_batches_has_a_larger_rate():
    """In a chain of batches of fixed size, a later removal of a record has a larger sampling rate.

    B of n records are drawn, and k are removed one after another; each removal's delta is a sum over all batches, with
    the record at 1 and the others at -1.
    """
    n, batch, k, s = 6, 2, 3, 6.0
    release = Release(s, 1, sampling="fixed-size", relation="add-remove", sample_rate=batch / n)
    for epsilon in (0.0, 0.2):
        total = 0.0
        for i in range(k):
            drawn = [0 in members for members in itertools.combinations(range(n - i), batch)]
            there = law([2 - batch if d else -batch for d in drawn], [1 / len(drawn)] * len(drawn), s)
            without = law([-batch], [1.0], s)
            total += math.exp(i * epsilon / k) * exact_delta(epsilon / k, [[(there, without), (without, there)]])
        found = group_delta([release], epsilon, size=k, n=n)
        assert total * (1 - 1e-6) <= found.upper < 1.5 * total
        assert group_delta([release], epsilon, size=k, n=10 * n).upper < found.upper


@pytest.mark.parametrize(
    ("sampling", "rate", "size", "n", "named"),
    [
        (
            "fixed-size",
            2 / 6,
            5,
            6,
            r"^size must be at most n - B = 4 with batches of 2 of 6 records, add-remove; got 5$",
        ),
        (
            "fixed-size",
            2 / 6,
            3,
            None,
            r"^size must be at most n - B = 2 with batches of 1 of 3 records, add-remove; got 3 \(",
        ),
        ("fixed-size", 0.1, 3, 25, r"^sample_rate \* n must be an integer"),
        ("poisson", 0.1, 26, 25, r"^size must be an integer with 1 <= size <= 25; got 26$"),
        ("truncated-poisson:3/20", 0.1, 2000, None, r"^size must be an integer with 1 <= size <= 20; got 2000$"),
        ("full", 1.0, 3, 2, r"^size must be an integer with 1 <= size <= 2; got 3$"),
    ],
)
def test_a_group_is_no_larger_than_the_records_that_can_be_missing(sampling, rate, size, n, named):
    release = Release(5.0, 10, sampling=sampling, relation="add-remove", sample_rate=rate)
    for ask in (
        lambda: group_delta([release], 1.0, size=size, n=n),
        lambda: group_epsilon([release], 1e-5, size=size, n=n),
    ):
        with pytest.raises(ValueError, match=named):
            ask()
    drawn = {"sampling": sampling, "relation": "add-remove", "sample_rate": rate}
    with pytest.raises(ValueError, match=named):
        group_noise(target_epsilon=1.0, target_delta=1e-5, size=size, n=n, steps=10, **drawn)


def test_whole_numbers_for_groups_that_fixed_size_batches_can_miss():
    drawn = {"sampling": "fixed-size", "relation": "add-remove", "noise_multiplier": 30.0, "steps": 10, "group": 3}
    target = {"target_epsilon": 4.0, "target_delta": 1e-5}
    assert largest_batch(n=12, **target, **drawn).value == 9
    assert fewest_records(batch=4, **target, **drawn).value == 7


def test_a_group_that_the_noise_does_not_hide_is_refused_or_named():
    history = [Release(0.15, 1000, sampling="poisson", relation="add-remove", sample_rate=256 / 50_000)]
    with pytest.raises(
        PreconditionError, match=r"^size must be small enough for this noise to protect the group; got 50"
    ):
        group_epsilon(history, 1e-5, size=50)
    assert group_delta(history, 1e4, size=50).upper == 1
    louder = group_epsilon([history[0].with_noise(0.75)], 1e-5, size=50)
    assert 200 < louder.lower < louder.upper < 1.002 * louder.lower
    assert "protects nothing" in louder.notes[-1]
    found = group_epsilon([Release(4.0, 1000, sampling="full", relation="add-remove")], 1e-5, size=50)
    assert found.upper > 1e4
    found = group_epsilon(
        [Release(4.0, 2000, sampling="poisson", relation="add-remove", sample_rate=0.2)], 1e-5, size=9
    )
    assert "protects nothing" in found.notes[-1]


def test_a_factor_beyond_all_floats_is_not_cut_off():
    """A factor beyond all floats, e^(i epsilon/k) up to e^2000, is not cut off.

    The delta beside it is at least the least float.
    """
    release = Release(40.0, 1, sampling="random-allocation:3", relation="add-remove", sample_rate=0.9)
    assert group_delta([release], 2000.0, size=400).upper == 1
    assert 0 < group_delta([release], 1000.0, size=2).upper < 1e-100


def test_fixed_orders_are_closed_form_for_groups_of_any_size():
    release = Release(100.0, 1, sampling="fixed-order", relation="zero-out", sample_rate=0.01)
    plain = epsilon_of_history([Release(1e-4, 1, sampling="full", relation="zero-out")], 1e-5)
    assert group_epsilon([release], 1e-5, size=10**6).upper == pytest.approx(plain.upper, rel=1e-9)


def test_the_lower_end_under_zero_out_is_near_the_upper_one_where_records_are_seldom_used() -> None:
    """The grid is laid for the pair that data attain, not for one that costs many times as much."""
    drawn = Release(7.0, 2000, sampling="fixed-size", relation="zero-out", sample_rate=1e-4)
    found = group_epsilon([drawn], 1e-5, size=25)
    assert 0.9 * found.upper < found.lower < found.upper
