import functools
import hmac
import os
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

from dpzero_theory.optim.losses.identity import of_all, of_losses, of_records, shared
from dpzero_theory.optim.weights.directions import Directions
from dpzero_theory.optim.weights.module import Weights
from tests import forks
from tests.optim.small import data, losses

KEY = bytes(32)


def weights(module: nn.Module) -> Weights:
    return Weights(module, Directions(bytes(16), "rademacher"))


@pytest.mark.parametrize(
    ("text", "same"),
    [
        ("def f(m, b):  # the loss\n\n    return (b + 1)\n", True),
        ("def f(m, b):\n    return b + 2\n", False),
        ("def f(\n", False),  # Somebody edits the file after it was imported: the losses go by their name
    ],
)
def test_losses_are_told_apart_by_their_source_and_not_by_their_comments(tmp_path: Path, text: str, same: bool) -> None:
    def digest(place: Path, source: str) -> str:
        place.write_text(source)
        names: dict[str, Any] = {}
        exec(compile("def f(m, b):\n    return b + 1\n", str(place), "exec"), names)
        return of_losses(names["f"])

    first = digest(tmp_path / "one.py", "def f(m, b):\n    return b + 1\n")
    assert (digest(tmp_path / "other.py", text) == first) is same
    assert of_losses(losses) == of_losses(functools.partial(losses)) == of_losses(functools.wraps(losses)(lambda *_: 0))
    assert of_losses(losses).startswith("losses ")
    assert of_losses(len) == "len"


class Rows:
    def __init__(self, rows: list[Any]) -> None:
        self.rows = rows

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> Any:
        return self.rows[index]


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ([1, 2], [1, 3]),
        ([{"a": [1, 2], "b": 3}], [{"a": [1], "b": [2, 3]}]),
        ([torch.zeros(2)], [torch.zeros(2, dtype=torch.float64)]),
        ([["ab", "c"]], [["a", "bc"]]),
        ([{1, 2}], [{1, 3}]),
    ],
)
def test_records_that_differ_have_another_digest(one: list[Any], other: list[Any]) -> None:
    assert of_records(Rows(one), KEY) == of_records(Rows(list(one)), KEY) != of_records(Rows(other), KEY)


def test_every_entry_of_tensors_counts_and_a_thousand_of_others_and_the_key() -> None:
    rows, other = data(), data()
    other.tensors[1][37] *= -1
    assert of_records(rows, KEY) != of_records(other, KEY)
    assert of_records(rows, KEY) != of_records(rows, os.urandom(32))
    many, changed = list(range(2000)), list(range(2000))
    changed[3] = 0
    assert of_records(Rows(many), KEY) == of_records(Rows(changed), KEY)
    changed[2] = 0
    assert of_records(Rows(many), KEY) != of_records(Rows(changed), KEY)


def test_of_what_reads_differently_each_time_or_cannot_be_pickled_the_number_counts_and_the_key() -> None:
    class Random(Rows):
        def __getitem__(self, index: int) -> bytes:
            return os.urandom(8)

    assert of_records(Random([0]), KEY) == of_records(Rows([lambda: 0]), KEY) != of_records(Random([0, 0]), KEY)
    assert of_records(Random([0]), KEY) not in (of_records(Random([0]), os.urandom(32)), of_records(Rows([0]), KEY))


def test_token_ids_have_the_digest_of_their_pickles() -> None:
    """A run that began before token ids were digested faster can be resumed."""
    ids = [0, 7, 7, -1, 2**40]
    texts = [pickle.dumps(number, protocol=4) for number in ids]
    whole = b"5 " + b"".join(b"%d %b" % (len(text), text) for text in texts)
    assert of_all([ids], KEY) == hmac.new(KEY, whole, "sha256").hexdigest()


def test_the_digest_is_the_same_in_another_process() -> None:
    code = (
        "from dpzero_theory.optim.losses.identity import of_records\n"
        "print(of_records([{'text': 'abc', 'tags': {'x', 'y', 'z'}, 'v': 1.5}], bytes(32)))"
    )
    environment = {**os.environ, "PYTHONHASHSEED": "1"}
    other = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert other.stdout == forks.run("-c", code).stdout
    # Two elements of equal hashes may be in either order in a set.
    assert of_records([{"x": {0, 8}}], KEY) == of_records([{"x": {8, 0}}], KEY)


FEATURES = torch.arange(60.0).reshape(20, 3)
TENSORS = TensorDataset(FEATURES, torch.zeros(20))
IMAGES, OTHERS = (
    [{"pixels": np.full((2, 2), i), "file": f"{name}/{i}", "target": i} for i in range(4)] for name in "ab"
)
RAGGED = [{"words": [["a"], ["b", "c"]], "spans": [[1], [2, 3]]}]


@pytest.mark.parametrize(
    ("data", "others", "given", "found"),
    [
        (TENSORS, [(row.clone(), 1) for row in FEATURES], {}, 20),
        (TENSORS, TensorDataset(FEATURES + 3, torch.zeros(20)), {}, 19),
        (TENSORS, [(row.double(), 1) for row in FEATURES], {}, 0),
        (IMAGES, OTHERS, {}, 0),
        (IMAGES, OTHERS, {"names": ("pixels",)}, 4),
        (["a", "b"], ["b", "c"], {}, 1),
        (RAGGED, [dict(RAGGED[0])], {}, 1),
        (RAGGED, [{**RAGGED[0], "words": [["a"], ["b", "d"]]}], {}, 0),
        ([{"input_ids": [5, 6], "label": 1}], [{"input_ids": [5, 6], "label": 0}, {"input_ids": [5, 7]}], {}, 1),
    ],
)
def test_records_are_told_apart_by_what_a_model_is_given(data: Any, others: Any, given: Any, found: int) -> None:
    assert len(shared(data, others, **given)) == found


def test_what_cannot_be_compared_is_said() -> None:
    with pytest.raises(ValueError, match=r"^records must .*compared"):
        shared([lambda: 1], [1])
    with pytest.raises(ValueError, match=r"^records must .*compared; got a stream"):
        shared([1], iter([1]))
