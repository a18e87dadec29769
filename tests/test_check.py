"""Tests of the validators of arguments: what passes, and what is refused.

The message must name the argument, the rule and the value.
"""

import math
import re
from decimal import Decimal
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dpzero_theory.check import PreconditionError, choice, installed, integer, real, real_array

NOT_NUMBERS: list[Any] = [
    "1",
    None,
    True,
    np.True_,
    1j,
    np.complex128(1),
    [1.0],
    np.array(1.0),
    np.array([1.0]),
    Fraction(1, 2),
    Decimal(1),
]
NOT_FINITE: list[Any] = [math.nan, math.inf, -math.inf, np.float32("nan"), np.float64("inf"), 10**400, -(10**400)]


@pytest.mark.parametrize("bad", NOT_NUMBERS + NOT_FINITE)
def test_real_and_integer_refuse(bad: Any) -> None:
    for validator in (real, integer):
        with pytest.raises(ValueError, match=r"^thing must be .*thing.*; got ") as error:
            validator("thing", bad)
        assert "\n" not in str(error.value)
        assert len(str(error.value)) < 160
        assert not isinstance(error.value, PreconditionError)


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_real_returns_any_finite_number_as_a_float(x: float) -> None:
    assert real("x", x) == x
    assert type(real("x", np.float64(x))) is float


@pytest.mark.parametrize("good", [3, np.int8(3), np.uint64(3), np.float16(3), np.float32(3), 3.0])
def test_real_accepts_every_kind_of_number(good: Any) -> None:
    assert real("x", good) == 3.0
    assert type(real("x", good)) is float


def test_bounds_are_strict_or_not_as_named() -> None:
    assert real("x", 2, at_least=2, at_most=2) == 2.0
    assert real("x", 2, above=1, below=3) == 2.0
    for bounds in ({"above": 2}, {"below": 2}, {"at_least": 2.5}, {"at_most": 1.5}):
        with pytest.raises(ValueError, match=r"^x must be .*; got 2$"):
            real("x", 2, **bounds)
        with pytest.raises(ValueError, match=r"^x must be .*; got 2\.0$"):
            real_array("x", [2.0], **bounds)


def test_the_message_states_the_rule_and_the_value() -> None:
    with pytest.raises(ValueError, match=r"^x must be a finite number with 0 < x < 1; got nan$"):
        real("x", math.nan, above=0, below=1)
    with pytest.raises(ValueError, match=r"^x must be a finite number with 0 <= x <= 1; got -1$"):
        real("x", -1, at_least=0, at_most=1)
    with pytest.raises(ValueError, match=r"^k must be an integer with 1 <= k <= 10; got 2\.5$"):
        integer("k", 2.5, at_most=10)


@pytest.mark.parametrize(
    ("good", "value"), [(1, 1), (1e4, 10_000), (np.int64(7), 7), (np.float64(5), 5), (10**18, 10**18)]
)
def test_integer_accepts_integral_numbers(good: Any, value: int) -> None:
    assert integer("k", good) == value
    assert type(integer("k", good)) is int


@pytest.mark.parametrize("bad", [0, -1, 2.5, 10**18 + 1, 1e19, 0.999999999])
def test_integer_refuses_fractions_and_what_is_out_of_range(bad: Any) -> None:
    with pytest.raises(ValueError, match=r"^k must be an integer with 1 <= k"):
        integer("k", bad)


def test_choice() -> None:
    assert choice("mode", "a", ("a", "b")) == "a"
    for bad in ("c", "", "A", 1, None, ["a"], math.nan):
        with pytest.raises(ValueError, match=r"^mode must be one of a, b; got "):
            choice("mode", bad, ("a", "b"))


@pytest.mark.parametrize(
    "bad",
    [math.nan, [1.0, math.nan], [math.inf], "1", ["a"], [True], True, None, [None], [1j], [10**400], np.array(["x"])],
    ids=repr,
)
def test_real_array_refuses(bad: Any) -> None:
    with pytest.raises(ValueError, match=r"^x must be finite .*; got ") as error:
        real_array("x", bad)
    assert "\n" not in str(error.value)


def test_real_array_returns_float64_of_the_same_shape() -> None:
    found = real_array("x", [[1, 2], [3, 4]])
    assert found.dtype == np.float64
    assert found.tolist() == [[1.0, 2.0], [3.0, 4.0]]
    assert real_array("x", 5).shape == ()
    assert real_array("x", np.array([0.5], dtype=np.float32)).dtype == np.float64
    assert real_array("x", []).shape == (0,)


def test_installed() -> None:
    installed("--plot", "numpy", extra="plot")
    with pytest.raises(ValueError, match=r"^--plot needs no_such_package: pip install 'dpzero-theory\[plot\]'$"):
        installed("--plot", "no_such_package", extra="plot")


@pytest.mark.parametrize(
    ("bounds", "said"),
    [
        ({"at_most": 600.0}, "x <= 600"),
        ({"below": 0.1 + 0.2}, "x < 0.30000000000000004"),
        ({"above": 0, "at_most": math.nextafter(0.5, 0)}, "0 < x <= 0.49999999999999994"),
        ({"at_least": 1e-290}, "1e-290 <= x < inf"),
    ],
)
def test_a_rule_names_the_bounds_there_are_with_all_of_their_digits(bounds: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=f"^x must be a finite number with {re.escape(said)}; got nan$"):
        real("x", math.nan, **bounds)
