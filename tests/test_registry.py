from dataclasses import dataclass

import pytest

from dpzero_theory import check
from dpzero_theory.registry import Registry


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
    assert ["red"] not in colours
    assert check.choice("colour", "red", colours) == "red"


@pytest.mark.parametrize("name", ["green", 3, None, ["red"]])
def test_an_unknown_name_is_refused_with_the_names_there_are(colours: Registry[Colour], name: str) -> None:
    with pytest.raises(ValueError, match=r"^colour must be one of red, blue; got "):
        colours[name]
    with pytest.raises(ValueError, match=r"^colour must be one of red, blue; got "):
        colours.get(name)


def test_a_name_is_registered_once(colours: Registry[Colour]) -> None:
    with pytest.raises(ValueError, match=r"^colour must have a name of its own; got 'red', which is registered$"):
        colours.register(Colour("red"))
    assert colours["red"] is RED
