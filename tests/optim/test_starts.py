"""Tests that a start of a run which is killed leaves nothing that an upload to the hub could carry.

The next start removes what it has left.
"""

import fcntl
import os
import signal
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from benchmarks.kit.interrupts import instructions, traced
from dpzero_theory.optim.files.folder import KEY, LEDGER, TRANSCRIPT, Budget, Folder
from dpzero_theory.optim.files.new_folder import clear_dead_starts, made_whole
from dpzero_theory.optim.files.transcript import Header
from tests.optim.small import data, plan, private

HEADER = Header(plan(), "07" * 16, "00" * 32, "nearest")
BUDGET = Budget(3.0, 1e-5, 1)
OF_HUB = "_*"
"""A pattern of the names that `Trainer.push_to_hub` leaves out, of all that a start writes into an output folder."""


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "fsync", lambda file: None)


def start(place: Path) -> None:
    Folder.create(place, HEADER, data(), BUDGET).close()


def killed(work: Callable[[], object], instruction: Any) -> None:
    """Does `work` in a child process that is killed before the given instruction."""

    def event(found: Any) -> None:
        if found == instruction:
            os.kill(os.getpid(), signal.SIGKILL)

    child = os.fork()
    if child == 0:
        try:
            with traced(event):
                work()
        finally:
            os._exit(0)
    os.waitpid(child, 0)


def test_a_start_killed_at_any_instruction_leaves_nothing_that_a_push_carries(tmp_path: Path) -> None:
    """A start killed at any instruction leaves nothing that a push to the hub carries.

    A sample of a start's instructions is tested; afterwards a start, or a resumption, cleans up.
    """
    pytest.importorskip("huggingface_hub", reason="the hf extra is not installed")
    from huggingface_hub.utils import filter_repo_objects

    found = [place for place in instructions(lambda: start(tmp_path / "probe")) if place[0].endswith("folder.py")]
    ours = [place for place in found if place[1] in ("create", "made_whole", "_place_for", "write_secret")]
    assert len(ours) > 200
    with_key = begun = 0
    for number, instruction in enumerate(ours[:: len(ours) // 40]):
        output = tmp_path / str(number)
        output.mkdir()
        place = output / "_dpzero"
        killed(lambda place=place: start(place), instruction)  # type: ignore[misc]
        left = [str(file.relative_to(output)) for file in output.rglob("*")]
        carried = list(filter_repo_objects(left, ignore_patterns=[OF_HUB]))
        assert carried == []
        with_key += any(name.endswith(KEY) for name in left) and not place.exists()
        begun += place.exists()
        if place.exists():
            Folder.open(place, HEADER, data(), BUDGET).close()
        else:
            start(place)
        assert [file.name for file in output.iterdir()] == ["_dpzero"]
        assert sorted(file.name for file in place.iterdir()) == [KEY, LEDGER, TRANSCRIPT]
    assert with_key > 5
    assert begun > 1


def test_a_resumption_removes_them_too_and_says_that_there_is_no_run(tmp_path: Path) -> None:
    left = tmp_path / f"_run.{'0a' * 8}.new"
    (left / "new").mkdir(parents=True)
    (left / "alive").touch()
    (left / "new" / KEY).write_bytes(bytes(32))
    with pytest.raises(FileNotFoundError, match="holds no run: start one"):
        private(tmp_path / "run", resume=True)
    assert list(tmp_path.iterdir()) == []


def test_a_start_that_goes_on_and_what_is_not_ours_stay(tmp_path: Path) -> None:
    others = ["_run.new", "_run.0011.new", "_other.0011223344556677.new", "run.0011223344556677.new"]
    for name in others:
        (tmp_path / name).mkdir()
    with made_whole(tmp_path / "run") as new:
        assert new.parent.name.startswith("_run.")
        assert stat.S_IMODE(new.parent.stat().st_mode) == 0o700
        clear_dead_starts(tmp_path / "run")
        assert new.is_dir()
        with made_whole(tmp_path / "run") as quicker:
            (quicker / "a").touch()
        (new / "b").touch()
        with pytest.raises(FileExistsError, match="is there and not empty"), made_whole(tmp_path / "run"):
            pass
        (tmp_path / "run" / "a").unlink()
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted([*others, "run"])
    assert [path.name for path in (tmp_path / "run").iterdir()] == ["b"]


def test_of_two_starts_at_once_the_second_is_told_that_the_folder_is_there(tmp_path: Path) -> None:
    def both() -> None:
        with made_whole(tmp_path / "run") as new:
            (new / "b").touch()
            with made_whole(tmp_path / "run") as quicker:
                (quicker / "a").touch()

    with pytest.raises(FileExistsError, match="is there and not empty: resume the run in it"):
        both()
    assert [path.name for path in tmp_path.iterdir()] == ["run"]


def test_a_start_taken_for_a_dead_one_before_it_has_its_lock_begins_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lock, calls = fcntl.flock, []

    def late(file: Any, how: int) -> None:
        calls.append(how)
        if len(calls) == 1:
            clear_dead_starts(tmp_path / "run")
        lock(file, how)

    monkeypatch.setattr(fcntl, "flock", late)
    with made_whole(tmp_path / "run") as new:
        (new / "a").touch()
    assert [path.name for path in tmp_path.iterdir()] == ["run"]
    assert len(calls) > 2


@pytest.mark.parametrize("umask", [0o000, 0o022, 0o077])
def test_what_is_secret_is_its_owners_alone_whatever_the_umask(tmp_path: Path, umask: int) -> None:
    before = os.umask(umask)
    try:
        private(tmp_path / "run").close()
    finally:
        os.umask(before)
    assert mode(tmp_path / "run" / KEY) == 0o600


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


@pytest.mark.parametrize("open_to", [0o644, 0o640, 0o604, 0o660, 0o602])
def test_a_secret_that_others_may_read_or_change_is_refused_with_what_to_do(tmp_path: Path, open_to: int) -> None:
    private(tmp_path / "run").close()
    key = tmp_path / "run" / KEY
    for file, resume in ((key, lambda: private(tmp_path / "run", resume=True)),):
        before = mode(file)
        file.chmod(open_to | before)
        with pytest.raises(
            ValueError, match=rf"^{file} must be secret, .* \(mode 0[67]\d\d\): chmod go= {file}"
        ) as said:
            resume()
        assert "\n" not in str(said.value)
        assert mode(file) == open_to | before
        file.chmod(before)
        resume()


def test_a_disk_that_keeps_no_modes_starts_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "fchmod", lambda file, mode: os.chmod(file, 0o666))
    with pytest.raises(ValueError, match=r"data\.key must be secret"):
        private(tmp_path / "run")
    assert list(tmp_path.iterdir()) == []
