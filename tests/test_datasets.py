"""Tests of the data sets, scikit-learn's digits and SST-2: their shapes, order and layouts.

They also test what is said where a data set is missing.
"""

import sys
from pathlib import Path

import numpy as np
import pytest

from dpzero_theory.check import PreconditionError
from dpzero_theory.datasets import binary_digits, digits, sst2


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


@pytest.mark.parametrize("header", ["", "sentence\tlabel\n"])
def test_labelled_sentences(tmp_path: Path, header: str) -> None:
    path = tmp_path / "train.tsv"
    path.write_text(header + "a good film \t1\nwith\ttab\t0\n", encoding="utf-8")
    sentences, labels = sst2(path)
    assert sentences == ["a good film ", "with\ttab"]
    np.testing.assert_array_equal(labels, [1.0, -1.0])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("good\t1\nbad\t2\n", "line 2"),
        ("good\t1\n\n", "line 2"),
        ("no tab\n", "line 1"),
        ("good\t1\nsentence\tlabel\n", "line 2"),
        ("", "no labelled"),
        ("sentence\tlabel\n", "no labelled"),
    ],
)
def test_bad_sentence_files_are_refused(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "bad.tsv"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(ValueError, match=message):
        sst2(path)


def test_a_missing_sentence_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="absent"):
        sst2(tmp_path / "absent.tsv")
