import itertools
import math

import numpy as np
import pytest

from dpzero_theory.privacy.relation import Relation


def test_the_sensitivity_is_the_largest_change_of_a_sum_of_clipped_numbers() -> None:
    values = np.linspace(-1, 1, 5)
    replaced = max(abs(a - b) for a, b in itertools.product(values, values))
    assert Relation.REPLACE_ONE.sensitivity == replaced
    assert Relation.ADD_REMOVE.sensitivity == Relation.ZERO_OUT.sensitivity == np.abs(values).max()


def test_a_relation_is_its_word() -> None:
    assert [str(relation) for relation in Relation] == ["replace-one", "add-remove", "zero-out"]
    assert all(Relation(str(relation)) is relation is Relation(relation) for relation in Relation)


@pytest.mark.parametrize("value", ["", "replace_one", "neighbours", "REPLACE-ONE", None, 2, math.nan, ["add-remove"]])
def test_anything_else_is_refused_with_the_words_there_are(value: object) -> None:
    with pytest.raises(ValueError, match=r"^relation must be one of replace-one, add-remove, zero-out; got ") as caught:
        Relation(value)
    assert "\n" not in str(caught.value)
