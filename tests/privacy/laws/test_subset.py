"""Random allocation in which a record is in k steps of an epoch of t: brute force over all outputs, and Monte Carlo."""

import itertools
import math

import numpy as np
import pytest

from dpzero_theory.privacy.accountant import delta_of_history, epsilon_of_history
from dpzero_theory.privacy.laws.epoch import counts
from tests.privacy.oracle import made, noise_for


def taken(s, t, k, steps, relation="add-remove"):
    return made(s, steps, k / t, relation, sampling=f"random-allocation:{k}")


def exact(epsilons, s, t, k, released, relation):
    """Returns the deltas of one epoch, `released` of whose steps are seen, by the trapezoid rule."""
    # With 8 points to a standard deviation three steps erred by 5e-4.
    each = {1: 4000, 2: 100}.get(released, 16)
    x = np.arange(-7 * s - 1, 7 * s + 1, s / each)
    found = np.zeros((len(epsilons), 2))
    for first in np.array_split(x, 1 if released < 3 else 16):
        grid = np.meshgrid(first, *[x] * (released - 1), indexing="ij", sparse=True)
        base = math.prod(np.exp(-g * g / (2 * s * s)) / (each * math.sqrt(2 * math.pi)) for g in grid)
        laws = []
        for sign in (1, -1 if relation == "replace-one" else 0):
            ratio = [np.exp((2 * sign * g - sign * sign) / (2 * s * s)) for g in grid]
            laws.append(sum(
                base * math.prod(ratio[i] for i in seen) * math.comb(t - released, k - j) / math.comb(t, k)
                for j in range(min(k, released) + 1) for seen in itertools.combinations(range(released), j)
            ))  # fmt: skip
        found += [[np.maximum(p - math.exp(e) * q, 0).sum() for p, q in (laws, laws[::-1])] for e in epsilons]
    return found.max(axis=1)


@pytest.mark.parametrize(
    ("s", "t", "k", "released"),
    [(1.2, 3, 2, 3), (2.0, 3, 2, 3), (2.0, 4, 2, 3), (1.5, 5, 3, 2), (3.0, 4, 3, 1), (1.0, 40, 3, 2)],
)
@pytest.mark.parametrize("relation", ["add-remove", "replace-one"])
def test_one_epoch_against_all_outputs(s, t, k, released, relation):
    """Its first two steps of forty cost far less than all of them, although blocks have the record in them three times
    as often as the steps do, which is most of what the upper end lacks."""
    epsilons = (0.2, 1.0)
    for epsilon, truth in zip(epsilons, exact(epsilons, s, t, k, released, relation), strict=True):
        found = delta_of_history(taken(s, t, k, released, relation), epsilon)
        assert 0 < found.lower <= truth * (1 + 1e-4)
        assert truth * (1 - 1e-4) <= found.upper
        if t == 40:
            assert found.upper < 0.3 * delta_of_history(taken(s, t, k, 40, relation), epsilon).lower
        else:
            assert truth < 1.2 * found.lower
        if released == t:
            assert found.upper < 1.4 * truth


@pytest.mark.parametrize(
    ("s", "t", "k", "relation", "width"),
    [
        (1.0, 12, 3, "replace-one", 0.03),
        (5.0, 12, 3, "replace-one", 0.005),
    ],
)
def test_one_epoch_is_known(s, t, k, relation, width):
    found = epsilon_of_history(taken(s, t, k, t, relation), 1e-5)
    assert found.upper < (1 + width) * found.lower


@pytest.mark.parametrize(
    ("s", "t", "k", "epochs", "delta", "further", "draws"),
    [(2.0, 12, 3, 5, 1e-3, 0.0, 400_000), (0.5, 12, 3, 1, 1e-5, 0.9, 100_000), (0.6, 12, 2, 1, 1e-5, 1.1, 100_000)],
)
def test_epochs_hold_draws(s, t, k, epochs, delta, further, draws):
    """Losses of epochs from one seed, with five standard errors of room; the outputs of the record's steps are drawn
    `further` up, and weighted."""
    found = epsilon_of_history(taken(s, t, k, t * epochs), delta)
    if epochs > 1:
        assert found.upper < 1.03 * found.lower
    rng, loss, weight = np.random.default_rng(11), np.zeros(draws), np.ones(draws)
    for _ in range(epochs):
        x = s * rng.standard_normal((draws, t))
        x[:, :k] += 1 + further
        weight *= np.exp((further**2 - 2 * further * (x[:, :k] - 1)).sum(axis=1) / (2 * s * s))
        sums = np.zeros((k + 1, draws))
        sums[0] = 1
        for column in np.exp((2 * x - 1) / (2 * s * s)).T:
            sums[1:] += sums[:-1] * column
        loss += np.log(sums[k] / math.comb(t, k))
    for epsilon, sign in ((found.lower, 1), (found.upper, -1)):
        gain = weight * np.maximum(-np.expm1(epsilon - loss), 0)
        room = 5 * float(gain.std()) / math.sqrt(draws)
        assert room < 0.3 * delta
        assert sign * (gain.mean() - delta) > -room


def test_it_costs_less_than_known_steps_and_more_than_a_step_less():
    costs = [epsilon_of_history(taken(3.0, 128, k, 64), 1e-6) for k in (1, 2, 4, 8)]
    for fewer, more in itertools.pairwise(costs):
        assert fewer.upper < more.lower
    assert costs[-1].upper < 0.7 * epsilon_of_history(made(3.0, 16), 1e-6).lower
    whole = made(3.0, 64, sampling="random-allocation:4")
    assert delta_of_history(whole, 1.0) == delta_of_history(made(3.0, 64), 1.0)
    one, plain = (made(2.0, 32, 1 / 16, "replace-one", sampling=f"random-allocation{k}") for k in (":1", ""))
    assert one == plain
    assert one.sampling.word == "random-allocation"


@pytest.mark.parametrize("relation", ["add-remove", "replace-one"])
def test_any_history_is_tight(relation):
    """Beside a rare Poisson step, cyclic batches and a Laplace release epsilon is little more, and no bound without
    amplification is used."""
    allocation = taken(5.0, 64, 4, 640, relation)
    alone = epsilon_of_history(allocation, 1e-6)
    others = [
        made(5.0, 1, 1e-3, relation),
        made(5.0, 10, 1e-4, relation, sampling="cyclic-poisson:10"),
        made(50.0, 1, 1e-2, relation, mechanism="laplace"),
    ]
    for count in (1, 2, 3):
        found = epsilon_of_history([allocation, *others[:count]], 1e-6)
        assert alone.lower * (1 - 1e-3) <= found.upper < 1.01 * alone.upper
        assert found.upper < 1.02 * found.lower


def test_noise_for_a_target():
    question = {"steps": 64, "sampling": "random-allocation:4", "relation": "add-remove", "sample_rate": 4 / 64}
    found = noise_for(target_epsilon=1.0, target_delta=1e-5, **question)
    assert found.lower < found.upper < 1.03 * found.lower
    enough, short = (delta_of_history(taken(s, 64, 4, 64), 1.0) for s in (found.upper, found.lower))
    assert enough.upper <= 1e-5 < short.upper


@pytest.mark.parametrize(
    ("epoch", "k", "released"),
    [(10, 4, 6), (5, 4, 3), (7, 3, 2), (9, 8, 5), (300, 40, 20), (10**6, 20, 4 * 10**5), (10**9, 5, 5 * 10**8)],
)
def test_the_number_of_steps_taken_is_hypergeometric(epoch, k, released):
    """By exact integers. By log-gamma functions the chances erred by 1e-6 at 10^9 steps."""
    kept, left_out = counts(epoch, k, released)
    found = dict(kept)
    assert left_out == 1e-18 * (min(k, released) - max(0, k - epoch + released) + 1 - len(kept))
    assert sum(found.values()) == pytest.approx(1)
    for j in range(max(0, k - epoch + released), min(k, released) + 1):
        ways = math.perm(released, j) * math.perm(epoch - released, k - j) * math.comb(k, j)
        assert found.get(j, 0.0) == pytest.approx(ways / math.perm(epoch, k), rel=1e-13, abs=1e-18)
