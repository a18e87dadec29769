"""Tests of what can happen to a run's folder by accident.

Each fault is refused in one line and changes nothing, or the releases that it concerns are counted.
"""

import copy
import os
import shutil
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

from dpzero_theory.optim.files.folder import KEY, LEDGER, TRANSCRIPT, epsilon_of_runs
from dpzero_theory.optim.files.replay import replay
from dpzero_theory.optim.files.transcript import TranscriptError, read
from dpzero_theory.optim.private import make_from_seed_not_private, make_private_with_epsilon
from dpzero_theory.optim.run import Run
from dpzero_theory.privacy.accountant import epsilon_of_history
from dpzero_theory.privacy.ledger import LedgerError
from tests.optim.small import BUDGET, FULL, STEP, Logistic, data, losses, plan, private, weights


def run_of(folder: Path, count: int, **changes: Any) -> Run:
    run = private(folder, **changes)
    for _ in range(count):
        run.step()
    return run


def files(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def lines(path: Path, keep: slice) -> bytes:
    return b"".join(path.read_bytes().splitlines(keepends=True)[keep])


def refused(folder: Path, error: type[Exception], message: str, resume: bool | str = True, **changes: Any) -> None:
    before = files(folder)
    with pytest.raises(error, match=message) as found:
        private(folder, resume=resume, **changes)
    assert "\n" not in str(found.value)
    assert files(folder) == before


def replayed(folder: Path) -> torch.Tensor:
    module = Logistic()
    replay(folder / TRANSCRIPT, module)
    return module.weight.detach()


def test_a_refused_second_start_leaves_the_running_one_readable(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    run = run_of(folder, 2)
    refused(folder, TranscriptError, "another process has this file open")
    refused(folder, FileExistsError, "resume the run in it", resume=False)
    run.run()
    run.close()
    assert len(read(folder / TRANSCRIPT)[1]) == STEP["steps"]


@pytest.mark.parametrize("lost", [1, 3, 6])
def test_a_ledger_that_was_rolled_back_is_refused(tmp_path: Path, lost: int) -> None:
    run_of(tmp_path, 6).close()
    (tmp_path / LEDGER).write_bytes(lines(tmp_path / LEDGER, slice(0, -lost)))
    refused(tmp_path, LedgerError, f"the ledger counts only {6 - lost}: it was rolled back|LedgerError")
    with pytest.raises(LedgerError, match="rolled back"):
        epsilon_of_runs([tmp_path], 1e-5, planned=True)


@pytest.mark.parametrize("records", [0, 2, 4])
def test_a_transcript_that_was_cut_off_is_refused(tmp_path: Path, records: int) -> None:
    run_of(tmp_path, 6).close()
    content = (tmp_path / TRANSCRIPT).read_bytes()
    (tmp_path / TRANSCRIPT).write_bytes(content[: len(content) - 20 * (6 - records)])
    refused(tmp_path, TranscriptError, f"has {records} records .* the ledger has seen 5: it was cut off or replaced")


def test_the_last_record_may_be_lost_and_stays_paid_for(tmp_path: Path) -> None:
    """The last record of a transcript may be lost, and its release stays paid for.

    A crash between writing the ledger and the transcript looks the same.
    """
    run_of(tmp_path, 6).close()
    content = (tmp_path / TRANSCRIPT).read_bytes()
    (tmp_path / TRANSCRIPT).write_bytes(content[:-20])
    again = private(tmp_path, resume=True)
    assert again.step().release == 6
    assert torch.equal(weights(again), replayed(tmp_path))


def test_a_checkpoint_beyond_the_transcript_is_refused(tmp_path: Path) -> None:
    run = run_of(tmp_path, 6)
    state = run.state_dict()
    run.close()
    content = (tmp_path / TRANSCRIPT).read_bytes()
    (tmp_path / TRANSCRIPT).write_bytes(content[:-20])
    again = private(tmp_path, resume=True)
    again.load_state_dict(state)
    with pytest.raises(TranscriptError, match="the checkpoint is after release 5, which the transcript lacks"):
        again.step()


@pytest.mark.parametrize("name", [TRANSCRIPT, LEDGER, KEY])
def test_a_deleted_file_is_missed(tmp_path: Path, name: str) -> None:
    run_of(tmp_path, 3).close()
    (tmp_path / name).unlink()
    refused(tmp_path, FileNotFoundError, f"{name} is missing: put it back|{name}")
    refused(tmp_path, FileExistsError, "not empty: resume the run in it, or use another folder", resume=False)


@pytest.mark.parametrize("name", [TRANSCRIPT, LEDGER])
def test_a_file_that_goes_in_mid_run_is_missed_before_anything_more_is_paid(tmp_path: Path, name: str) -> None:
    run = run_of(tmp_path, 3)
    (tmp_path / name).rename(tmp_path / "elsewhere")
    with pytest.raises((TranscriptError, LedgerError), match="moved or changed by something else: put it back"):
        run.step()
    assert run.releases_left == STEP["steps"] - 3


@pytest.mark.parametrize("name", [TRANSCRIPT, LEDGER])
def test_a_file_of_another_run_is_refused(tmp_path: Path, name: str) -> None:
    one, other = tmp_path / "one", tmp_path / "other"
    for folder in (one, other):
        run_of(folder, 3).close()
    (one / name).write_bytes((other / name).read_bytes())
    refused(one, LedgerError, "of different runs: put back", resume="moved")


def test_every_flipped_bit_is_refused_or_counted(tmp_path: Path) -> None:
    """After a bit of a file is flipped, the run is refused, or counts all that was paid for.

    One bit in every ninth byte is flipped, one at a time. No record is lost without a word.
    """
    run_of(tmp_path, 3).close()
    whole = files(tmp_path)
    counted = 0
    for name in (TRANSCRIPT, LEDGER):
        for place in range(0, len(whole[name]), 9):
            changed = bytearray(whole[name])
            changed[place] ^= 1 << place % 8
            (tmp_path / name).write_bytes(changed)
            with suppress(TranscriptError, LedgerError):
                again = private(tmp_path, resume=True)
                counted += 1
                assert again.releases_left == STEP["steps"] - 3
                assert len(read(tmp_path / TRANSCRIPT)[1]) == 3
                again.close()
            for other, content in whole.items():
                (tmp_path / other).write_bytes(content)
    assert 0 < counted < 40  # Only bits in the ledger's last line may be counted and not refused


def test_a_private_run_is_not_gone_on_with_from_a_seed_nor_the_reverse(tmp_path: Path) -> None:
    run_of(tmp_path / "private", 2).close()
    before = files(tmp_path / "private")
    for resume in (True, False):
        with pytest.raises(
            (ValueError, FileExistsError), match=r"must be resumed as it was begun, with make_private|no"
        ):
            make_from_seed_not_private(
                Logistic(), losses, data(), plan(), seed=1, folder=tmp_path / "private", resume=resume
            )
    assert files(tmp_path / "private") == before
    make_from_seed_not_private(Logistic(), losses, data(), plan(), seed=1, folder=tmp_path / "seeded").close()
    refused(tmp_path / "seeded", ValueError, "as it was begun, with make_from_seed_not_private")
    with pytest.raises(ValueError, match=r"^seed must be as in the run"):
        make_from_seed_not_private(Logistic(), losses, data(), plan(), seed=2, folder=tmp_path / "seeded", resume=True)


def other_losses(module: nn.Module, batch: Any) -> torch.Tensor:
    return 2 * losses(module, batch)


def resumed(folder: Path, module: nn.Module, function: Any = losses, rows: Any = None) -> Run:
    rows = data() if rows is None else rows
    return make_private_with_epsilon(module, function, rows, **{**BUDGET, **STEP, **FULL}, folder=folder, resume=True)


def test_other_records_losses_or_parameters_are_refused(tmp_path: Path) -> None:
    run_of(tmp_path, 2).close()
    features, labels = data().tensors
    for rows in (TensorDataset(features + 1, labels), TensorDataset(features.flip(0), labels.flip(0))):
        with pytest.raises(ValueError, match=r"^data must be the records of the run that is resumed; these are others"):
            resumed(tmp_path, Logistic(), rows=rows)
    with pytest.raises(ValueError, match=r"^losses must be as in the run that is resumed, losses .*; got other_losses"):
        resumed(tmp_path, Logistic(), other_losses)
    with pytest.raises(ValueError, match=r"^the trainable parameters must be as in .* d = 6, .*; got 1 .* d = 6"):
        resumed(tmp_path, Logistic(torch.float32), rows=TensorDataset(features.float(), labels.float()))
    resumed(tmp_path, Logistic()).step()


def test_a_layer_that_is_frozen_in_between_is_refused(tmp_path: Path) -> None:
    def made(resume: bool) -> tuple[nn.Module, Callable[[], Run]]:
        module = nn.Sequential(nn.Linear(6, 2), nn.Linear(2, 1)).double()
        return module, lambda: make_private_with_epsilon(
            module,
            lambda module, batch: module(batch[0])[:, 0] ** 2,
            data(),
            **{**BUDGET, **STEP, **FULL},
            folder=tmp_path,
            resume=resume,
        )

    _, start = made(resume=False)
    start().close()
    module, start = made(resume=True)
    module[0].requires_grad_(False)
    with pytest.raises(ValueError, match=r"the trainable parameters must be as in .*, 4 parameters.*; got 2 param"):
        start()


def test_a_private_run_needs_a_folder() -> None:
    for folder in (None, 3):
        with pytest.raises(ValueError, match=r"^folder must be a path, where a private run keeps its ledger; got"):
            private(folder)  # type: ignore[arg-type]


def test_a_copy_goes_on_only_when_that_is_said_and_forks_are_added_up(tmp_path: Path) -> None:
    first, copy, third = tmp_path / "a", tmp_path / "b", tmp_path / "c"
    run_of(first, 3, stopping="fixed").close()
    shutil.copytree(first, copy)
    shutil.copytree(first, third)
    refused(copy, LedgerError, "a copy, or brought from another disk: .* open it as moved", stopping="fixed")
    one = private(first, resume=True, stopping="fixed")
    other = private(copy, resume="moved", stopping="fixed")
    for _ in range(2):
        one.step()
    other.run()
    one.close()
    other.close()
    release = one.plan.settings

    def cost(count: int) -> float:
        return epsilon_of_history([release.release(count)], 1e-5).upper

    assert epsilon_of_runs([third], 1e-5, planned=True) == cost(3)
    assert epsilon_of_runs([first, third, first], 1e-5, planned=True) == cost(5)
    assert epsilon_of_runs([first, copy, third], 1e-5, planned=True) == cost(3 + 2 + 5)
    # A user has to say only once that a folder is a copy.
    assert private(copy, resume=True, stopping="fixed").releases_left == 0
    assert one.get_epsilon(1e-5) == cost(5)
    assert max(cost(5), other.get_epsilon(1e-5)) < cost(10)


def test_a_folder_that_was_renamed_goes_on(tmp_path: Path) -> None:
    run_of(tmp_path / "a", 2).close()
    (tmp_path / "a").rename(tmp_path / "b")
    assert private(tmp_path / "b", resume=True).step().release == 2


def test_a_start_that_fails_half_way_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A start that fails half way leaves nothing; it is made to fail at every fsync, and at the rename."""
    (tmp_path / "parent").mkdir()
    folder = tmp_path / "parent" / "run"
    fsync = os.fsync
    for failing in range(30):
        calls = iter(range(100))

        def full(file: int, calls: Any = calls, failing: int = failing) -> None:
            if next(calls) == failing:
                raise OSError(28, "no space left on device")
            fsync(file)

        monkeypatch.setattr(os, "fsync", full)
        try:
            private(folder).close()
        except OSError:
            monkeypatch.undo()
            if folder.exists():  # This start failed only after its folder was complete
                private(folder, resume=True).close()
                break
            assert list(folder.parent.iterdir()) == []
        else:
            raise AssertionError("nothing failed")
    else:
        raise AssertionError("the folder was never made")
    assert failing >= 5


def test_a_full_disk_between_ledger_and_transcript_is_gone_on_from(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = run_of(tmp_path, 2)
    pwrite = os.pwrite
    for written in (0, 7, 19):
        monkeypatch.setattr(
            os, "pwrite", lambda file, line, at, n=written: pwrite(file, line[: n if len(line) == 20 else None], at)
        )
        with pytest.raises(TranscriptError, match="written in part"):
            run.step()
        monkeypatch.undo()
        run.close()
        run = private(tmp_path, resume=True)
    assert run.step().release == 5
    assert [record.release for record in read(tmp_path / TRANSCRIPT)[1]] == [0, 1, 5]
    assert torch.equal(weights(run), replayed(tmp_path))


def test_releases_are_paid_for_several_at_a_time(tmp_path: Path) -> None:
    run = run_of(tmp_path, 2, paid_at_once=3)
    assert run.releases_left == STEP["steps"] - 2
    assert sum(release.steps for release in run.history) == 3
    assert (tmp_path / LEDGER).read_bytes().count(b'"spend"') == 1
    run.close()
    refused(tmp_path, ValueError, "paid_at_once must be 3, as the run was begun; got 1", paid_at_once=1)
    again = private(tmp_path, resume=True)
    assert [again.step().release for _ in range(5)] == [3, 4, 5, 6, 7]
    assert again.releases_left == 0
    assert torch.equal(weights(again), replayed(tmp_path))
    with pytest.raises(ValueError, match="paid_at_once must be an integer"):
        private(tmp_path / "none", paid_at_once=0)


class Wide(Logistic):
    """The same losses of so many weights that a step of 40 records, twice each, takes 2 (2 40) 300,000 operations."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(300_000, dtype=torch.float64))

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        return features @ self.weight[: features.shape[1]] + 0 * self.weight.sum()


@pytest.mark.parametrize(
    ("steps", "module", "paid"), [(199, Logistic, 1), (500, Logistic, 5), (5000, Logistic, 16), (5000, Wide, 1)]
)
def test_by_default_small_steps_are_paid_for_several_at_a_time(
    steps: int, module: type[Logistic], paid: int, tmp_path: Path
) -> None:
    run = private(tmp_path, module(), steps=steps)
    run.step()
    assert sum(release.steps for release in run.history) == paid
    assert run.releases_left == steps - 1


class Disk:
    """What a power failure leaves of a folder's files: what was brought to disk, and perhaps some of the rest.

    `folder` is the folder, and `monkeypatch` replaces the calls that bring files to disk.
    """

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder, self.patch = folder, monkeypatch
        self.kept = files(folder)
        self.written = 0

    def __enter__(self) -> "Disk":
        fsync = os.fsync

        def synced(file: int) -> None:
            fsync(file)
            self.written += 1
            for path in self.folder.iterdir():
                if os.path.samestat(os.fstat(file), path.stat()):
                    self.kept[path.name] = path.read_bytes()

        self.patch.setattr(os, "fsync", synced)
        return self

    def __exit__(self, *unused: object) -> None:
        self.patch.undo()

    def fail(self, lost: Callable[[bytes], bytes]) -> None:
        """Let the power fail: what is not known to be on disk is replaced.

        `lost` is a function of the bytes written last that returns what is there instead.
        """
        for name, kept in self.kept.items():
            rest = (self.folder / name).read_bytes()[len(kept) :]
            (self.folder / name).write_bytes(kept + lost(rest))


def gone(run: Run) -> None:
    """Makes a run behave as if its process had ended: nothing more is written."""
    for file in (run._files.transcript, run._files.ledger):
        assert file is not None
        file._journal._leave()


@pytest.mark.parametrize("block", [1, 3])
@pytest.mark.parametrize("left", ["nothing", "some", "zeros"])
def test_after_a_power_failure_what_was_paid_for_at_once_may_be_lost_and_stays_paid_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, block: int, left: str
) -> None:
    """After a power failure, releases that were paid for in advance may be lost and stay paid for.

    The power fails after each number of steps, one after another; a checkpoint is never ahead of the transcript.
    """
    lost = {"nothing": lambda rest: b"", "some": lambda rest: rest[:27], "zeros": lambda rest: bytes(len(rest))}[left]
    told: list[int] = []
    private(tmp_path, paid_at_once=block, steps=60).close()
    refusals = 0
    for count in range(1, 8):
        run = private(tmp_path, resume=True, paid_at_once=block, steps=60)
        with Disk(tmp_path, monkeypatch) as disk:
            for number in range(count):
                told.append(run.step().release)
                if number == 1:
                    state = copy.deepcopy(run.state_dict())
            module = run.weights.module
            disk.fail(lost)
            gone(run)
        try:
            run = private(tmp_path, module=Logistic(), resume=True, paid_at_once=block, steps=60)
        except TranscriptError as error:
            refusals += 1
            assert left == "zeros"
            size = int(str(error).partition("or cut it to its first ")[2].partition(" bytes: what it lacks stays")[0])
            os.truncate(tmp_path / TRANSCRIPT, size)
            run = private(tmp_path, module=Logistic(), resume=True, paid_at_once=block, steps=60)
        if count > 1:
            run.load_state_dict(state)
        run.catch_up()
        assert torch.equal(weights(run), replayed(tmp_path))
        written = [record.release for record in read(tmp_path / TRANSCRIPT)[1]]
        missing = set(told) - set(written)
        assert not [release for release in missing if release > told[-1] - count and release <= told[-1] - block]
        assert max(told) < 60 - run.releases_left
        if block == 1:
            assert torch.equal(weights(run), torch.cat([p.detach() for p in module.parameters()]))
        run.close()
    assert len(told) == len(set(told)) == 28
    assert (refusals > 2) == (left == "zeros" and block > 1)


def test_a_block_needs_two_calls_to_fsync(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = run_of(tmp_path, 3, paid_at_once=3, steps=60)
    with Disk(tmp_path, monkeypatch) as disk:
        for _ in range(12):
            run.step()
    assert disk.written == 8


def test_what_a_killed_process_wrote_is_on_disk_before_a_payment_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    private(tmp_path, paid_at_once=3).close()
    with Disk(tmp_path, monkeypatch) as disk:
        gone(run_of(tmp_path, 2, resume=True, paid_at_once=3))
        run = run_of(tmp_path, 1, resume=True, paid_at_once=3)
        disk.fail(lambda rest: b"")
        gone(run)
    assert private(tmp_path, resume=True, paid_at_once=3).step().release == 6
