"""Tests of a run's folder: how it is started, resumed and refused."""

import os
import shutil
import signal
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import TensorDataset, default_collate

from dpzero_theory.optim.files.folder import KEY, made_whole
from dpzero_theory.optim.files.transcript import RUN, TranscriptError, read
from dpzero_theory.optim.private import make_from_seed_not_private, make_private_with_epsilon
from dpzero_theory.optim.run import Run
from dpzero_theory.privacy.ledger import LedgerError
from tests.optim.small import BUDGET as TARGET
from tests.optim.small import FULL, STEP, Logistic, data, losses, plan, private, weights


def test_one_writer_at_a_time_and_no_second_start(tmp_path: Path) -> None:
    run = private(tmp_path)
    with pytest.raises(LedgerError, match="another process has this file open, or another run here: close it"):
        private(tmp_path, resume=True)
    run.close()
    with pytest.raises(FileExistsError):
        private(tmp_path)


def test_every_file_of_a_folder_made_whole_is_on_disk_before_the_folder_is_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """That holds for files of any writer: in a Trainer's checkpoint torch and transformers write some, which they do
    not sync."""
    synced: list[tuple[int, bool]] = []
    fsync, place = os.fsync, tmp_path / "new"

    def noted(file: Any) -> None:
        synced.append((os.fstat(file if isinstance(file, int) else file.fileno()).st_ino, place.exists()))
        fsync(file)

    monkeypatch.setattr(os, "fsync", noted)
    with made_whole(place) as folder:
        (folder / "in").mkdir()
        for name in ("a", "in/b"):
            (folder / name).write_text(name)
    assert {((place / name).stat().st_ino, False) for name in ("a", "in/b")} <= set(synced)
    assert synced[-1] == (tmp_path.stat().st_ino, True)


def run_of(folder: Path, count: int, **changes: Any) -> Run:
    run = private(folder, **changes)
    for _ in range(count):
        run.step()
    return run


def refused(folder: Path, error: type[Exception], message: str, resume: bool | str = True, **changes: Any) -> None:
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    with pytest.raises(error, match=message) as found:
        private(folder, resume=resume, **changes)
    assert "\n" not in str(found.value)
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before


def replayed(folder: Path) -> torch.Tensor:
    module = Logistic()
    read(folder).replayed(module)
    return module.weight.detach()


def test_a_run_that_is_killed_inside_or_between_steps_resumes_without_spending_twice(tmp_path: Path) -> None:
    """A real kill, at 12 moments. Numbers are published before they are recorded, as somebody who looks on would."""
    published, steps = tmp_path / "published", 2000
    private(tmp_path / "run", steps=steps).close()
    published.touch()
    for moment in range(12):
        size = published.stat().st_size
        if (child := os.fork()) == 0:
            try:
                run = private(tmp_path / "run", steps=steps, resume=True)
                write = run._write

                def told(release: int, sums: Any, write: Any = write) -> Any:
                    with published.open("ab", buffering=0) as file:
                        file.write(b"%d\n" % release)
                    return write(release, sums)

                run._write = told  # type: ignore[method-assign]
                run.run()
            finally:
                os._exit(1)
        deadline = time.monotonic() + 30
        while published.stat().st_size == size and time.monotonic() < deadline:
            time.sleep(0.001)
        time.sleep(0.001 * (moment % 5))
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        numbers = [int(line) for line in published.read_text().split()]
        assert len(set(numbers)) == len(numbers) >= moment + 1
        records = [record.release for record in read(tmp_path / "run")[1]]
        assert set(records) <= set(numbers)
        assert len(numbers) - len(records) <= moment + 1  # a kill loses the one step that was being made
    run = private(tmp_path / "run", steps=steps, resume=True)
    run.step()
    assert sum(release.steps for release in run.history) > max(numbers) + 1
    assert torch.equal(weights(run), replayed(tmp_path / "run"))


@pytest.mark.parametrize("place", ["spend", "total", "record", "move_"])
def test_an_interrupt_inside_a_step_costs_that_step_alone(
    tmp_path: Path, place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = run_of(tmp_path, 2)
    of = {"spend": run._file, "total": run.sums, "record": run._file, "move_": run.weights}[place]

    def interrupted(*arguments: Any, **named: Any) -> Any:
        raise KeyboardInterrupt

    with monkeypatch.context() as changed:
        changed.setattr(of, place, interrupted)
        with pytest.raises(KeyboardInterrupt):
            run.step()
    if place == "move_":  # the weights may be half-way: only a resumption, or a checkpoint, knows where they are
        with pytest.raises(TranscriptError, match="the weights are not this run's initial ones"):
            run.step()
        run.close()
        run = private(tmp_path, resume=True)
    assert run.step().release == (2 if place == "spend" else 3)
    assert torch.equal(weights(run), replayed(tmp_path))


def test_a_checkpoint_beyond_the_file_is_refused(tmp_path: Path) -> None:
    run_of(tmp_path / "run", 3).close()
    shutil.copytree(tmp_path / "run", tmp_path / "back")
    run = private(tmp_path / "run", resume=True)
    run.run()
    state = run.state_dict()
    run.close()
    again = private(tmp_path / "back", resume="moved")
    again.load_state_dict(state)
    with pytest.raises(TranscriptError, match="the checkpoint is after release 7, which the run's file lacks"):
        again.step()


@pytest.mark.parametrize("name", [RUN, KEY])
def test_a_deleted_file_is_missed(tmp_path: Path, name: str) -> None:
    run_of(tmp_path, 3).close()
    (tmp_path / name).unlink()
    refused(tmp_path, FileNotFoundError, f"{name} is missing: put it back")
    refused(tmp_path, FileExistsError, "not empty: resume the run in it, or use another folder", resume=False)


def test_a_key_of_another_run_or_of_another_length_is_refused(tmp_path: Path) -> None:
    run_of(tmp_path / "run", 2).close()
    (tmp_path / "run" / KEY).write_bytes(bytes(32))
    refused(tmp_path / "run", ValueError, "data must be the records .* these are others, or data.key is")
    (tmp_path / "run" / KEY).write_bytes(b"short")
    refused(tmp_path / "run", ValueError, "must hold 32 bytes; got 5: put it back")


def test_a_private_run_is_not_gone_on_with_from_a_seed_nor_the_reverse(tmp_path: Path) -> None:
    run_of(tmp_path / "private", 2).close()
    seeded: Any = {"seed": 1, "folder": tmp_path / "seeded"}
    with pytest.raises(ValueError, match=r"must be resumed as it was begun, with make_private"):
        make_from_seed_not_private(Logistic(), losses, data(), plan(), seed=1, folder=tmp_path / "private", resume=True)
    run = make_from_seed_not_private(Logistic(), losses, data(), plan(), **seeded)
    run.step()
    run.close()
    refused(tmp_path / "seeded", ValueError, "as it was begun, with make_from_seed_not_private")
    with pytest.raises(ValueError, match=r"^seed must be as in the run"):
        make_from_seed_not_private(Logistic(), losses, data(), plan(), **{**seeded, "seed": 2}, resume=True)
    again = make_from_seed_not_private(Logistic(), losses, data(), plan(), **seeded, resume=True)
    again.run()
    assert torch.equal(weights(again), replayed(tmp_path / "seeded"))


def test_other_records_losses_or_parameters_are_refused(tmp_path: Path) -> None:
    def resumed(module: Logistic, function: Any = losses, rows: Any = None) -> Run:
        rows = data() if rows is None else rows
        options = {**TARGET, **STEP, **FULL, "folder": tmp_path, "resume": True}
        return make_private_with_epsilon(module, function, rows, **options)

    def other_losses(module: Any, batch: Any) -> torch.Tensor:
        return 2 * losses(module, batch)

    run_of(tmp_path, 2).close()
    features, labels = data().tensors
    for rows in (TensorDataset(features + 1, labels), TensorDataset(features.flip(0), labels.flip(0))):
        with pytest.raises(ValueError, match=r"^data must be the records of the run that is resumed; these are others"):
            resumed(Logistic(), rows=rows)
    with pytest.raises(ValueError, match=r"^losses must be as in the run that is resumed, losses .*; got .*other"):
        resumed(Logistic(), other_losses)
    assert resumed(Logistic()).step().release == 2


def test_a_run_on_records_that_cannot_be_pickled_is_resumed_and_read(tmp_path: Path) -> None:
    """Such records, here with a function, have no digest, but their number and the key have one."""
    rows = [(*row, lambda: 0) for row in data()]  # type: ignore[misc]  # a TensorDataset has no __iter__
    options = {
        **TARGET,
        **STEP,
        **FULL,
        "folder": tmp_path,
        "collate": lambda some: default_collate([r[:2] for r in some]),
    }
    for first, resume in ((0, False), (1, True)):
        run = make_private_with_epsilon(Logistic(), losses, rows, resume=resume, **options)
        assert run.step().release == first
        run.close()
    assert len(read(tmp_path).records) == 2
    with pytest.raises(ValueError, match=r"^data must be the records of the run that is resumed"):
        private(tmp_path, resume=True)


def test_a_copy_goes_on_only_when_that_is_said(tmp_path: Path) -> None:
    first, copy, third = tmp_path / "a", tmp_path / "b", tmp_path / "c"
    run_of(first, 3).close()
    shutil.copytree(first, copy)
    shutil.copytree(first, third)
    refused(copy, LedgerError, "a copy, or brought from another disk: .* open it as moved")
    one = private(first, resume=True)
    other = private(copy, resume="moved")
    for _ in range(2):
        one.step()
    other.run()
    one.close()
    other.close()
    # A user has to say only once that a folder is a copy.
    assert private(copy, resume=True).releases_left == 0


def test_a_start_that_fails_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(file: int) -> None:
        raise OSError(28, "no space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="no space left"):
        private(tmp_path / "run")
    assert list(tmp_path.iterdir()) == []


def test_releases_are_paid_for_several_at_a_time(tmp_path: Path) -> None:
    run = run_of(tmp_path, 2, paid_at_once=3)
    assert run.releases_left == STEP["steps"] - 2
    assert sum(release.steps for release in run.history) == 3
    run.close()
    refused(tmp_path, ValueError, "paid_at_once must be 3, as the run was begun; got 1", paid_at_once=1)
    again = private(tmp_path, resume=True)
    assert [again.step().release for _ in range(5)] == [3, 4, 5, 6, 7]
    assert again.releases_left == 0
    assert torch.equal(weights(again), replayed(tmp_path))
    with pytest.raises(ValueError, match="paid_at_once must be an integer"):
        private(tmp_path / "none", paid_at_once=0)


@pytest.mark.parametrize("umask", [0o000, 0o022, 0o077])
def test_the_key_is_its_owners_alone_and_refused_where_others_may_read_it(tmp_path: Path, umask: int) -> None:
    before = os.umask(umask)
    try:
        private(tmp_path / "run").close()
    finally:
        os.umask(before)
    key = tmp_path / "run" / KEY
    assert key.stat().st_mode & 0o777 == 0o600
    key.chmod(0o640)
    refused(tmp_path / "run", ValueError, r"must be secret, .* \(mode 0640\): chmod go= ")
