"""Tests of random allocation in which a record is in k steps of an epoch of t.

The oracles are brute force over all outputs, Monte Carlo and known limits; histories with other releases are tested
too.
"""

import itertools
import math

import numpy as np
import pytest
from scipy import stats

from dpzero_theory.privacy.accountant import delta_of_history, epsilon_of_history
from dpzero_theory.privacy.calibration import calibrate_noise_multiplier
from dpzero_theory.privacy.laws.subset import counts
from dpzero_theory.privacy.step import Release


def release(s, t, k, steps, relation="add-remove"):
    return Release(s, steps, sampling=f"random-allocation:{k}", relation=relation, sample_rate=k / t)


def exact(epsilons, s, t, k, released, *, replaced):
    """Returns the deltas at `epsilons` of one epoch, `released` of whose steps are seen, by the trapezoid rule.

    The noise multiplier is s, and a record is in k of t steps. If `replaced`, the other data set has another record,
    else none.
    """
    each = {1: 4000, 2: 100}.get(released, 8)
    x = np.arange(-7 * s - 1, 7 * s + 1, s / each)
    grid = np.meshgrid(*[x] * released, indexing="ij", sparse=True)
    base = math.prod(np.exp(-g * g / (2 * s * s)) / (each * math.sqrt(2 * math.pi)) for g in grid)
    laws = []
    for sign in (1, -1 if replaced else 0):
        ratio = [np.exp((2 * sign * g - sign * sign) / (2 * s * s)) for g in grid]
        sets = list(itertools.combinations(range(t), k))
        laws.append(base * sum(math.prod(ratio[i] for i in chosen if i < released) for chosen in sets) / len(sets))
    return [max(float(np.maximum(p - math.exp(e) * q, 0).sum()) for p, q in (laws, laws[::-1])) for e in epsilons]


@pytest.mark.parametrize(
    ("s", "t", "k", "released"), [(1.2, 3, 2, 3), (2.0, 3, 2, 3), (2.0, 4, 2, 3), (1.5, 5, 3, 2), (3.0, 4, 3, 1)]
)
@pytest.mark.parametrize("replaced", [False, True])
def test_one_epoch_against_all_outputs(s, t, k, released, replaced):
    unit = release(s, t, k, released, "replace-one" if replaced else "add-remove")
    epsilons = (0.2, 1.0)
    for epsilon, truth in zip(epsilons, exact(epsilons, s, t, k, released, replaced=replaced), strict=True):
        found = delta_of_history([unit], epsilon)
        assert 0 < found.lower <= truth * (1 + 1e-4)
        assert truth * (1 - 1e-4) <= found.upper
        assert truth < 1.2 * found.lower
        if released == t:
            assert found.upper < 1.4 * truth


def test_epsilon_of_many_epochs_is_known_and_holds_a_simulation():
    """The epsilon of many epochs has a narrow bracket that agrees with a simulation.

    The simulation has 400,000 losses of five epochs, 3 of 12 steps, noise multiplier 2, from one seed; five standard
    errors each way are allowed.
    """
    s, t, k, epochs, n = 2.0, 12, 3, 5, 400_000
    found = epsilon_of_history([release(s, t, k, t * epochs)], 1e-3)
    assert found.upper < 1.03 * found.lower
    rng, loss = np.random.default_rng(11), np.zeros(n)
    for _ in range(epochs):
        x = s * rng.standard_normal((n, t))
        x[:, :k] += 1
        sums = np.zeros((k + 1, n))
        sums[0] = 1
        for column in np.exp((2 * x - 1) / (2 * s * s)).T:
            sums[1:] += sums[:-1] * column
        loss += np.log(sums[k] / math.comb(t, k))
    for epsilon, sign in ((found.lower, 1), (found.upper, -1)):
        gain = np.maximum(-np.expm1(epsilon - loss), 0)
        assert sign * (gain.mean() - 1e-3) > -5 * gain.std() / math.sqrt(n)


@pytest.mark.parametrize(("s", "t", "k", "further"), [(0.5, 12, 3, 0.9), (0.6, 12, 2, 1.1)])
def test_one_epoch_of_few_steps_holds_draws(s, t, k, further):
    """The bracket of one epoch of few steps agrees with random draws.

    There are 100,000 losses with the outputs of the record's steps shifted further up, from one seed; five standard
    errors each way are allowed.
    """
    found = epsilon_of_history([release(s, t, k, t)], 1e-5)
    n = 100_000
    x = s * np.random.default_rng(12).standard_normal((n, t))
    x[:, :k] += 1 + further
    weight = np.exp((further**2 - 2 * further * (x[:, :k] - 1)).sum(axis=1) / (2 * s * s))
    sums = np.zeros((k + 1, n))
    sums[0] = 1
    for column in np.exp((2 * x - 1) / (2 * s * s)).T:
        sums[1:] += sums[:-1] * column
    loss = np.log(sums[k] / math.comb(t, k))
    for epsilon, sign in ((found.lower, 1), (found.upper, -1)):
        gain = weight * np.maximum(-np.expm1(epsilon - loss), 0)
        error = 5 * float(gain.std()) / math.sqrt(n)
        assert error < 0.3e-5
        assert sign * (gain.mean() - 1e-5) > -error


def test_it_costs_less_than_known_steps_and_more_than_a_step_less():
    costs = [epsilon_of_history([release(3.0, 64, k, 128)], 1e-6) for k in (1, 2, 4, 8)]
    for fewer, more in itertools.pairwise(costs):
        assert fewer.upper < more.lower
    known = Release(3.0, 16, sampling="full", relation="add-remove")
    assert costs[-1].upper < 0.7 * epsilon_of_history([known], 1e-6).lower
    whole = Release(3.0, 64, sampling="random-allocation:4", relation="add-remove", sample_rate=1.0)
    full = Release(3.0, 64, sampling="full", relation="add-remove")
    assert delta_of_history([whole], 1.0) == delta_of_history([full], 1.0)


def test_one_step_an_epoch_is_the_allocation_there_was():
    one = Release(2.0, 32, sampling="random-allocation:1", relation="replace-one", sample_rate=1 / 16)
    assert one.sampling == "random-allocation"
    assert one == Release(2.0, 32, sampling="random-allocation", relation="replace-one", sample_rate=1 / 16)


@pytest.mark.parametrize("replaced", [False, True])
def test_a_beginning_of_an_epoch_costs_about_as_much_as_its_steps(replaced):
    """Two of forty steps, three of them with the record, cost far less than all forty.

    The blocks have the record in them three times as often as the steps do, which is most of what the upper end lacks.
    """
    relation = "replace-one" if replaced else "add-remove"
    for epsilon, truth in zip((0.2, 1.0), exact((0.2, 1.0), 1.0, 40, 3, 2, replaced=replaced), strict=True):
        found = delta_of_history([release(1.0, 40, 3, 2, relation)], epsilon)
        assert found.lower <= truth * (1 + 1e-4)
        assert (
            truth * (1 - 1e-4)
            <= found.upper
            < 0.3 * delta_of_history([release(1.0, 40, 3, 40, relation)], epsilon).lower
        )


def test_the_number_of_steps_taken_is_hypergeometric():
    for t, k, released in ((10, 4, 6), (300, 40, 20), (5, 4, 3)):
        found = counts(t, k, released)
        expected = stats.hypergeom(t, k, released)
        assert sum(chance for _, chance in found) == pytest.approx(1)
        for j, chance in found:
            assert chance == pytest.approx(expected.pmf(j), rel=1e-9)


@pytest.mark.parametrize("relation", ["add-remove", "replace-one"])
def test_any_history_is_tight(relation):
    """A history with other releases has a tight bracket too.

    Beside one rare Poisson step, cyclic batches and a Laplace release, the epsilon is little more, and no bound without
    amplification is used.
    """
    allocation = release(5.0, 64, 4, 640, relation)
    alone = epsilon_of_history([allocation], 1e-6)
    others = [
        Release(5.0, 1, sampling="poisson", relation=relation, sample_rate=1e-3),
        Release(5.0, 10, sampling="cyclic-poisson:10", relation=relation, sample_rate=1e-4),
        Release(50.0, 1, sampling="poisson", relation=relation, sample_rate=1e-2, mechanism="laplace"),
    ]
    for count in (1, 2, 3):
        found = epsilon_of_history([allocation, *others[:count]], 1e-6)
        assert alone.lower * (1 - 1e-3) <= found.upper < 1.01 * alone.upper
        assert found.upper < 1.02 * found.lower


def test_noise_for_a_target():
    question = {"steps": 64, "sampling": "random-allocation:4", "relation": "add-remove", "sample_rate": 4 / 64}
    found = calibrate_noise_multiplier(target_epsilon=1.0, target_delta=1e-5, **question)
    assert found.lower < found.upper < 1.03 * found.lower
    assert delta_of_history([release(found.upper, 64, 4, 64)], 1.0).upper <= 1e-5
    assert delta_of_history([release(found.lower, 64, 4, 64)], 1.0).lower > 1e-5


@pytest.mark.parametrize(
    ("epoch", "taken", "released"), [(7, 3, 2), (9, 8, 5), (10**6, 20, 4 * 10**5), (10**9, 5, 5 * 10**8)]
)
def test_chances_of_long_epochs_are_exact_to_rounding(epoch, taken, released):
    """The chances are those of exact integers. By log-gamma functions they erred by 1e-6 at 10^9 steps."""
    found = dict(counts(epoch, taken, released))
    for j in range(max(0, taken - epoch + released), min(taken, released) + 1):
        ways = math.perm(released, j) * math.perm(epoch - released, taken - j) * math.comb(taken, j)
        assert found.get(j, 0.0) == pytest.approx(ways / math.perm(epoch, taken), rel=1e-13, abs=1e-18)
