"""Groups of records, against the exact laws of k records that all pull one way: sums over outputs and over subsets."""

import itertools
import math
from dataclasses import replace

import numpy as np
import pytest
from scipy import stats

from dpzero_theory.check import PreconditionError
from dpzero_theory.privacy.accountant import delta_of_history, epsilon_of_history
from tests.privacy.oracle import around, exact_delta, made, noise_for, sought

RELATIONS = pytest.mark.parametrize("relation", ["add-remove", "replace-one", "zero-out"])
TARGET = {"target_epsilon": 2.0, "target_delta": 1e-5}


def law(shifts, chances, s):
    """Returns a mixture of normal laws with these means and chances, as probabilities on a grid of outputs."""
    x = np.linspace(-14 * s - 6, 14 * s + 6, 6_001)
    mass = sum(c * np.exp(-((x - m) ** 2) / (2 * s * s)) for m, c in zip(shifts, chances, strict=True))
    return mass * (x[1] - x[0]) / (s * math.sqrt(2 * math.pi))


def laplace_law(shifts, chances, s):
    """Returns a mixture of Laplace laws by exact masses of 12,001 intervals of outputs and the two rays beyond."""
    edges = np.linspace(-30 * s, 30 * s, 12_001)
    below = sum(c * stats.laplace.cdf(edges, m, s) for m, c in zip(shifts, chances, strict=True))
    above = sum(c * stats.laplace.sf(edges[-1:], m, s) for m, c in zip(shifts, chances, strict=True))
    return np.concatenate([below[:1], np.diff(below), above])


LAWS = {"gaussian": law, "laplace": laplace_law}


def binomial(k, q):
    return [math.comb(k, j) * q**j * (1 - q) ** (k - j) for j in range(k + 1)]


def truth(epsilon, there, other, steps=1):
    return exact_delta(epsilon, [[(there, other), (other, there)]] * steps)


def one_way(k, q, s, relation, mechanism="gaussian"):
    """Returns the laws of k records that are drawn at rate q and all pull one way, and of those that replace them."""
    chances = binomial(k, q)
    there = LAWS[mechanism](range(k + 1), chances, s)
    replaced = relation == "replace-one"
    return there, LAWS[mechanism]([-j * replaced for j in range(k + 1)], chances, s)


@pytest.mark.parametrize("relation", ["add-remove", "replace-one"])
@pytest.mark.parametrize(
    ("k", "q", "s", "steps"), [(1, 0.1, 1.0, 1), (2, 0.1, 1.5, 1), (3, 0.3, 2.0, 1), (3, 0.05, 2.0, 2)]
)
def test_poisson_against_all_records_at_once(relation, k, q, s, steps):
    for epsilon in (0.1, 0.8):
        found = delta_of_history([made(s, steps, q, relation)], epsilon, group=k)
        assert around(found, truth(epsilon, *one_way(k, q, s, relation), steps), 1e-4, width=1.1e-3)


@pytest.mark.parametrize("turns", [1, 2])
def test_a_group_that_is_drawn_almost_surely_has_ends_of_its_own(turns):
    """1 minus the probability that none is drawn rounds to 1, and of 200 records at rate 0.9 that is 1e-200. The
    numbers of drawn records still count: the lower end is near the truth, and not that of a single record."""
    words = {"sampling": f"cyclic-poisson:{turns}"} if turns > 1 else {}
    k, q, s = 14, 0.97, 56.0
    found = delta_of_history([made(s, 1, q / turns, **words)], 1.5, group=k)
    assert around(found, truth(1.5, *one_way(k, q, s, "add-remove")), 1e-4)
    assert found.lower > 0.99 * truth(1.5, *one_way(k, q, s, "add-remove"))
    k, q, s = 200, 0.9, 90.0
    x = np.linspace(-8 * s, k + 8 * s, 1001)
    pair = [
        sum(c * stats.norm.pdf(x, j, s) for j, c in enumerate(chances)) * (x[1] - x[0])
        for chances in (binomial(k, q), [1.0])
    ]
    for epsilon in (1.0, 4.0):
        found = delta_of_history([made(s, 2 * turns, q / turns, **words)], epsilon, group=k)
        assert around(found, truth(epsilon, *pair, steps=2), 1e-4)


@pytest.mark.parametrize(
    ("s", "k", "q", "steps"), [(12.5, 3, 0.00512, 1000), (12.5, 50, 0.00512, 1000), (2.0, 5, 0.01, 100)]
)
def test_poisson_groups_beside_the_mixtures_of_dp_accounting(s, k, q, steps):
    """dp-accounting composes the mixture's losses rounded up to a grid, so its epsilon is a little above the truth."""
    distribution = pytest.importorskip("dp_accounting.pld.privacy_loss_distribution")
    chances = np.array(binomial(k, q))
    theirs = distribution.from_mixture_gaussian_mechanism(
        s, range(k + 1), chances / chances.sum(), value_discretization_interval={12.5: 1e-4, 2.0: 5e-4}[s]
    )
    epsilon = theirs.self_compose(steps).get_epsilon_for_delta(1e-5)
    ours = epsilon_of_history([made(s, steps, q)], 1e-5, group=k)
    assert ours.upper <= ours.lower * (1 + 1e-3)
    assert ours.lower <= epsilon <= ours.upper * (1 + 3e-3)


@pytest.mark.parametrize(
    ("mechanism", "relation", "s", "epsilon"),
    [*(("gaussian", relation, 1.5, 0.4) for relation in ("add-remove", "replace-one", "zero-out")),
     ("laplace", "replace-one", 2.5, 0.1)],
)  # fmt: skip
def test_no_pull_of_the_group_costs_more_than_that_in_one_direction(mechanism, relation, s, epsilon):
    """Records that pull by different amounts, or against each other."""
    k, q, draw, largest = 3, 0.3, np.random.default_rng(7), 0.0
    bound = delta_of_history([made(s, 1, q, relation, mechanism=mechanism)], epsilon, group=k).upper
    subsets = [kept for size in range(k + 1) for kept in itertools.combinations(range(k), size)]
    chances = [q ** len(kept) * (1 - q) ** (k - len(kept)) for kept in subsets]
    for _ in range(40):
        pulls, others = draw.uniform(-1, 1, (2, k)) * [[1], [relation == "replace-one"]]
        laws = [LAWS[mechanism]([sum(p[i] for i in kept) for kept in subsets], chances, s) for p in (pulls, others)]
        largest = max(largest, truth(epsilon, *laws))
    assert 0.2 * bound < largest <= bound


def batches_of(n, batch, k, s, group, other):
    """Returns the law of a fixed-size batch's sum, by enumeration, if k records contribute `group`, all others
    `other`."""
    members = list(itertools.combinations(range(n), batch))
    sums = [sum(group if i < k else other for i in drawn) for drawn in members]
    return law(sums, [1 / len(members)] * len(members), s)


@RELATIONS
@pytest.mark.parametrize(("n", "batch", "k", "s", "steps"), [(6, 2, 2, 2.0, 1), (7, 3, 3, 1.5, 1), (6, 2, 2, 4.0, 2)])
def test_groups_in_fixed_size_batches_are_between_the_ends(relation, n, batch, k, s, steps):
    """The group's records contribute 1, the others -1. Without the group the batches are of the others alone."""
    there = batches_of(n, batch, k, s, 1, -1)
    kept = (n - k, 0) if relation == "add-remove" else (n, k)
    without = batches_of(kept[0], batch, kept[1], s, 0 if relation == "zero-out" else -1, -1)
    release = made(s, steps, batch / n, relation, sampling="fixed-size")
    for epsilon in (0.1, 0.7):
        exact, found = truth(epsilon, there, without, steps), delta_of_history([release], epsilon, group=k, n=n)
        one = delta_of_history([release], epsilon)
        assert one.lower * (1 - 1e-9) <= found.lower <= exact * (1 + 1e-3)
        assert exact <= found.upper * (1 + 1e-6)
        assert any("attained by data of a group" in note for note in found.notes)


@RELATIONS
@pytest.mark.parametrize(("k", "q", "s", "steps"), [(2, 0.1, 3.0, 1), (3, 0.3, 2.0, 1), (5, 0.05, 8.0, 2)])
def test_laplace_groups_are_exact(relation, k, q, s, steps):
    release, laws = made(s, steps, q, relation, mechanism="laplace"), one_way(k, q, s, relation, "laplace")
    for epsilon in (0.01, 0.05):
        assert around(delta_of_history([release], epsilon, group=k), truth(epsilon, *laws, steps), 1e-3, width=0.01)
    there, other = laws
    largest = max(abs(math.log(p / r)) for p, r in ((there[0], other[0]), (there[-1], other[-1])))
    pure = epsilon_of_history([release], 0.0, group=k)
    assert (pure.lower, pure.upper) == pytest.approx((steps * largest, steps * largest), rel=1e-9)


@RELATIONS
def test_cyclic_groups_are_those_of_one_turn(relation):
    """Records of one turn attain it: a round is one Poisson batch of them. Records of several turns cost less."""
    q, s, k = 0.4, 3.0, 2
    release = made(s, 2, q / 2, relation, sampling="cyclic-poisson:2")
    for epsilon in (0.05, 0.4):
        found = delta_of_history([release], epsilon, group=k)
        assert around(found, truth(epsilon, *one_way(k, q, s, relation)), 1e-4, width=1.1e-3)
        assert truth(epsilon, *one_way(1, q, s, relation), steps=2) < found.lower
    few = delta_of_history([release], 0.4, group=k, n=3)
    assert few.lower < found.lower <= few.upper
    always = epsilon_of_history([made(s, 6, 0.5, relation, sampling="cyclic-poisson:2")], 1e-5, group=k)
    full = epsilon_of_history([made(s / k, 3, relation=relation)], 1e-5)
    assert always.lower == pytest.approx(full.lower, rel=1e-9)


def test_full_batches_and_fixed_orders_scale():
    found = epsilon_of_history([made(50.0, 100, relation="replace-one")], 1e-6, group=5)
    plain = epsilon_of_history([made(10.0, 100, relation="replace-one")], 1e-6)
    assert (found.lower, found.upper) == (plain.lower, plain.upper)
    order = epsilon_of_history([made(100.0, 1, 0.01, "zero-out", sampling="fixed-order")], 1e-5, group=10**6)
    plain = epsilon_of_history([made(1e-4, relation="zero-out")], 1e-5)
    assert order.upper == pytest.approx(plain.upper, rel=1e-9)


def test_one_record_is_a_group_of_one_and_more_cost_more():
    history = [made(2.0, 500, 0.01)]
    assert delta_of_history(history, 1.0, group=1).upper == delta_of_history(history, 1.0).upper
    one, two, four = (epsilon_of_history(history, 1e-5, group=k) for k in (1, 2, 4))
    assert one.upper < two.lower < two.upper < four.lower


def test_any_sampling_by_one_record_after_another():
    """The bracket for a group of two or three records in an epoch of two steps contains their exact divergence, a
    double sum over the two outputs."""
    release, s, x = made(4.0, 2, 0.5, sampling="random-allocation"), 4.0, np.linspace(-43, 43, 801)
    for k, epsilon in itertools.product((2, 3), (0.1, 0.4)):
        one = [stats.norm.pdf(x, m, s) * (x[1] - x[0]) for m in range(k + 1)]
        there = sum(math.comb(k, j) * 0.5**k * np.outer(one[j], one[k - j]) for j in range(k + 1))
        found = delta_of_history([release], epsilon, group=k)
        assert around(found, truth(epsilon, there.ravel(), np.outer(one[0], one[0]).ravel()), 1e-6)
        assert found.method == "one record after another"
    laplace = made(5.0, 10, mechanism="laplace")
    assert epsilon_of_history([laplace], 0.0, group=3).upper == pytest.approx(6.0, rel=1e-9)


def test_the_better_of_both_bounds_counts():
    """For three records that are seldom drawn together it is 2.19, and not the epsilon, above 5, of the law at three
    clips."""
    release = made(4.0, 200, 0.02, "replace-one", sampling="fixed-size")
    found = epsilon_of_history([release], 1e-5, group=3)
    assert found.upper < 2.2 < 5 < epsilon_of_history([replace(release, noise=4.0 / 3)], 1e-5).lower
    assert delta_of_history([release], found.upper, group=3).upper <= 1e-5


def test_noise_steps_batch_and_records_for_groups():
    batches = {"sampling": "poisson", "relation": "add-remove"}
    noise = noise_for(**TARGET, steps=50, sample_rate=0.05, group=2, **batches)
    assert epsilon_of_history([made(noise.value, 50, 0.05)], 1e-5, group=2).upper == pytest.approx(2.0, rel=2e-3)
    given = {**TARGET, "noise_multiplier": noise.value, "group": 2, **batches}
    assert 50 <= sought("steps", **given, sample_rate=0.05).value <= 51
    assert 50 <= sought("batch", **given, n=1000, steps=50).value <= 51
    assert 990 <= sought("n", **given, batch=50, steps=50).value <= 1000
    one, five = (noise_for(**TARGET, group=k, steps=10, sampling="full", relation="replace-one") for k in (1, 5))
    assert (five.lower, five.upper) == pytest.approx((5 * one.lower, 5 * one.upper), rel=1e-10)
    four = noise_for(**TARGET, group=4, steps=100, sample_rate=0.01, **batches)
    assert four.lower > 0.99 * four.upper
    assert delta_of_history([made(four.lower, 100, 0.01)], 2.0, group=4).upper > 1e-5
    target = {"target_epsilon": 1.0, "target_delta": 1e-5}
    steps = sought("steps", **target, group=3, noise_multiplier=4.0, sample_rate=0.01, **batches).value
    assert steps > 100
    assert delta_of_history([made(4.0, steps, 0.01)], 1.0, group=3).upper <= 1e-5
    assert delta_of_history([made(4.0, round(1.01 * steps) + 1, 0.01)], 1.0, group=3).lower > 1e-5
    fixed = {"sampling": "fixed-size", "relation": "add-remove", "noise_multiplier": 30.0, "steps": 10, "group": 3}
    target = {"target_epsilon": 4.0, "target_delta": 1e-5}
    assert sought("batch", n=12, **target, **fixed).value == 9
    assert sought("n", batch=4, **target, **fixed).value == 7


def test_a_group_whose_losses_all_but_never_occur():
    """Of a law whose losses all are as seldom as those far below 0 that are raised, none is raised."""
    found = noise_for(
        target_epsilon=12.878058, target_delta=2.5648560e-4, group=24, steps=6, sampling="poisson",
        sample_rate=4.4996948e-4, relation="replace-one",
    )  # fmt: skip
    # The ends of another grid, 0.28698488 and 0.28702593, are certified too, so the two brackets overlap
    assert 0.28698488 < found.upper < (1 + 2e-4) * found.lower
    assert found.lower < 0.28702593


def test_a_later_link_of_fixed_size_batches_has_a_larger_rate():
    """2 of 6 records are drawn, and 3 are removed one after another; each removal's delta is a sum over all batches,
    with the record at 1 and the others at -1."""
    n, batch, k, s = 6, 2, 3, 6.0
    release = made(s, 1, batch / n, sampling="fixed-size")
    for epsilon in (0.0, 0.2):
        total = 0.0
        for i in range(k):
            link = batches_of(n - i, batch, 1, s, 1, -1), law([-batch], [1.0], s)
            total += math.exp(i * epsilon / k) * truth(epsilon / k, *link)
        found = delta_of_history([release], epsilon, group=k, n=n)
        assert total * (1 - 1e-6) <= found.upper < 1.5 * total
        assert delta_of_history([release], epsilon, group=k, n=10 * n).upper < found.upper


@pytest.mark.parametrize(
    ("sampling", "rate", "size", "n", "named"),
    [
        ("fixed-size", 2 / 6, 5, 6, r"group must be at most n - B = 4 with batches of 2 of 6 records, .*; got 5$"),
        ("fixed-size", 2 / 6, 3, None, r"n must be given for groups with sampling fixed-size and add-remove; got None"),
        ("fixed-size", 0.1, 3, 25, r"sample_rate \* n must be an integer"),
        ("poisson", 0.1, 26, 25, r"group must be an integer with 1 <= group <= 25; got 26$"),
        ("poisson", 0.1, 0, 25, r"group must be an integer .*; got 0$"),
        ("truncated-poisson:3/20", 0.1, 2000, None, r"group must be an integer with 1 <= group <= 20; got 2000$"),
        ("full", 1.0, 3, 2, r"group must be an integer with 1 <= group <= 2; got 3$"),
    ],
)  # fmt: skip
def test_a_group_is_no_larger_than_the_records_that_can_be_missing(sampling, rate, size, n, named):
    release, drawn = made(5.0, 10, rate, sampling=sampling), {"sampling": sampling, "relation": "add-remove"}
    for ask in (
        lambda: delta_of_history([release], 1.0, group=size, n=n),
        lambda: epsilon_of_history([release], 1e-5, group=size, n=n),
        lambda: noise_for(**TARGET, group=size, n=n, steps=10, sample_rate=rate, **drawn),
    ):
        with pytest.raises(ValueError, match=f"^{named}"):
            ask()


def test_a_group_that_the_noise_does_not_hide_is_refused_or_named():
    history = [made(0.15, 1000, 256 / 50_000)]
    small = r"^group must be small enough for this noise to protect the group; got 50"
    with pytest.raises(PreconditionError, match=small):
        epsilon_of_history(history, 1e-5, group=50)
    assert delta_of_history(history, 1e4, group=50).upper == 1
    louder = epsilon_of_history([replace(history[0], noise=0.75)], 1e-5, group=50)
    assert 200 < louder.lower < louder.upper < 1.002 * louder.lower
    assert "protects hardly anything" in louder.notes[-1]
    assert epsilon_of_history([made(4.0, 1000)], 1e-5, group=50).upper > 1e4
    assert "protects hardly anything" in epsilon_of_history([made(4.0, 2000, 0.2)], 1e-5, group=9).notes[-1]


def test_a_factor_beyond_all_floats_is_not_cut_off():
    """e^(i epsilon/k), up to e^2000. The delta beside it is at least the least float."""
    release = made(40.0, 1, 0.9, sampling="random-allocation:3")
    assert delta_of_history([release], 2000.0, group=400).upper == 1
    assert 0 < delta_of_history([release], 1000.0, group=2).upper < 1e-100
