import gzip
import io
import math
import zipfile
import zlib
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from dpzero_theory.audit.loop import LoopOutput
from dpzero_theory.audit.tokens import contents, tokens, where


def content(value: Any) -> list[Any]:
    [(_, found)] = contents("any", value)
    return found


@pytest.mark.parametrize(
    ("value", "wanted"),
    [
        ('{"run": "e857b1f3144df62b", "x": 1.5}', [b'{"run":', b'"', b"e857b1f3144df62b", b'",', b'"x":', 1.5, b"}"]),
        (
            "123e4567-e89b-12d3-a456-426614174000 1234567890123456",
            [b"123e4567-e89b-12d3-a456-426614174000", 1234567890123456.0],
        ),
        ("log_e857b1f3144df62b.bin", [b"log_", b"e857b1f3144df62b", b".bin"]),
        ("1.2345678901234567e-05", [1.2345678901234567e-05]),
        ("loss=0.5, step 3 fine", [b"loss=", 0.5, b",", b"step", 3.0, b"fine"]),
        (b"-1e-3 x", [-1e-3, b"x"]),
        (2, [2.0]),
        (True, [1.0]),
        ([1.0, math.nan], [1.0, b"nan"]),
        (np.arange(3.0), [0.0, 1.0, 2.0]),
        ({"a": 1}, [b"{'a':", 1.0, b"}"]),
        (b"\x00\x01\x02\x03\x04\x05\x06\x07", [b"\x00\x01\x02\x03", b"\x04\x05\x06\x07"]),
    ],
)
def test_what_is_shown_as_numbers_and_words(value: Any, wanted: list[Any]) -> None:
    assert content(value) == wanted


@pytest.mark.parametrize("pack", [gzip.compress, zlib.compress])
def test_packed_files_are_opened(pack: Callable[[bytes], bytes]) -> None:
    assert content(pack(b"loss 0.5")) == [b"loss", 0.5]


def test_what_only_begins_like_a_packed_file_is_taken_as_it_is() -> None:
    assert content(b"\x1f\x8b\x00\x01\x02\x03\x04\x05") == [b"\x1f\x8b\x00\x01", b"\x02\x03\x04\x05"]
    assert content(b"PK\x03\x04\x02\x03\x04\x05") == [b"PK\x03\x04\x02\x03\x04\x05"]


def test_archives_and_arrays_are_opened() -> None:
    raw = io.BytesIO()
    np.savez(raw, a=np.array([1.5, 2.5]), b=np.array([3]))
    assert dict(contents("file x.npz", raw.getvalue())) == {"file x.npz/a.npy": [1.5, 2.5], "file x.npz/b.npy": [3.0]}
    raw = io.BytesIO()
    with zipfile.ZipFile(raw, "w") as archive:
        archive.writestr("model/data", "0.5")
    assert dict(contents("file y", raw.getvalue())) == {"file y/data": [0.5]}


def test_places_have_numbers_and_a_count() -> None:
    found = tokens(LoopOutput(None, shown={"loss": [0.5, 0.25], "printed": ""}))
    assert found == {("loss", 0): 0.5, ("loss", 1): 0.25, ("loss", -1): 2.0, ("printed", -1): 0.0}
    assert where(("loss", 1)) == "loss, number 1"
    assert where(("loss", -1)) == "loss, how much there is"
