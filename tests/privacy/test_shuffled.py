"""Shuffled epochs: the upper end counts no amplification. The oracles are sums over all orders of a few records."""

import itertools
import math

import numpy as np
import pytest
from scipy import stats

from dpzero_theory.privacy.accountant import delta_of_history, epsilon_of_history
from dpzero_theory.privacy.sampling import sampling_of
from tests.privacy.oracle import exact_delta, made


def shuffled(noise, steps, rate, relation, **more):
    return made(noise, steps, rate, relation, sampling="shuffled", **more)


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
        assert found.lower == 0


@pytest.mark.parametrize("relation", ["replace-one", "zero-out"])
@pytest.mark.parametrize("steps", [1, 100, 250])
def test_it_costs_what_any_order_does(relation, steps):
    one, other = (
        epsilon_of_history(made(1.5, steps, 0.01, relation, sampling=kind), 1e-5)
        for kind in ("shuffled", "fixed-order")
    )
    assert one.upper == other.upper
    assert any("none is proved for batches of one size" in note for note in one.notes)


@pytest.mark.parametrize(
    ("given", "named"),
    [
        (lambda: shuffled(1.0, 10, 0.1, "add-remove"), "^relation must be replace-one or zero-out with sampling shuff"),
        (lambda: sampling_of("shuffled:2", 0.1), "^sampling must be shuffled, with"),
        (lambda: sampling_of("shuffled", 0.0), "^sample_rate must be"),
        (lambda: sampling_of("shuffled", math.nan), "^sample_rate must be"),
        (
            lambda: shuffled(1.0, 3, 0.1, "zero-out", mechanism="laplace"),
            "^sampling must be one of full, poisson with mechanism laplace",
        ),
    ],
)
def test_what_cannot_be_claimed_is_refused_in_one_line(given, named):
    with pytest.raises(ValueError, match=named) as caught:
        given()
    assert "\n" not in str(caught.value)
