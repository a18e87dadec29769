"""Tests of the small rooms at the root: rules for arguments, registries, data, pages, difference rules."""

import math
import re
import sys
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from html.parser import HTMLParser
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dpzero_theory import check
from dpzero_theory.check import PreconditionError, choice, integer, real, real_array
from dpzero_theory.datasets import binary_digits, digits
from dpzero_theory.difference import DIFFERENCES
from dpzero_theory.document import document
from dpzero_theory.registry import Registry

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


@dataclass(frozen=True)
class Colour:
    name: str


RED, BLUE = Colour("red"), Colour("blue")


@pytest.fixture
def colours() -> Registry[Colour]:
    found: Registry[Colour] = Registry("colour")
    assert found.register(RED) is RED
    found.register(BLUE)
    return found


def test_values_by_name_in_the_order_of_registration(colours: Registry[Colour]) -> None:
    assert list(colours) == ["red", "blue"]
    assert list(colours.values()) == [RED, BLUE]
    assert (len(colours), colours["blue"], colours.get("red")) == (2, BLUE, RED)
    assert "red" in colours
    assert "green" not in colours
    assert check.choice("colour", "red", colours) == "red"


@pytest.mark.parametrize("name", ["green", 3, None])
def test_an_unknown_name_is_refused_with_the_names_there_are(colours: Registry[Colour], name: str) -> None:
    with pytest.raises(ValueError, match=r"^colour must be one of red, blue; got "):
        colours[name]


def test_a_name_is_registered_once(colours: Registry[Colour]) -> None:
    with pytest.raises(ValueError, match=r"^colour must have a name of its own; got 'red', which is registered$"):
        colours.register(Colour("red"))
    assert colours["red"] is RED


def test_digits_are_shuffled_together() -> None:
    pytest.importorskip("sklearn", reason="scikit-learn is not installed")
    pixels, digit = digits()
    assert pixels.shape == (1797, 64)
    # The data sheet of scikit-learn's digits has these numbers of images of the digits 0 to 9.
    assert np.bincount(digit).tolist() == [178, 182, 177, 183, 181, 182, 181, 179, 174, 180]
    shuffled, names = digits(seed=3)
    assert not np.array_equal(names, digit)
    place = {row.tobytes(): name for row, name in zip(pixels, digit, strict=True)}
    assert len(place) == 1797
    assert all(place[row.tobytes()] == name for row, name in zip(shuffled, names, strict=True))


def test_without_scikit_learn_one_line_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "sklearn.datasets", None)
    with pytest.raises(PreconditionError, match=r"^digits need scikit-learn \(the demo extra\)$"):
        digits()


def test_binary_digits() -> None:
    pytest.importorskip("sklearn", reason="scikit-learn is not installed")
    features, labels = binary_digits()
    assert features.shape == (1797, 65)
    assert (features.min(), features.max()) == (0, 1)
    assert (features[:, -1] == 1).all()
    assert set(labels) == {-1.0, 1.0}
    assert (labels == 1).sum() == 896


def test_a_page_is_whole_and_needs_nothing_else(tmp_path) -> None:  # type: ignore[no-untyped-def]
    (tmp_path / "x.html").write_text('{% extends "base.html" %}{% block content %}<p>{{ said | twice }}{% endblock %}')
    found = document("x.html", title="A & b", width=46, folder=tmp_path, filters={"twice": lambda x: x + x}, said="<i>")
    assert "<title>A &amp; b</title>" in found
    assert "<h1>A &amp; b</h1>" in found
    assert "max-width: 46rem" in found
    assert "<p>&lt;i&gt;&lt;i&gt;" in found
    assert not {"src=", "href=", "@import"} & set(found.split())
    assert "<footer>" not in found
    assert "<footer>Written by <code>a &lt; b</code>" in document(
        "base.html", title="", width=1, folder=tmp_path, command="a < b"
    )
    HTMLParser().feed(found)


@pytest.mark.parametrize(("name", "points"), [("central", [2, 8, 32]), ("forward", [2, 5, 17]), ("exact", [2, 5, 17])])
def test_points_of_a_step_with_1_4_and_16_directions(name: str, points: list[int]) -> None:
    assert [DIFFERENCES[name].points(k) for k in (1, 4, 16)] == points
