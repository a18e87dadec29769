"""Keeps answers of the accountant for tests of the code above it, since many tests ask what others have asked.

A `conftest.py` that imports the fixture has it for the tests of its folder.
"""

from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

import pytest

from dpzero_theory.privacy import accountant, calibration


def _kept(function: Callable[..., Any]) -> Callable[..., Any]:
    known = cache(function)

    def ask(*arguments: Any, **words: Any) -> Any:
        try:
            hash((arguments, tuple(words.values())))
        except TypeError:  # a wrong argument, which the function refuses
            return function(*arguments, **words)
        return known(*arguments, **words)

    return ask


_KEPT = (
    (accountant, "_cost_epsilon", _kept(accountant._cost_epsilon)),
    (calibration, "calibrated", _kept(calibration.calibrated)),
)


@pytest.fixture(scope="package", autouse=True)
def answers_are_kept() -> Iterator[None]:
    """A fixture with which equal questions to the accountant are computed once in each test process.

    A question has a cost or releases, and an epsilon or a delta.
    """
    with pytest.MonkeyPatch.context() as patch:
        for module, name, kept in _KEPT:
            patch.setattr(module, name, kept)
        yield
