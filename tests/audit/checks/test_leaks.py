"""Tests that the audit does not report outputs that are no leak; loops that leak are tested in `test_zoo`."""

import hmac
import os
import sqlite3
import struct
import time
import uuid
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from benchmarks.zoo.catalogue import Specimen, claim
from benchmarks.zoo.first_order import Array, FirstOrder, FixedSize
from benchmarks.zoo.sound import WeightsInDoublePrecision
from dpzero_theory.audit.checks.leaks import canaries
from tests.audit.small import audit, require_sound


class _SavesMasks(FixedSize):
    """A faulty loop that saves each batch in a file of its own, as n zeros and ones."""

    def batch(self) -> NDArray[np.intp]:
        found = super().batch()
        np.save(f"batch_{self.step}.npy", np.isin(np.arange(len(self.records)), found))
        return found


def test_members_are_found_in_masks_and_where_sizes_say_nothing() -> None:
    report = audit(Specimen(_SavesMasks, claimed=lambda: claim("fixed-size", "replace-one")), "un-noised")
    assert "who is in the batches" in report["un-noised"].says


class _PrintsItsNumberOfRecords(FirstOrder):
    """A sound loop that prints the number of records, which is public."""

    def release(self, rows: Array) -> Array:
        print(f"step {self.step}: one of {len(self.records)} records may be in the batch")
        return super().release(rows)


@pytest.mark.parametrize("make", [_PrintsItsNumberOfRecords, WeightsInDoublePrecision])
def test_public_numbers_weights_and_chains_of_their_digests_are_not_reported(make: type[FirstOrder]) -> None:
    require_sound(Specimen(make), "un-noised")


class _NamesItsFiles(FirstOrder):
    """A sound loop with the name of the run, the clock and a counter in its files and prints, and a database."""

    runs = 0

    def finish(self) -> None:
        self.runs += 1
        print("run", uuid.uuid4(), self.runs, time.time())
        Path(f"log_{uuid.uuid4().hex}.bin").write_bytes(np.array([time.time(), self.runs]).tobytes())
        with closing(sqlite3.connect("weights.db")) as base:
            base.execute("create table weights (first real, at text)")
            base.execute("insert into weights values (?, datetime('now'))", (float(self.weights[0]),))
            base.commit()


def test_names_of_runs_clocks_and_counts_are_not_reported() -> None:
    require_sound(Specimen(_NamesItsFiles), "un-noised")


class _ShowsFewDigits(FirstOrder):
    """A sound loop that prints single digits of digests of the records under a secret key."""

    def finish(self) -> None:
        key = os.urandom(16)
        for k in range(60):
            print("digit", hmac.new(key, bytes([k]) + self.records.tobytes(), "sha256").hexdigest()[0], "of a digest")


class _ShowsManyIntegers(FirstOrder):
    """A sound loop with an output of thousands of integers of about the size of a batch.

    Six of them happen to be the sizes of the six batches.
    """

    def finish(self) -> None:
        size = int(self.settings["batch"])
        self.outputs["table"] = self.source.integers(size - 4, size + 5, 4000)


@pytest.mark.parametrize("make", [_ShowsFewDigits, _ShowsManyIntegers])
def test_what_agrees_by_chance_is_not_reported(make: type[FirstOrder]) -> None:
    require_sound(Specimen(make), "un-noised")


@pytest.mark.parametrize(("size", "status"), [(1 << 24, "held"), (64, "violated")])
def test_four_bytes_of_a_large_file_are_no_record(size: int, status: str) -> None:
    """Four bytes of a record's number are a leak in a small file and chance in a large one.

    Of 256 files of sixteen million bytes, about one has the four bytes by chance.
    """
    number = 0.123456789
    shown = {"file cache.bin": bytes(size) + struct.pack("<f", number)}
    runs = SimpleNamespace(base=SimpleNamespace(shown=shown))
    lab: Any = SimpleNamespace(loop=SimpleNamespace(records=[np.array([number])]), runs=runs)
    assert canaries(lab, 1e-7).status == status
