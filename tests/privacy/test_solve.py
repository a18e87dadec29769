"""Tests of the whole numbers, such as steps, that meet a privacy target.

Each is checked with its neighbour, by an accountant that shares no code.
"""

import math

import pytest

from benchmarks.independent import independent_delta
from dpzero_theory.check import PreconditionError
from dpzero_theory.privacy import solve
from dpzero_theory.privacy.accountant import delta_of_history
from dpzero_theory.privacy.solve import fewest_records, largest_batch, most_steps
from dpzero_theory.privacy.step import Release

TARGET = {"target_epsilon": 2.0, "target_delta": 1e-5, "noise_multiplier": 3.0}
POISSON = {"sampling": "poisson", "relation": "add-remove"}


def delta(steps, rate):
    return independent_delta("remove", rate, 3.0, steps, 2.0)[0]


def test_the_steps_of_poisson_batches():
    found = most_steps(**TARGET, **POISSON, sample_rate=0.02)
    assert found.lower == found.value <= found.upper <= 1.001 * found.value
    assert delta(int(found.value), 0.02) <= 1e-5 < delta(int(found.upper) + 1, 0.02)


def test_the_batch_of_n_records():
    found = largest_batch(**TARGET, **POISSON, steps=2000, n=5000)
    assert found.value == found.upper
    assert delta(2000, found.value / 5000) <= 1e-5 < delta(2000, (found.value + 1) / 5000)


def test_the_records_for_a_batch():
    found = fewest_records(**TARGET, **POISSON, steps=2000, batch=64)
    assert found.lower == found.value
    assert delta(2000, 64 / found.value) <= 1e-5 < delta(2000, 64 / (found.value - 1))


def test_plain_gaussian_steps_in_closed_form():
    """The most steps with full batches follow from mu^2 = 4 T/s^2 at the mu of the target."""
    found = most_steps(
        target_epsilon=1.0, target_delta=1e-6, noise_multiplier=200.0, sampling="full", relation="replace-one"
    )
    below, above = (
        delta_of_history([Release(200.0, int(t), sampling="full", relation="replace-one")], 1.0)
        for t in (found.value, found.value + 1)
    )
    assert below.upper <= 1e-6 < above.lower


def test_pure_noise_at_delta_zero():
    """At delta = 0, the most steps with Laplace noise are those of epsilon 1/50 each, 2 C over b under replace-one.

    The rounding of epsilon is on the private side.
    """
    found = most_steps(
        target_epsilon=2.0,
        target_delta=0.0,
        noise_multiplier=100.0,
        sampling="full",
        relation="replace-one",
        mechanism="laplace",
    )
    assert (found.value, found.upper) == (99, 100)


def test_a_loose_bracket_leaves_numbers_undecided():
    found = most_steps(**TARGET, sampling="fixed-size", relation="replace-one", sample_rate=0.02)
    assert found.lower == found.value < found.upper

    def bracket(steps):
        return delta_of_history(
            [Release(3.0, int(steps), sampling="fixed-size", relation="replace-one", sample_rate=0.02)], 2.0
        )

    assert bracket(found.value).upper <= 1e-5 < bracket(found.value + 1).upper
    assert bracket(found.upper).lower <= 1e-5 < bracket(found.upper + 1).lower


def test_full_batches_are_the_largest():
    found = largest_batch(**(TARGET | {"noise_multiplier": 1e4}), **POISSON, steps=10, n=77)
    assert (found.lower, found.upper) == (77, 77)
    few = fewest_records(**(TARGET | {"noise_multiplier": 1e4}), **POISSON, steps=10, batch=77)
    assert (few.lower, few.upper) == (77, 77)


@pytest.mark.parametrize(
    ("solve", "where", "message"),
    [
        (most_steps, {"sampling": "full", "noise_multiplier": 0.2}, "^one step must meet the target; got epsilon "),
        (largest_batch, {"steps": 10**4, "n": 30}, "^a batch of 1 must meet the target; got "),
        (most_steps, {"sampling": "full", "noise_multiplier": 1e12}, "^steps must have a largest number; got "),
    ],
)
def test_a_target_that_no_number_meets_is_an_error(solve, where, message):
    with pytest.raises(PreconditionError, match=message):
        solve(**(TARGET | POISSON | where))


@pytest.mark.parametrize(
    "change", [{"target_epsilon": 0.0}, {"target_delta": 1.0}, {"target_delta": 0.0}, {"batch": 0}]
)
@pytest.mark.parametrize("value", [None, math.nan])
def test_bad_arguments_are_named(change, value):
    name = next(iter(change))
    bad = change if value is None else {name: value}
    with pytest.raises(ValueError, match=f"{name.removeprefix('target_')}") as caught:
        fewest_records(**(TARGET | POISSON | {"steps": 10, "batch": 8} | bad))
    assert "\n" not in str(caught.value)


def test_the_batch_of_allocated_records_in_few_questions(monkeypatch):
    """The largest batch of random allocation is found with few questions to the accountant.

    The answer and its neighbour are as whoever asks finds them; the guess is near, and each number is asked for once.
    """
    asked = []

    ask = solve.group_delta

    def counted(history, epsilon, **known):
        asked.append(history[0].sample_rate)
        return ask(history, epsilon, **known)

    monkeypatch.setattr(solve, "group_delta", counted)
    question = {"noise_multiplier": 1.5, "sampling": "random-allocation", "relation": "add-remove"}
    found = largest_batch(target_epsilon=2.0, target_delta=1e-5, steps=6, n=40, **question)
    assert found.lower == found.value == found.upper
    below, above = (
        delta_of_history([Release(steps=6, sample_rate=batch / 40, **question)], 2.0)
        for batch in (found.value, found.value + 1)
    )
    assert below.upper <= 1e-5 < above.lower
    assert len(asked) == len(set(asked)) <= 12
