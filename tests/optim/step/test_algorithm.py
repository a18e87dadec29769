"""Tests of what each algorithm sums, releases and moves the weights by, and of the sensitivity of a step.

The losses are arbitrary; `benchmarks/results/optimizer_privacy` has more of them.
"""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from numpy.typing import NDArray

from dpzero_theory.optim.step.algorithm import _to_lattice, clip_jointly
from dpzero_theory.privacy.relation import Relation
from tests.optim.small import contributions, plan

Array = NDArray[np.float64]


PLAN = plan()
exact = settings(deadline=None, derandomize=True, max_examples=60)
anything = st.floats(allow_nan=True, allow_infinity=True)


NUMBERS = st.one_of(
    st.floats(allow_nan=True, allow_infinity=True), st.floats(-3, 3), st.sampled_from([0.0, 1.0, -1.0, 0.6, 0.8, 2.0])
)


@st.composite
def neighbours(draw: st.DrawFn) -> tuple[Array, Array, str]:
    """Draws the differences of two neighbouring data sets, each of shape (records, K), and the name of their relation.

    `draw` is Hypothesis's; the records that both have may repeat.
    """
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


@settings(max_examples=500)
@given(neighbours(), st.sampled_from([1, 2, 7, 1000, 2**30]), st.sampled_from([1e-3, 1.0, 5.0, 1e30]))
def test_changing_one_record_moves_the_integer_sum_by_at_most_the_sensitivity(
    case: tuple[Array, Array, str], levels: int, clip: float
) -> None:
    first, second, relation = case
    rule = type("Coarse", (type(PLAN.rule),), {"levels": levels})()
    sums = [rule.contributions(rows, clip) for rows in (first, second)]
    assert all(total.dtype == np.int64 for total in sums)
    moved = sum((int(a) - int(b)) ** 2 for a, b in zip(*sums, strict=True))
    assert moved <= (levels * Relation(relation).sensitivity) ** 2


def test_the_sensitivity_is_reached() -> None:
    assert contributions(PLAN, np.array([[math.inf]]))[0] == PLAN.rule.levels
    assert contributions(PLAN, np.array([[math.nan]]))[0] == 0
    assert contributions(PLAN, np.array([[-7.0], [math.inf], [math.inf]]))[0] == PLAN.rule.levels


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
    found = _to_lattice(np.array([row]), 1.0, 10_000)[0]
    exact = np.array(expected) * 10_000
    assert (np.abs(found) <= np.abs(exact)).all()
    assert np.abs(found - exact).max() <= 1.0001


@exact
@given(arrays(float, (5, 1), elements=anything), st.floats(1e-300, 1e300))
def test_one_number_is_clipped_exactly(values, clip):
    clipped = clip_jointly(values, clip)
    assert (np.abs(clipped) <= clip).all()
    for before, after in zip(values[:, 0], clipped[:, 0], strict=True):
        if math.isnan(before):
            assert after == 0
        elif abs(before) <= clip:
            assert after == before
        else:
            assert after == math.copysign(clip, before)


@exact
@given(arrays(float, (4, 3), elements=anything), st.floats(1e-3, 1e3))
def test_any_rows_are_clipped_to_the_norm(rows, clip):
    for before, after in zip(
        np.nan_to_num(rows, nan=0, posinf=math.inf, neginf=-math.inf), clip_jointly(rows, clip), strict=True
    ):
        if np.isinf(before).any():
            before = np.where(np.isinf(before), np.sign(before), 0.0) * 2 * clip
        norm = math.hypot(*before)
        assert math.hypot(*after) <= min(clip, norm) * (1 + 1e-14)
        if norm < clip * (1 - 1e-14):
            np.testing.assert_allclose(after, before, rtol=1e-15, atol=0)
        elif 1e-290 < norm < 1e290:
            np.testing.assert_allclose(after, before * (clip / norm), rtol=1e-13, atol=1e-300)


@pytest.mark.parametrize("order", ["C", "F"])
def test_rounding_adds_little_to_the_norm_of_many_clipped_differences(order: str) -> None:
    rows = np.random.default_rng(0).uniform(1, 2, (2, 2**16)).astype(np.float64, order=order)  # type: ignore[call-overload]
    norms = [math.sqrt(math.fsum(row * row)) for row in clip_jointly(rows, 1.0)]
    assert max(norms) <= 1 + 1e-13
