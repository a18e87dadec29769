"""Tests of the sentences of SST-2 and of the counts of their hashed words."""

import math
from pathlib import Path

import numpy as np
import pytest

from benchmarks.problems.sentences import hashed_words, sst2


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


def test_hashed_words_count_words_and_append_a_constant():
    counts = hashed_words(["Good, GOOD film", "", "film"], 50)
    dense = counts.toarray()
    assert dense.shape == (3, 50)
    np.testing.assert_array_equal(dense[:, -1], 1)
    np.testing.assert_array_equal(dense[:, :-1].sum(axis=1), [3, 0, 1])
    film = int(dense[2, :-1].argmax())
    assert dense[0, film] == 1
    assert sorted(dense[0, :-1][dense[0, :-1] > 0]) == [1, 2]


def test_hashed_words_of_one_record_do_not_depend_on_the_others():
    """The hashed words of one record do not depend on the other records, as they would with a vocabulary."""
    alone = hashed_words(["a fine film"], 64).toarray()
    together = hashed_words(["other words entirely", "a fine film"], 64).toarray()
    np.testing.assert_array_equal(alone[0], together[1])


@pytest.mark.parametrize("d", [0, 1, 2.5, math.nan, "8", None])
def test_hashed_words_refuse_bad_dimensions(d):
    with pytest.raises(ValueError, match="d must be an integer"):
        hashed_words(["a"], d)
