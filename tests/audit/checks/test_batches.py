"""Tests of the audit's checks of how batches are drawn; loops with faults are tested in `test_zoo`."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from benchmarks.zoo.catalogue import Specimen, records
from benchmarks.zoo.invented.catalogue import LOOPS as LOOPS_OF_OTHERS
from benchmarks.zoo.zeroth_order import Array, ZerothOrder
from dpzero_theory.audit.checks.batches import LAWS, observed, truncated, turns
from dpzero_theory.audit.conformance import check
from dpzero_theory.audit.influence import Scan
from tests.audit.small import STEPS, N, lab, named


def test_sizes_that_are_cut_off_below_are_found() -> None:
    [one] = named("RedrawsSmallBatches")
    report = check(one.make(), records(), one.claimed(), one.view, one.all_settings, checks=["batches"], runs=60)
    assert "how many batches are small" in report["batches"].says


@pytest.mark.parametrize("name", ["poisson", "fixed-size"])
def test_a_record_that_is_never_drawn_is_found(name: str) -> None:
    draw = np.random.default_rng(4)
    sound = (
        np.argsort(draw.random((8, 12, 32)), axis=2) < 8 if name == "fixed-size" else draw.random((8, 12, 32)) < 0.25
    )
    assert LAWS[name](sound, 0.25)["how often one record is drawn"] > 1e-3
    never = sound.copy()
    never[..., 5] = False
    assert LAWS[name](never, 0.25)["how often one record is drawn"] < 1e-8


def _turns(draw: np.random.Generator, rate: float, apart: bool) -> Any:
    """Returns batches of three groups that take turns, in 8 runs of 13 steps; not `apart`, records have two turns."""
    turn = draw.integers(3, size=(8, 1, 30))
    mine = turn == np.arange(13)[:, None] % 3
    if not apart:
        mine |= (turn + 1) % 3 == np.arange(13)[:, None] % 3
    return mine & (draw.random((8, 13, 30)) < rate)


def test_groups_that_take_turns() -> None:
    draw = np.random.default_rng(2)
    assert min(turns(_turns(draw, 0.5, True), 1 / 6, 3).values()) > 1e-3
    assert turns(_turns(draw, 0.5, False), 1 / 6, 3)["one turn for each record"] == 0
    assert turns(_turns(draw, 0.8, True), 1 / 6, 3)["how many records are drawn in all"] < 1e-20
    assert min(turns(_turns(draw, 1.0, True), 1 / 3, 3).values()) == 1
    assert turns(_turns(draw, 0.5, True)[:, :2], 1 / 6, 3) == {"one turn for each record": 1.0}


def _cut(draw: np.random.Generator, rate: float, largest: int, first: bool = False) -> Any:
    """Returns Poisson batches of 30 records, in 8 runs of 12 steps, cut to `largest` records: random ones, or the
    first."""
    drawn = draw.random((8, 12, 30)) < rate
    order = np.cumsum(drawn, axis=2) if first else np.argsort(np.argsort(draw.random(drawn.shape) - drawn)) + 1
    return drawn & (order <= largest)


def test_poisson_batches_that_are_cut() -> None:
    draw = np.random.default_rng(3)
    assert min(truncated(_cut(draw, 0.4, 13), 0.4, 13).values()) > 1e-3
    assert min(truncated(_cut(draw, 0.4, 30), 0.4, 30).values()) > 1e-3
    assert truncated(_cut(draw, 0.4, 14), 0.4, 13)["the largest batch"] == 0
    assert truncated(_cut(draw, 0.4, 10), 0.4, 13)["how many records are drawn in all"] < 1e-8
    always_first = truncated(_cut(draw, 0.7, 8, first=True), 0.7, 8)
    assert always_first["how often one record is drawn"] < 1e-8
    assert always_first["how many records are drawn in all"] > 1e-3


def test_loops_whose_batches_cannot_have_all_records_are_tested() -> None:
    """The loops obey the setting `sampling`, which is "full" where the audit wants all records in every batch."""
    for name in ("cyclic_poisson_shards", "truncated_poisson"):
        one = LOOPS_OF_OTHERS[name][1]
        report = check(one.make(), records(), one.claimed(), one.view, one.all_settings, runs=60)
        assert not report.violations
        held = {entry.check.name for entry in report.entries if entry.verdict.status == "held"}
        assert {"batches", "accounting", "precision", "attack"} <= held


def test_a_direction_along_which_nothing_moves_is_no_empty_batch() -> None:
    moved = np.zeros((3, 4, 8))
    moved[:, :, :2] = 2.0
    moved[1, 2] = 0.0
    claim = SimpleNamespace(sampling="fixed-size")
    runs = SimpleNamespace(base=SimpleNamespace(batches=None), same_for_all_seeds=False)
    influence = SimpleNamespace(scan=Scan(moved, 2.0, moved[..., 0], tuple(range(len(moved)))))
    stub: Any = SimpleNamespace(claim=claim, runs=runs, influence=influence)
    seen = observed(stub)
    assert seen is not None
    assert LAWS["fixed-size"](seen.included, 0.25)["sizes of batches"] == 1.0


class _SometimesFlat(ZerothOrder):
    """A sound zeroth-order loop in which some directions are zero, so that no record changes a step along them."""

    def directions(self) -> Array:
        return super().directions() * (0.0 if self.direction_seed % 4 == 2 else 1.0)


class _FlatInBatches(_SometimesFlat):
    """A sound loop that makes other directions, more of them zero, when it draws batches."""

    def directions(self) -> Array:
        return super().directions() * (self.settings["batch"] == self.settings["n"] or self.direction_seed % 3 == 0)


def test_batches_are_told_from_seeds_along_whose_directions_records_show() -> None:
    """The audit must not take a step in which no record shows for an empty batch.

    With the seed under which the audit first exchanges records no direction is zero; with the next seed two are.
    """
    one = lab(Specimen(_SometimesFlat))
    assert one.influence.pair is not None
    scan = one.influence.scan
    assert scan is not None
    for seed, included in zip(scan.seeds, scan.included, strict=True):
        rng, drawn = np.random.default_rng(seed), []
        for _ in range(STEPS):
            assert rng.integers(2**31) % 4 != 2
            drawn.append(rng.random(N) < one.claim.sample_rate)
        np.testing.assert_array_equal(included, drawn)
    assert lab(Specimen(_FlatInBatches)).influence.scan is None
