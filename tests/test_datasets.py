"""Tests of scikit-learn's digits: their shapes and order, and what is said where they are missing."""

import sys

import numpy as np
import pytest

from dpzero_theory.check import PreconditionError
from dpzero_theory.datasets import binary_digits, digits


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
