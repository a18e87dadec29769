"""Correlated noise: sensitivities by brute force, and epsilon by closed forms and another accountant."""

import itertools
import math

import numpy as np
import pytest
from scipy.optimize import brentq
from scipy.special import ndtr

from dpzero_theory.privacy.accountant import epsilon_of_history
from dpzero_theory.privacy.matrix import matrix_release, sensitivity, tree_encoder
from dpzero_theory.privacy.sampling import Poisson
from dpzero_theory.privacy.step import Step, steps_of


def patterns(steps: int, times: int, apart: int, cyclic: bool) -> list[tuple[int, ...]]:
    """Returns all sets of steps of a record, listed one by one."""
    if cyclic:
        return [tuple(range(first, steps, apart))[:times] for first in range(apart)]
    every = itertools.chain.from_iterable(itertools.combinations(range(steps), k) for k in range(1, times + 1))
    return [one for one in every if all(b - a >= apart for a, b in itertools.pairwise(one))]


def brute(matrix: np.ndarray, times: int, apart: int, cyclic: bool) -> float:
    """Returns the largest norm of a signed sum of columns over all sets of steps and all signs."""
    return max(
        float(np.linalg.norm(matrix[:, list(one)] @ np.array(signs)))
        for one in patterns(matrix.shape[1], times, apart, cyclic)
        for signs in itertools.product((-1.0, 1.0), repeat=len(one))
    )


@pytest.mark.parametrize("cyclic", [False, True])
@pytest.mark.parametrize(("times", "apart"), [(1, 1), (2, 1), (2, 2), (3, 2), (2, 4), (7, 1), (9, 3)])
def test_the_bound_is_attained_without_negative_products_and_never_below(times: int, apart: int, cyclic: bool) -> None:
    rng = np.random.default_rng(times * 10 + apart)
    for _ in range(4):
        positive = np.abs(np.tril(rng.standard_normal((7, 7))))
        assert sensitivity(positive, times=times, apart=apart, cyclic=cyclic) >= brute(positive, times, apart, cyclic)
        if cyclic or times == 1:
            exact = brute(positive, times, apart, cyclic)
            assert sensitivity(positive, times=times, apart=apart, cyclic=cyclic) == pytest.approx(exact, rel=1e-9)
        mixed = rng.standard_normal((7, 7))
        assert sensitivity(mixed, times=times, apart=apart, cyclic=cyclic) >= brute(mixed, times, apart, cyclic)


@pytest.mark.parametrize(("times", "bands"), [(2, 2), (3, 2), (2, 3), (4, 1)])
def test_a_banded_encoder_has_its_exact_sensitivity(times: int, bands: int) -> None:
    rng = np.random.default_rng(times)
    matrix = np.tril(rng.standard_normal((8, 8))) * (np.subtract.outer(range(8), range(8)) < bands)
    assert sensitivity(matrix, times=times, apart=bands) == pytest.approx(brute(matrix, times, bands, False), rel=1e-9)


def exact(mu: float, delta: float) -> float:
    """Returns epsilon of a mu-GDP mechanism at delta, from the closed form."""

    def excess(e: float) -> float:
        return float(ndtr(-e / mu + mu / 2) - math.exp(e) * ndtr(-e / mu - mu / 2)) - delta

    return brentq(excess, 0, 60, xtol=1e-12)


@pytest.mark.parametrize("steps", [1, 8, 100, 1000])
@pytest.mark.parametrize(("relation", "moves"), [("add-remove", 1), ("zero-out", 1), ("replace-one", 2)])
def test_a_tree_costs_as_its_depth(steps: int, relation: str, moves: int) -> None:
    depth = math.ceil(math.log2(steps)) + 1 if steps > 1 else 1
    encoder = tree_encoder(steps)
    assert (encoder.sum(axis=0) == depth).all()
    found = epsilon_of_history([matrix_release(encoder, 5.0, relation=relation)], 1e-6)
    assert found.upper == pytest.approx(exact(moves * math.sqrt(depth) / 5, 1e-6), rel=1e-6)


def test_a_tree_costs_at_most_what_dp_accounting_says() -> None:
    dp_accounting = pytest.importorskip("dp_accounting", reason="the compare extra is not installed")
    from dp_accounting.rdp import RdpAccountant

    event = dp_accounting.SingleEpochTreeAggregationDpEvent(5.0, [64])
    accountant = RdpAccountant(neighboring_relation=dp_accounting.NeighboringRelation.REPLACE_SPECIAL)
    theirs = accountant.compose(event).get_epsilon(1e-6)
    ours = epsilon_of_history([matrix_release(tree_encoder(64), 5.0, relation="zero-out")], 1e-6).upper
    assert 0.9 * theirs < ours <= theirs


def test_independent_noise_is_that_of_as_many_steps() -> None:
    """The identity as encoder is T independent releases, of which a record takes part in k."""
    one = epsilon_of_history([matrix_release(np.eye(12), 3.0, times=4, apart=3, relation="add-remove")], 1e-5)
    assert one.upper == pytest.approx(exact(math.sqrt(4) / 3, 1e-5), rel=1e-6)


def test_it_composes_with_other_steps() -> None:
    poisson = Step(2.0, Poisson(0.1), "add-remove") * 10  # type: ignore[arg-type]
    release = matrix_release(tree_encoder(16), 5.0, relation="add-remove")
    alone = [epsilon_of_history(history, 1e-5).upper for history in ([release], poisson)]
    both = epsilon_of_history([release, *steps_of(poisson)], 1e-5).upper
    assert max(alone) < both < sum(alone)


@pytest.mark.parametrize(
    ("encoder", "words", "said"),
    [
        (np.ones(3), {}, "encoder must be a matrix"),
        (np.full((2, 2), np.nan), {}, "encoder must"),
        (np.zeros((2, 2)), {}, "encoder must have a column that is not 0"),
        (np.eye(2), {"times": 0}, "times must be an integer"),
        (np.eye(2), {"noise_multiplier": -1.0}, "noise_multiplier must be"),
        (np.eye(2), {"relation": "other"}, "relation must be"),
    ],
)
def test_bad_arguments_are_named(encoder: np.ndarray, words: dict[str, object], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        matrix_release(encoder, **{"noise_multiplier": 1.0, "relation": "add-remove", **words})  # type: ignore[arg-type]


def test_the_number_of_steps_of_a_tree_is_checked() -> None:
    with pytest.raises(ValueError, match="steps must be"):
        tree_encoder(5000)
