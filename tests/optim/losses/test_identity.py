import functools
import hashlib
import hmac
import os
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from dpzero_theory.optim.losses.identity import RECORDS, layout, new_key, of_losses, of_records
from dpzero_theory.optim.weights.directions import Directions
from dpzero_theory.optim.weights.module import Weights
from tests import forks
from tests.optim.small import data, losses

KEY = bytes(32)


def weights(module: nn.Module) -> Weights:
    return Weights(module, Directions(bytes(16), "rademacher"))


def test_a_layout_is_the_trainable_names_shapes_and_types() -> None:
    module = nn.Sequential(nn.Linear(3, 2), nn.Linear(2, 1))
    found = layout(weights(module))
    assert found.startswith("4 parameters, d = 11, ")
    module[0].weight.data.add_(1.0)
    assert layout(weights(module)) == found
    others = {layout(weights(m)) for m in (module.double(), nn.Sequential(nn.Linear(2, 3), nn.Linear(3, 1)))}
    module[1].bias.requires_grad_(False)
    others.add(layout(weights(module)))
    assert len(others | {found}) == 4


def test_losses_are_told_apart_by_their_source_and_not_by_their_comments() -> None:
    def made(body: str) -> str:
        """Returns the digest of the losses that the source text `body` defines as the function f.

        The text is written to a file, because `inspect` reads a function's source there.
        """
        import importlib.util
        import tempfile
        from pathlib import Path

        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / f"m{hashlib.sha256(body.encode()).hexdigest()}.py"
            path.write_text(textwrap.dedent(body))
            spec = importlib.util.spec_from_file_location(path.stem, path)
            assert spec is not None
            assert spec.loader is not None
            module = importlib.util.module_from_spec(spec)
            spec.loader.exec_module(module)
            return of_losses(module.f)

    plain = made("def f(m, b):\n    return b + 1\n")
    assert plain == made("def f(m, b):  # the loss\n\n    return (b + 1)\n")
    assert plain != made("def f(m, b):\n    return b + 2\n")
    assert of_losses(losses) == of_losses(functools.partial(losses)) == of_losses(functools.wraps(losses)(lambda *_: 0))
    assert of_losses(losses).startswith("losses ")
    assert of_losses(losses) != of_losses(made)
    assert of_losses(len) == "len"

    class Loss:
        def __call__(self, module: object, batch: object) -> object:
            return batch

    assert of_losses(Loss()).split()[0].endswith("Loss")


class Rows:
    def __init__(self, rows: list[Any]) -> None:
        self.rows = rows

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> Any:
        return self.rows[index]


@pytest.mark.parametrize("text", ["def changed(\n", "x = (\n", "    y\n  z\n", '"""'])
def test_losses_whose_file_has_changed_are_known_by_their_name(text: str, tmp_path: Path) -> None:
    """Somebody edits the file after it was imported, and what stands at the function's line is no Python now."""
    path = tmp_path / "own_losses.py"
    path.write_text(text)
    names: dict[str, Any] = {}
    exec(compile("def changed(module, batch):\n    return batch\n", str(path), "exec"), names)
    assert of_losses(names["changed"]).startswith("changed")


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ([1, 2], [1, 3]),
        ([{"a": [1, 2], "b": 3}], [{"a": [1], "b": [2, 3]}]),
        ([(torch.zeros(4), 1)], [(torch.zeros(2, 2), 1)]),
        ([torch.zeros(2)], [torch.zeros(2, dtype=torch.float64)]),
        ([np.arange(3)], [np.arange(3)[::-1]]),
        ([["ab", "c"]], [["a", "bc"]]),
        ([{1, 2}], [{1, 3}]),
    ],
)
def test_records_that_differ_have_another_digest(one: list[Any], other: list[Any]) -> None:
    assert of_records(Rows(one), KEY) == of_records(Rows(list(one)), KEY) != of_records(Rows(other), KEY)


def test_the_digest_is_that_of_a_key_and_nothing_without_it() -> None:
    rows = Rows(["a", "b"])
    assert of_records(rows, KEY) != of_records(rows, new_key())
    assert len({new_key() for _ in range(3)}) == 3
    content = b"".join(b"%d " % len(text := __import__("pickle").dumps(v, protocol=4)) + text for v in rows.rows)
    assert of_records(rows, KEY) == hmac.new(KEY, content, "sha256").hexdigest()


def test_every_entry_of_a_tensor_data_set_counts_and_a_thousand_of_others() -> None:
    rows, other = data(), data()
    other.tensors[1][37] *= -1
    assert of_records(rows, KEY) != of_records(other, KEY)
    many, changed = list(range(2 * RECORDS)), list(range(2 * RECORDS))
    changed[2] = changed[3] = 0
    assert of_records(Rows(many), KEY) != of_records(Rows(changed), KEY)
    changed[2] = 2
    assert of_records(Rows(many), KEY) == of_records(Rows(changed), KEY)


def test_what_reads_differently_each_time_or_cannot_be_pickled_has_no_digest() -> None:
    class Random(Rows):
        def __getitem__(self, index: int) -> bytes:
            return os.urandom(8)

    assert of_records(Random([0]), KEY) == ""
    assert of_records(Rows([lambda: 0]), KEY) == ""


def test_a_digest_in_a_folder_outlives_the_names_of_modules() -> None:
    """The digest of losses or data in a folder stays the same when modules are renamed.

    That holds for an unreadable record too. The expected number is that of version 0.1.0.
    """

    class Gaps:
        def __len__(self) -> int:
            return 3

        def __getitem__(self, index: int) -> list[Any]:
            if index == 1:
                raise OSError("unreadable")
            return [index, 2.5, "a"]

    expected = "305239e4bcb4fa5643e055e072f831aaabc4a23f39e406a7ffbfedb64fc6591a"
    assert of_records(Gaps(), bytes(32)) == expected


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
