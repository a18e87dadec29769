"""Tests of the table of other accountants: each has a row with its answer, or one line that says why it has none."""

import pytest

from dpzero_theory.privacy import comparison as module
from dpzero_theory.privacy.accountant import epsilon_of_history
from dpzero_theory.privacy.comparison import ACCOUNTANTS, compare
from dpzero_theory.privacy.step import step_of

QUESTION = {"delta": 1e-5, "sample_rate": 0.02, "steps": 500}


@pytest.mark.parametrize("accountant", ACCOUNTANTS)
def test_no_other_accountant_is_below_the_certified_answer(accountant: str) -> None:
    row = compare(accountant, noise=1.5, **QUESTION)
    assert row.accountant == accountant
    if row.status == "ok":
        ours = epsilon_of_history(
            [step_of(1.5, 500, sampling="poisson", relation="add-remove", sample_rate=0.02)], 1e-5
        )
        assert row.value is not None
        assert ours.lower * (1 - 1e-6) <= row.value <= 1.5 * ours.upper
    else:
        assert row.status == "not installed: pip install 'dpzero-theory[compare]'"
        assert row.value is None
    assert row.seconds >= 0
    assert row.cpu_seconds >= 0


def test_both_questions_are_inverse() -> None:
    epsilon = compare("dp-accounting RDP", noise=1.5, **QUESTION).value
    noise = compare("dp-accounting RDP", epsilon=epsilon, **QUESTION).value
    assert noise == pytest.approx(1.5, rel=1e-4)


def answers(value: object) -> object:
    def accountant(**_: object) -> object:
        if isinstance(value, Exception):
            raise value
        return value

    return accountant


@pytest.mark.parametrize(
    ("value", "status"),
    [
        (float("nan"), "not finite"),
        (float("inf"), "not finite"),
        (ImportError("no such package"), "not installed: pip install 'dpzero-theory[compare]'"),
        (ModuleNotFoundError("no such package"), "not installed: pip install 'dpzero-theory[compare]'"),
        (RuntimeError("first line\nsecond line"), "RuntimeError: first line"),
        (ValueError("x" * 500), ("ValueError: " + "x" * 500)[:100]),
    ],
)
def test_what_goes_wrong_is_a_row(monkeypatch: pytest.MonkeyPatch, value: object, status: str) -> None:
    monkeypatch.setitem(module.ACCOUNTANTS, "other", answers(value))  # type: ignore[arg-type]
    row = compare("other", noise=1.0, **QUESTION)
    assert (row.value, row.status) == (None, status)
