"""Tests of the accounting of random allocation, where each record is in one random step of an epoch.

The oracles are brute force for short epochs and Monte Carlo for long runs; orderings and the command line are tested
too.
"""

import json
import math
import time

import numpy as np
import pytest
from scipy.special import ndtr
from scipy.stats import norm

from dpzero_theory.check import PreconditionError
from dpzero_theory.privacy.__main__ import main
from dpzero_theory.privacy.accountant import delta_of_history, epsilon_of_history
from dpzero_theory.privacy.calibration import calibrate_noise_multiplier
from dpzero_theory.privacy.certified.allocations.allocation import Allocated, _composed, _upper, allocation_delta
from dpzero_theory.privacy.gaussian import delta_from_gdp
from dpzero_theory.privacy.step import Release


def call(strike, s):
    """Returns E (Y - strike)_+ for the log-normal Y = exp((2x - 1)/(2 s^2)), x ~ N(0, s^2), by Black's formula."""
    strike = np.asarray(strike, dtype=float)
    log_strike = np.log(np.maximum(strike, 1e-300))
    inside = ndtr(0.5 / s - s * log_strike) - strike * ndtr(-0.5 / s - s * log_strike)
    return np.where(strike > 0, inside, 1 - strike)


def brute_force(epsilon, s, t, released, epochs):
    """Returns the deltas (remove, add) of random allocation, by the trapezoid rule in all outputs but the last.

    The last output is integrated in closed form.

    Args:
        epsilon: the epsilon of the deltas.
        s: the noise multiplier.
        t: the number of steps of an epoch.
        released: how many of an epoch's steps are released.
        epochs: the number of epochs.
    """
    # At the noise multipliers used here the rule has converged to 1e-9, by comparison with half the step
    step = 0.02 if epochs == 1 else 0.15
    x = np.arange(-9, 9 + step, step)
    weight, y = norm.pdf(x) * step, np.exp(x / s - 0.5 / s**2)
    weights, ratios = np.ones(1), np.ones(1)
    for epoch in range(epochs):
        sums = np.full(1, 1 - released / t)
        sum_weights = np.ones(1)
        for _ in range(released - (epoch == epochs - 1)):
            sums = np.add.outer(sums, y / t).ravel()
            sum_weights = np.outer(sum_weights, weight).ravel()
        if epoch < epochs - 1:
            ratios = np.outer(ratios, sums).ravel()
            weights = np.outer(weights, sum_weights).ravel()
    e = math.exp(epsilon)
    remove = add = 0.0
    for ratio, w in zip(ratios, weights, strict=True):
        # The density ratio S of all steps is ratio (sums + Y/t), with the factor Y of the last output
        strike = t * (e / ratio - sums)
        remove += w * float(sum_weights @ call(strike, s)) * ratio / t
        strike = t * (1 / (e * ratio) - sums)
        put = np.where(strike > 0, call(strike, s) - 1 + strike, 0)
        add += w * float(sum_weights @ put) * e * ratio / t
    return remove, add


@pytest.mark.parametrize(("epsilon", "s", "epochs"), [(0.0, 1.0, 1), (1.0, 2.0, 1), (1.0, 2.0, 9), (3.0, 1.2, 2)])
def test_epochs_of_one_step_are_gaussian(epsilon, s, epochs):
    exact = float(delta_from_gdp(epsilon, math.sqrt(epochs) / s))
    composed = _composed((Allocated(s, 1, epochs),), 2e-3)
    law = composed.laws[0]
    losses = composed.width * (law.first + np.arange(len(law.mass)))
    # The tested upper end is the grid engine's own, since that of the closed form would pass by itself
    assert exact <= _upper(epsilon, losses, law, composed) <= exact * 1.005
    found = allocation_delta(epsilon, [Allocated(s, 1, epochs)])
    assert exact * 0.995 <= found.lower <= exact <= found.upper <= exact * (1 + 1e-10)


CASES = [
    (0.3, 1.0, 2, 2, 1),
    (0.5, 2.0, 2, 2, 1),
    (1.0, 1.2, 3, 3, 1),
    (0.5, 2.0, 3, 3, 1),
    (0.2, 2.0, 5, 3, 1),
    (0.5, 1.5, 7, 1, 1),
    (0.5, 2.0, 2, 2, 2),
    (0.0, 3.0, 2, 2, 2),
]


@pytest.mark.parametrize(("epsilon", "s", "t", "released", "epochs"), CASES)
def test_brute_force_is_in_the_bracket(epsilon, s, t, released, epochs):
    exact = max(brute_force(epsilon, s, t, released, epochs))
    found = allocation_delta(epsilon, [Allocated(s, t, released * epochs)])
    assert found.lower <= exact * (1 + 1e-9)
    assert exact * (1 - 1e-9) <= found.upper
    assert found.upper / found.lower - 1 < 2e-3
    assert found.value == pytest.approx(exact, rel=1e-3)


@pytest.mark.parametrize(("epsilon", "s", "t", "released"), [(0.3, 1.3, 2, 2), (1.0, 1.2, 3, 3), (0.2, 2.0, 5, 3)])
def test_both_directions_alone_are_bounded(epsilon, s, t, released):
    composed = _composed((Allocated(s, t, released),), 2e-3)
    p, q = composed.laws[:2]
    losses = composed.width * (p.first + np.arange(len(p.mass)))
    upper = (_upper(epsilon, losses, p, composed), _upper(epsilon, -losses, q, composed))
    for exact, bound in zip(brute_force(epsilon, s, t, released, 1), upper, strict=True):
        assert exact * (1 - 1e-9) <= bound <= exact * (1 + 2e-3) + 1e-7


def test_an_incomplete_last_epoch_against_brute_force():
    # Five steps in epochs of three are one whole epoch and two steps of another; the whole one is drawn by Monte Carlo
    rng, n, s, epsilon = np.random.default_rng(20250301), 400_000, 2.0, 0.4
    x = s * rng.standard_normal((n, 5))
    x[np.arange(n), rng.integers(0, 3, n)] += 1
    place = rng.integers(0, 3, n)
    chosen = place < 2
    x[np.flatnonzero(chosen), 3 + place[chosen]] += 1
    y = np.exp((2 * x - 1) / (2 * s * s))
    ratio = y[:, :3].mean(axis=1) * (1 / 3 + y[:, 3:].sum(axis=1) / 3)
    sample = np.maximum(1 - math.exp(epsilon) / ratio, 0)
    found = allocation_delta(epsilon, [Allocated(s, 3, 5)])
    threshold = 5 * float(sample.std()) / math.sqrt(n)
    assert threshold < 0.03 * found.value
    assert found.lower - threshold <= sample.mean() <= found.upper + threshold


@pytest.mark.parametrize(("epsilon", "s", "t", "epochs"), [(1.0, 1.0, 16, 12), (1.0, 3.0, 20, 40)])
def test_many_epochs_against_monte_carlo(epsilon, s, t, epochs):
    rng, n = np.random.default_rng(20250302), 60_000
    loss = np.zeros(n)
    for _ in range(epochs):
        x = s * rng.standard_normal((n, t))
        x[:, 0] += 1
        loss += np.log(np.exp((2 * x - 1) / (2 * s * s)).mean(axis=1))
    sample = -np.expm1(np.minimum(epsilon - loss, 0))
    found = allocation_delta(epsilon, [Allocated(s, t, t * epochs)])
    threshold = 5 * float(sample.std()) / math.sqrt(n)
    assert threshold < 0.15 * found.value
    assert found.lower - threshold <= sample.mean() <= found.upper + threshold
    assert found.upper / found.lower - 1 < 1e-3


@pytest.mark.parametrize(
    ("n", "batch", "steps", "epsilon"),
    [(1024, 64, 10_000, 2.0), (1024, 64, 10_000, 6.0), (1000, 8, 20_000, 2.0), (1000, 8, 20_000, 6.0)],
)
def test_noise_is_a_little_below_that_of_poisson_sampling(n, batch, steps, epsilon):
    target = {"target_epsilon": epsilon, "target_delta": 1e-5, "steps": steps, "sample_rate": batch / n}
    poisson = calibrate_noise_multiplier(sampling="poisson", relation="add-remove", **target)
    started = time.process_time()
    found = calibrate_noise_multiplier(sampling="random-allocation", relation="add-remove", **target)
    assert time.process_time() - started < 15
    assert found.method == "random allocation"
    assert found.value == found.upper
    assert found.upper / found.lower - 1 < 1e-4
    assert 0.98 * poisson.value < found.upper < poisson.value
    unit = Release(found.value, steps, sampling="random-allocation", relation="add-remove", sample_rate=batch / n)
    assert delta_of_history([unit], epsilon).upper <= 1e-5
    spent = epsilon_of_history([unit], 1e-5)
    assert epsilon * (1 - 2e-5) < spent.upper <= epsilon


def test_longer_epochs_and_fewer_steps_are_more_private():
    uppers = [allocation_delta(0.5, [Allocated(4.0, t, 300)]).upper for t in (7, 8, 10, 16)]
    assert uppers == sorted(uppers, reverse=True)
    uppers = [allocation_delta(0.5, [Allocated(4.0, 10, steps)]).upper for steps in (13, 20, 24, 30, 300)]
    assert uppers == sorted(uppers)


EXTREMES = [
    (2.0, 0.01, 16, 100),
    (2.0, 0.45, 16, 100),
    (2.0, 0.5, 2, 10**6),
    (2.0, 2000.0, 16, 10**9),
    (0.0, 1e6, 16, 100),
    (1.0, 3.0, 10**5, 10**6),
    (800.0, 1.0, 16, 100),
    (1.0, 5.0, 10**9, 5),
    (0.5, 20.0, 10, 7),
]


@pytest.mark.parametrize(("epsilon", "s", "t", "steps"), EXTREMES)
def test_extremes_are_ordered_and_never_above_no_amplification(epsilon, s, t, steps):
    found = allocation_delta(epsilon, [Allocated(s, t, steps)])
    assert 0 <= found.lower <= found.value <= found.upper <= 1
    known = float(delta_from_gdp(epsilon, math.sqrt(-(-steps // t)) / s))
    assert 0 < found.upper <= known * (1 + 1e-10) + 5e-324


def test_little_noise_is_calibrated():
    found = calibrate_noise_multiplier(
        target_epsilon=40.0,
        target_delta=1e-5,
        steps=50,
        sampling="random-allocation",
        relation="add-remove",
        sample_rate=0.1,
    )
    assert 0 < found.lower < found.upper < 1
    unit = Release(found.value, 50, sampling="random-allocation", relation="add-remove", sample_rate=0.1)
    assert delta_of_history([unit], 40.0).upper <= 1e-5


def test_several_runs_and_full_batches_against_monte_carlo():
    rng, n, epsilon = np.random.default_rng(20250303), 200_000, 0.8
    loss = np.zeros(n)
    for s, t, epochs in ((2.0, 8, 3), (3.0, 5, 4)):
        for _ in range(epochs):
            x = s * rng.standard_normal((n, t))
            x[:, 0] += 1
            loss += np.log(np.exp((2 * x - 1) / (2 * s * s)).mean(axis=1))
    x = 4 * rng.standard_normal((n, 2)) + 1
    loss += ((2 * x - 1) / 32).sum(axis=1)
    sample = -np.expm1(np.minimum(epsilon - loss, 0))
    history = [
        Release(2.0, 24, sampling="random-allocation", relation="add-remove", sample_rate=1 / 8),
        Release(4.0, 2, sampling="full", relation="add-remove"),
        Release(3.0, 20, sampling="random-allocation", relation="add-remove", sample_rate=1 / 5),
    ]
    found = delta_of_history(history, epsilon)
    assert found.method == "random allocation"
    threshold = 5 * float(sample.std()) / math.sqrt(n)
    assert threshold < 0.05 * found.value
    assert found.lower - threshold <= sample.mean() <= found.upper + threshold
    assert found.upper / found.lower - 1 < 1e-3
    spent = epsilon_of_history(history, found.upper)
    assert spent.lower <= epsilon <= spent.upper * (1 + 1e-6)


def test_runs_split_at_an_epoch_are_one_run():
    whole = allocation_delta(0.5, [Allocated(2.0, 8, 80)])
    split = allocation_delta(0.5, [Allocated(2.0, 8, 48), Allocated(2.0, 8, 32)])
    assert max(whole.lower, split.lower) <= min(whole.upper, split.upper)
    assert split.value == pytest.approx(whole.value, rel=1e-4)


def test_batches_alone_meet_a_large_delta():
    with pytest.raises(PreconditionError, match="target_delta"):
        calibrate_noise_multiplier(
            target_epsilon=1.0,
            target_delta=0.04,
            steps=3,
            sampling="random-allocation",
            relation="add-remove",
            sample_rate=0.01,
        )


def test_no_runs_are_refused():
    with pytest.raises(ValueError, match="runs"):
        allocation_delta(1.0, [])


@pytest.mark.parametrize("place", range(4))
@pytest.mark.parametrize("value", [math.nan, math.inf, -1, "2", None])
def test_bad_arguments_are_named(place, value):
    arguments = [1.0, 2.0, 16, 100]
    arguments[place] = value
    with pytest.raises(ValueError, match=("epsilon", "noise_multiplier", "epoch", "steps")[place]):
        allocation_delta(arguments[0], [Allocated(*arguments[1:])])


def test_command_line(capsys):
    question = "--epsilon 2 --delta 1e-5 --steps 1000 --n 1024 --batch 64 --relation add-remove --format json"
    assert main([*question.split(), "--sampling", "random-allocation"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["method"] == "random allocation"
    assert found["bracket"]["lower"] < found["noise_multiplier"] == found["bracket"]["upper"]
    assert "each record in one uniformly random step" in " ".join(found["notes"])
