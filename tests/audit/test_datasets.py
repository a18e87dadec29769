import numpy as np
import pytest

from dpzero_theory.audit import datasets

ROWS = np.arange(6.0).reshape(3, 2)
PAIRS = [(np.array([1.0, 2.0]), 1), (np.array([3.0, 4.0]), 0)]


def test_neighbours_leave_the_data_alone() -> None:
    other = datasets.replaced(ROWS, 1, ROWS[0])
    np.testing.assert_array_equal(other[1], [0.0, 1.0])
    np.testing.assert_array_equal(ROWS[1], [2.0, 3.0])
    assert len(datasets.removed(ROWS, 0)) == 2
    assert datasets.removed(PAIRS, 0) == PAIRS[1:]
    assert datasets.filled(PAIRS, PAIRS[0]) == [PAIRS[0]] * 2
    np.testing.assert_array_equal(datasets.filled(ROWS, ROWS[2]), [[4.0, 5.0]] * 3)


def test_labels_stay() -> None:
    features, label = datasets.scaled(PAIRS[0], -2.0)
    np.testing.assert_array_equal(features, [-2.0, -4.0])
    assert label == 1
    features, label = datasets.mirrored(PAIRS[0])
    np.testing.assert_array_equal(features, [-1.0, -2.0])
    assert label == 1
    np.testing.assert_array_equal(datasets.mirrored(np.array([1.0, 2.0, 3.0])), [-1.0, -2.0, 3.0])
    assert datasets.scaled("text", 2.0) == "text"


@pytest.mark.parametrize(
    "records", [ROWS, PAIRS, [0.5, 1.5, 2.5], ["a", "b", "c"]], ids=["rows", "pairs", "numbers", "words"]
)
def test_extremes_have_the_records_kind(records: object) -> None:
    for record in datasets.extremes(records):
        assert type(record) is type(records[0])  # type: ignore[index]


def test_numbers_and_poison() -> None:
    assert datasets.numbers(PAIRS[0]) == [1.0, 2.0]
    assert datasets.numbers("text") == []
    first, second, *ends, largest = datasets.poisoned(ROWS[0])
    assert np.isnan(first).all()
    assert np.isinf(second).all()
    assert {int(np.flatnonzero(one != ROWS[0])[0]) for one in ends} == {0, len(ROWS[0]) - 1}
    assert all((one != ROWS[0]).sum() == 1 for one in ends)
    assert (np.abs(largest) == np.finfo(ROWS.dtype).max).all()
    assert [type(one) for one in datasets.poisoned(PAIRS[0])] == [tuple] * 9
    assert list(datasets.poisoned("text")) == []
    assert datasets.each_scaled(PAIRS, 3.0)[1][0].tolist() == [9.0, 12.0]
