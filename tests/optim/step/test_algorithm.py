"""Tests of what each algorithm sums, releases and moves the weights by, and of the sensitivity of a step.

The losses are arbitrary; `benchmarks/results/optimizer_privacy` has more of them.
"""

import math
from dataclasses import replace

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from dpzero_theory.privacy.relation import Relation
from tests.optim.small import plan

Array = NDArray[np.float64]


PLAN = plan()


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
    chosen = replace(PLAN, clip=clip, levels=levels, directions_per_step=first.shape[1])
    sums = [chosen.contributions(rows, 6) for rows in (first, second)]
    assert all(total.dtype == np.int64 for total in sums)
    moved = sum((int(a) - int(b)) ** 2 for a, b in zip(*sums, strict=True))
    assert moved <= (levels * Relation.of(relation).sensitivity) ** 2


def test_the_sensitivity_is_reached() -> None:
    assert PLAN.contributions(np.array([[math.inf]]), 6)[0] == PLAN.levels
    assert PLAN.contributions(np.array([[math.nan]]), 6)[0] == 0
    assert PLAN.contributions(np.array([[-7.0], [math.inf], [math.inf]]), 6)[0] == PLAN.levels
