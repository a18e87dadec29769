"""Shuffled epochs: the upper end counts no amplification, and the lower end is attained by data.

The oracles are sums over outputs of all orders of a few records, and the formula of Chua et al. for the largest output.
"""

import itertools
import math

import numpy as np
import pytest
from scipy import stats

from dpzero_theory.privacy.accountant import delta_of_history, epsilon_of_history
from dpzero_theory.privacy.calibration import calibrate_noise_multiplier
from dpzero_theory.privacy.conversions import gdp_of_history, rdp_of_history
from dpzero_theory.privacy.group import group_epsilon
from dpzero_theory.privacy.sampling import Shuffled, sampling_of
from dpzero_theory.privacy.step import Release
from tests.privacy.oracle import exact_delta


def shuffled(noise: float, steps: int, rate: float, relation: str) -> Release:
    return Release(noise, steps, sampling="shuffled", relation=relation, sample_rate=rate)


def epoch(values: tuple[float, ...], batch: int, steps: int, s: float, points: int) -> np.ndarray:
    """Returns the law of the outputs of the first `steps` batches, by all orders of records with these values."""
    x = np.linspace(-batch - 9 * s, batch + 9 * s, points)
    total = np.zeros((points,) * steps)
    orders = list(itertools.permutations(values))
    for order in orders:
        law = np.ones(())
        for step in range(steps):
            mean = sum(order[step * batch : (step + 1) * batch])
            law = np.multiply.outer(law, stats.norm.pdf(x, mean, s) * (x[1] - x[0]))
        total += law / len(orders)
    return total.ravel()


@pytest.mark.parametrize("relation", ["replace-one", "zero-out"])
@pytest.mark.parametrize(
    ("n", "batch", "steps", "s", "points"),
    [(4, 2, 2, 1.0, 301), (3, 1, 3, 1.2, 91), (4, 1, 2, 0.7, 301), (5, 2, 2, 2.0, 301), (3, 1, 2, 4.0, 301)],
)
def test_delta_of_one_epoch_against_all_orders(relation, n, batch, steps, s, points):
    """Among the data are those of the lower end: the others contribute -1 (or 0), the record 1, and -1 (or 0)."""
    release = shuffled(s, steps, batch / n, relation)
    without = -1.0 if relation == "replace-one" else 0.0
    draw = np.random.default_rng(5)
    others = [(-1.0,) * (n - 1), (0.0,) * (n - 1), *map(tuple, draw.uniform(-1, 1, (3, n - 1)))]
    for epsilon in (0.2, 1.0):
        found = delta_of_history(release, epsilon)
        exact = []
        for rest in others:
            p, q = (epoch((value, *rest), batch, steps, s, points) for value in (1.0, without))
            exact.append(exact_delta(epsilon, [[(p, q), (q, p)]]))
        assert max(exact) <= found.upper * (1 + 1e-6)
        assert found.lower <= max(exact[:2]) * (1 + 1e-3)
        # With 2 of 5 records in a batch the record is in one of two batches with probability 4/5, and 2/3 is counted.
        share = (0.9 if n != 5 else 0.6) if relation == "replace-one" else 0.5
        assert found.lower >= max(exact[:2]) * share or max(exact[:2]) < 1e-6


def test_two_epochs_compose():
    for relation, least in (("replace-one", 0.9), ("zero-out", 0.5)):
        without = -1.0 if relation == "replace-one" else 0.0
        p, q = (epoch((value, -1.0), 1, 2, 1.0, 55) for value in (1.0, without))
        exact = exact_delta(0.5, [[(p, q), (q, p)]] * 2)
        found = delta_of_history(shuffled(1.0, 4, 0.5, relation), 0.5)
        assert least * exact <= found.lower <= exact * (1 + 1e-3)
        assert exact <= found.upper


@pytest.mark.parametrize(("relation", "mean"), [("replace-one", 0.0), ("zero-out", 1.0)])
@pytest.mark.parametrize(("s", "t"), [(0.3, 50), (0.6, 1000), (1.0, 10)])
def test_one_epoch_is_at_least_what_the_largest_output_tells(relation, mean, s, t):
    """The events M > x of Chua et al., arXiv 2403.17673, with exact normal tails."""
    x = np.linspace(0.0, 2 + 8 * s, 4001)
    tails = [-np.expm1((t - 1) * stats.norm.logcdf(x, 0, s) + stats.norm.logcdf(x, up, s)) for up in (2.0, mean)]
    for epsilon in (0.5, 4.0, 9.0):
        known = float(np.max(tails[0] - math.exp(epsilon) * tails[1]))
        found = delta_of_history(shuffled(s, t, 1 / t, relation), epsilon)
        assert known * (1 - 1e-2) - 1e-15 <= found.lower
        assert found.lower <= found.upper


def test_the_upper_end_is_that_of_any_order():
    for relation in ("replace-one", "zero-out"):
        for steps in (1, 100, 250):
            order = Release(1.5, steps, sampling="fixed-order", relation=relation, sample_rate=0.01)
            found = epsilon_of_history(shuffled(1.5, steps, 0.01, relation), 1e-5)
            assert found.upper == pytest.approx(epsilon_of_history(order, 1e-5).upper, rel=1e-9)
            assert found.lower < found.upper
            assert any("none is proved for batches of one size" in note for note in found.notes)
    assert epsilon_of_history(shuffled(1.5, 3, 1.0, "add-remove"), 1e-5).lower > 4


def test_it_stands_beside_other_steps_and_for_groups():
    more = [
        Release(2.0, 100, sampling="random-allocation", relation="replace-one", sample_rate=0.02),
        Release(9.0, 2, sampling="full", relation="replace-one", mechanism="laplace"),
    ]
    release = shuffled(1.0, 100, 0.02, "replace-one")
    alone, both = epsilon_of_history(release, 1e-5), epsilon_of_history([release, *more], 1e-5)
    assert alone.lower < both.lower < both.upper
    assert alone.upper < both.upper
    mu = gdp_of_history(release)
    assert mu.lower == pytest.approx(mu.upper, rel=1e-6) == pytest.approx(2 * math.sqrt(2), rel=1e-6)
    rdp = rdp_of_history(release, 3.0)
    assert rdp.lower < rdp.upper == pytest.approx(3 * 4)
    group = group_epsilon(release, 1e-5, size=2)
    assert group.lower == alone.lower
    assert group.upper == pytest.approx(epsilon_of_history(release.with_noise(0.5), 1e-5).upper, rel=1e-6)


def test_noise_is_calibrated_to_the_upper_end():
    words = {"sampling": "shuffled", "relation": "replace-one", "sample_rate": 0.05}
    found = calibrate_noise_multiplier(target_epsilon=2.0, target_delta=1e-5, steps=100, **words)
    order = calibrate_noise_multiplier(
        target_epsilon=2.0, target_delta=1e-5, steps=100, **words | {"sampling": "fixed-order"}
    )
    assert found.upper == pytest.approx(order.upper, rel=1e-9)
    assert 0.1 * found.upper < found.lower < found.upper
    assert delta_of_history(Release(found.lower, 100, **words), 2.0).lower > 1e-5


def test_what_cannot_be_claimed_is_refused_in_one_line():
    for given, words in (
        (lambda: shuffled(1.0, 10, 0.1, "add-remove"), "^relation must be replace-one or zero-out with sampling shuff"),
        (lambda: sampling_of("shuffled:2", 0.1), "^sampling must be shuffled, without"),
        (lambda: sampling_of("shuffled", 0.0), "^sample_rate must be"),
        (lambda: sampling_of("shuffled", math.nan), "^sample_rate must be"),
        (lambda: Shuffled(0.3).batch_size(7), r"^sample_rate \* n must be an integer"),
        (
            lambda: Release(1.0, 3, sampling="shuffled", relation="zero-out", sample_rate=0.1, mechanism="laplace"),
            "^sampling must be one of full, poisson with mechanism laplace",
        ),
    ):
        with pytest.raises(ValueError, match=words) as caught:
            given()
        assert "\n" not in str(caught.value)


def test_tiny_noise_has_no_lower_end():
    found = epsilon_of_history(shuffled(0.01, 10, 0.1, "zero-out"), 1e-5)
    assert found.lower == 0
    assert found.upper > 1000
