from pathlib import Path

import torch

from dpzero_theory.optim.files.transcript import read
from dpzero_theory.privacy.ledger import Ledger
from tests import forks
from tests.optim.ranks import KINDS, train
from tests.optim.small import STEP, Logistic


def on_ranks(folder: Path, count: int, *kinds: str) -> list[dict[str, torch.Tensor]]:
    """Runs the cases `kinds` in `count` processes and returns, for each rank, the final weights by case.

    `folder` is for their files.
    """
    outcome = forks.run("-m", "tests.ranks", str(count), "tests.optim.ranks", folder, *kinds)
    assert outcome.returncode == 0, outcome.stderr[-3000:]
    return [torch.load(folder / f"{count}-{rank}.pt", weights_only=True) for rank in range(count)]


def test_fault_i_two_ranks_are_one_run(tmp_path: Path) -> None:
    """Fault (i), ranks that differ: here every rank has the weights of a single process, bit for bit.

    A private run has one ledger and one transcript.
    """
    ranks = on_ranks(tmp_path, 2, *KINDS, "private", "other plan", "other weights", "other records")
    for kind in KINDS:
        alone = train(tmp_path, kind)
        assert alone.abs().min() > 0
        assert all(torch.equal(rank[kind], alone) for rank in ranks), kind
    assert all(torch.equal(rank["other weights"], ranks[0]["dpzero"]) for rank in ranks)
    again = Logistic(torch.float32)
    read(tmp_path / "run" / "run.sqlite").replayed(again)
    assert all(torch.equal(rank["private"], again.weight) for rank in ranks)
    with Ledger.open(tmp_path / "run" / "run.sqlite") as ledger:
        assert sum(group.steps for group in ledger.history) == STEP["steps"]
    assert len(read(tmp_path / "run")[1]) == STEP["steps"]
