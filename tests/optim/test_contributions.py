"""The sensitivity of a step, on arbitrary losses.  The long run: `python -m benchmarks.optimizer_privacy`."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from dpzero_theory.optim.algorithm import ALGORITHMS
from dpzero_theory.optim.contributions import per_record, to_lattice
from dpzero_theory.privacy.lattice import Lattice
from dpzero_theory.privacy.noise import SeededNoise
from dpzero_theory.privacy.relation import Relation
from tests.optim.small import plan

Array = NDArray[np.float64]

PLAN = plan()

NUMBERS = st.one_of(
    st.floats(allow_nan=True, allow_infinity=True), st.floats(-3, 3), st.sampled_from([0.0, 1.0, -1.0, 0.6, 0.8, 2.0])
)


@st.composite
def neighbours(draw: st.DrawFn) -> tuple[Array, Array, str]:
    """Differences (records, K) of two neighbouring data sets; the other records may repeat."""
    k = draw(st.integers(1, 4))
    row = st.lists(NUMBERS, min_size=k, max_size=k)
    rest = draw(st.lists(row, max_size=4))
    rest += draw(st.sampled_from([[], rest]))
    one, other = draw(row), draw(row)
    relation = draw(st.sampled_from(["add-remove", "replace-one"]))
    return (
        np.array([*rest, one]).reshape(-1, k),
        np.array([*rest, other] if relation == "replace-one" else rest).reshape(-1, k),
        relation,
    )


@settings(max_examples=2000)
@given(neighbours(), st.sampled_from([1, 2, 7, 1000, 2**30]), st.sampled_from([1e-3, 1.0, 5.0, 1e30]))
def test_changing_one_record_moves_the_integer_sum_by_at_most_the_sensitivity(
    case: tuple[Array, Array, str], levels: int, clip: float
) -> None:
    first, second, relation = case
    chosen = replace(PLAN, clip=clip, levels=levels, directions_per_step=first.shape[1])
    sums = [chosen.contributions(rows, 6) for rows in (first, second)]
    assert all(total.dtype == np.int64 for total in sums)
    moved = sum((int(a) - int(b)) ** 2 for a, b in zip(*sums, strict=True))
    assert moved <= (levels * Relation.of(relation).sensitivity) ** 2


def test_the_sensitivity_is_reached() -> None:
    assert PLAN.contributions(np.array([[math.inf]]), 6)[0] == PLAN.levels
    assert PLAN.contributions(np.array([[math.nan]]), 6)[0] == 0
    assert PLAN.contributions(np.array([[-7.0], [math.inf], [math.inf]]), 6)[0] == PLAN.levels


@pytest.mark.parametrize(
    ("row", "expected"),
    [
        ((0.3, -0.4), (0.3, -0.4)),
        ((3.0, -4.0), (0.6, -0.8)),
        ((math.nan, 0.5), (0.0, 0.5)),
        ((math.inf, 5.0), (1.0, 0.0)),
        ((math.inf, -math.inf), (math.sqrt(0.5), -math.sqrt(0.5))),
        ((1e300, 1e300), (math.sqrt(0.5), math.sqrt(0.5))),
    ],
)
def test_vectors_are_clipped_jointly_and_rounded_toward_zero(
    row: tuple[float, float], expected: tuple[float, float]
) -> None:
    lattice = Lattice(1.0, 10_000)
    found = to_lattice(lattice, np.array([row]))[0]
    exact = np.array(expected) * 10_000
    assert (np.abs(found) <= np.abs(exact)).all()
    assert np.abs(found - exact).max() <= 1.0001


def test_a_number_for_the_whole_batch_is_refused() -> None:
    assert per_record(torch.arange(3.0), 3).tolist() == [0.0, 1.0, 2.0]
    for bad in (torch.tensor(0.5), torch.zeros(3, 1), torch.zeros(2), torch.zeros(0), 0.5, None):
        with pytest.raises(ValueError, match=r"losses must be a tensor of shape \(batch,\) = \(3,\)"):
            per_record(bad, 3)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.int64])
def test_losses_in_half_precision_are_refused(dtype: torch.dtype) -> None:
    with pytest.raises(ValueError, match="losses must be float32 or float64"):
        per_record(torch.zeros(3, dtype=dtype), 3)


def test_losses_are_numbers_of_their_own() -> None:
    losses = torch.zeros(3, dtype=torch.float64)
    found = per_record(losses, 3)
    losses += 1
    assert found.tolist() == [0.0, 0.0, 0.0]


def test_noise_has_the_law_of_the_plan() -> None:
    """4,000 draws: variance within 10% (4.5 standard errors) of sigma^2, of 2 b^2 for Laplace."""
    for noise, factor in (("gaussian", 1.0), ("laplace", 2.0)):
        chosen = plan(noise=noise)
        source = SeededNoise(4)
        draws = np.array([chosen.noisy(np.zeros(1, np.int64), source)[0] for _ in range(4000)])
        assert np.mean(draws.astype(float) ** 2) / chosen.scale**2 == pytest.approx(factor, rel=0.1)


def test_scalar_sums_clip_and_map() -> None:
    rows = np.array([[5.0], [math.nan], [-math.inf], [0.5]])
    assert ALGORITHMS["dpgd-0th"].contributions(rows, 4.0, 80, 4, 16)[0] == 5  # at C/||u|| = 2, 80/||v|| = 20 integers
    assert ALGORITHMS["mezo"].contributions(rows, 0.0, 0, 4, 0)[0] == 5.5
    assert not ALGORITHMS["mezo"].private
