"""Tests of questions in which one of six numbers is left out: it is found, and gives the other five back."""

import math

import pytest

from dpzero_theory.privacy.question import SOUGHT, Question, sweep_row

WHOLE = Question(
    epsilon=2.0,
    noise_multiplier=1.0964053,
    delta=1e-5,
    steps=1000,
    n=10_000,
    batch=100,
    drawing={"sampling": "poisson", "relation": "add-remove"},
)


@pytest.fixture(scope="module")
def consistent() -> Question:
    """Returns a question with five given numbers and the noise that belongs to them."""
    question = Question(**{**vars(WHOLE), "noise_multiplier": None})
    return question.answered(question.answer())


@pytest.mark.parametrize("sought", SOUGHT)
def test_each_of_the_six_is_found_from_the_others(consistent: Question, sought: str) -> None:
    question = Question(**{**vars(consistent), sought: None})
    assert question.sought == sought
    found = question.answer()
    assert found.lower <= found.value <= found.upper
    assert getattr(question.answered(found), sought) == pytest.approx(getattr(consistent, sought), rel=1e-6)
    protects = found.lower if sought in ("steps", "batch") else found.upper
    assert found.value == protects


def test_a_row_of_a_sweep_says_why_there_is_no_answer() -> None:
    question = Question(**{**vars(WHOLE), "noise_multiplier": 0.1, "steps": None})
    row = sweep_row(question, "batch")
    assert row["batch"] == 100
    assert math.isnan(float(row["steps"]))
    assert "one step must meet the target" in str(row["method"])
