"""Tests that runs on modules sharded over 4 processes (gloo) equal the runs of one process, bit for bit."""

from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch

from dpzero_theory.optim.files.transcript import Checkpoint, read
from dpzero_theory.optim.verify import verify
from tests import forks
from tests.optim.sharded import RUNS, Net, finished, half_way, mezo, resumed, seeded, shifted_output, weights

COUNT = 4  # more processes than some parameters have rows


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the results of `sharded.main`."""
    found = tmp_path_factory.mktemp("sharded")
    half_way(Net(torch.bfloat16), found / "alone.pt")
    outcome = forks.run("-m", "tests.optim.sharded", found, str(COUNT))
    assert outcome.returncode == 0, outcome.stderr[-3000:]
    return found


@pytest.fixture
def ranks(folder: Path) -> list[dict[str, Any]]:
    """The results of each process."""
    return [torch.load(folder / f"{COUNT}-{rank}.pt", weights_only=True) for rank in range(COUNT)]


def equal(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(value, other[name]) for name, value in one.items())


@cache
def alone(name: str) -> dict[str, torch.Tensor]:
    run = seeded(Net(), name)
    before = run.weights.fingerprint()
    found = finished(run)
    assert run.weights.fingerprint() != before
    return found


@pytest.mark.parametrize("name", RUNS)
def test_the_weights_are_those_of_one_process(ranks: list[dict[str, Any]], name: str) -> None:
    assert equal(ranks[0][name], alone(name))
    assert all(rank[name] == {} for rank in ranks[1:])


@pytest.mark.parametrize("name", ["gathered", "replicated", "in part"])
def test_other_ways_of_sharding(ranks: list[dict[str, Any]], name: str) -> None:
    """In them weights stay gathered after a forward pass, shards are replicated, or the root is not sharded."""
    assert equal(ranks[0][name], ranks[0]["rademacher"])


def test_a_private_run_is_replayed_on_shards_and_on_a_whole_module(ranks: list[dict[str, Any]], folder: Path) -> None:
    module = Net()
    read(folder / f"private-{COUNT}" / "run.sqlite").replayed(module)
    assert equal(ranks[0]["private"], weights(module).values())
    assert equal(ranks[0]["replayed"], weights(module).values())


def test_what_ranks_and_shards_have_left_is_verified_without_them(ranks: list[dict[str, Any]], folder: Path) -> None:
    initial = Checkpoint(dict(Net().named_parameters()))
    found = verify(folder / f"private-{COUNT}", initial, Checkpoint(ranks[0]["private"]))
    assert found.fault == ""
    assert [line.holds for line in found.findings if line.name in ("initial weights", "final weights")] == [True, True]
    other = {name: value + 1 for name, value in ranks[0]["private"].items()}
    assert "final weights" in verify(folder / f"private-{COUNT}", initial, Checkpoint(other)).fault


def test_checkpoints_go_from_shards_to_a_whole_module_and_back(ranks: list[dict[str, Any]], folder: Path) -> None:
    whole = finished(mezo(Net(torch.bfloat16)))
    assert equal(resumed(Net(torch.bfloat16), folder / "alone.pt"), whole)
    assert equal(ranks[0]["resumed"], whole)
    assert equal(resumed(Net(torch.bfloat16), folder / f"checkpoint-{COUNT}.pt"), whole)


def test_mixed_precision_shifts_the_cast_weights(ranks: list[dict[str, Any]]) -> None:
    expected = shifted_output(Net().bfloat16())
    assert all(torch.equal(rank["mixed"], expected) for rank in ranks)


def test_what_cannot_be_supported_is_one_line(ranks: list[dict[str, Any]]) -> None:
    for rank in ranks:
        assert rank["refusals"] == {
            "by_columns": "parameter weight must be sharded by fully_shard, by rows only; got (Shard(dim=1),)",
            "first_kind": "module must not be FullyShardedDataParallel (FSDP1): use torch.distributed.fsdp.fully_shard",
            "direct": "the losses must read embed.weight in a forward, which gathers it; got aten.mul.Tensor",
            "in_the_middle": "division by zero",
            "derivatives": "difference must be 'forward' or 'central' for these losses: the module is sharded",
        }
