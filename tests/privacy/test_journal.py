"""Tests of the append-only file under ledgers and transcripts.

It has one writer, what it says is on disk before it counts, and half-written ends are cut off.
"""

import errno
import gc
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from benchmarks.kit.interrupts import instructions, interrupt
from dpzero_theory.privacy.journal import Journal


class Refused(RuntimeError):
    """The error type that the journal's user chooses for refusals."""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "journal"


@pytest.fixture
def journal(path: Path) -> Journal:
    found = Journal.create(path, Refused)
    found.append(b"one\n")
    return found


def test_what_is_appended_is_there_and_found_again(path: Path, journal: Journal) -> None:
    journal.append(b"two\n")
    assert path.read_bytes() == b"one\ntwo\n"
    journal.close()
    again = Journal.open(path, Refused)
    assert again.content == b"one\ntwo\n"
    again.append(b"three\n")
    assert path.read_bytes() == b"one\ntwo\nthree\n"
    assert again.content == b"one\ntwo\n"


def test_a_file_is_created_once_and_opened_only_if_there(path: Path, journal: Journal) -> None:
    journal.close()
    with pytest.raises(FileExistsError):
        Journal.create(path, Refused)
    assert path.read_bytes() == b"one\n"
    with pytest.raises(FileNotFoundError):
        Journal.open(path.with_name("none"), Refused)


def test_a_second_writer_is_refused_before_it_reads_or_changes_anything(path: Path, journal: Journal) -> None:
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(3):
        with pytest.raises(
            Refused, match=r"^\S+journal: another process has this file open, or another run here: close it$"
        ):
            Journal.open(path, Refused)
    assert len(os.listdir("/proc/self/fd")) == before
    journal.append(b"two\n")
    assert path.read_bytes() == b"one\ntwo\n"
    journal.close()
    Journal.open(path, Refused).close()


def test_a_write_is_on_disk_before_it_counts(path: Path, journal: Journal, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[bytes] = []
    fsync = os.fsync
    monkeypatch.setattr(os, "fsync", lambda file: (fsync(file), synced.append(path.read_bytes())))
    journal.append(b"two\n")
    assert synced == [b"one\ntwo\n"]


def test_the_directory_entry_is_on_disk_too(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[int] = []
    monkeypatch.setattr(os, "fsync", lambda file: synced.append(os.fstat(file).st_ino))
    Journal.create(path, Refused).close()
    assert path.parent.stat().st_ino in synced


def test_the_child_of_a_fork_does_not_write(path: Path, journal: Journal) -> None:
    child = os.fork()
    if child == 0:
        try:
            journal.append(b"child\n")
        except Refused as error:
            os._exit(17 if "opened by another process, before a fork" in str(error) else 1)
        finally:
            os._exit(2)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 17
    journal.append(b"two\n")
    assert path.read_bytes() == b"one\ntwo\n"


def full(*_: object) -> int:
    raise OSError(errno.ENOSPC, "no space left on device")


FAULTS: dict[str, tuple[str, Callable[..., object]]] = {
    "short": ("pwrite", lambda file, data, at, pwrite=os.pwrite: pwrite(file, data[:2], at)),
    "nothing": ("pwrite", lambda file, data, at: 0),
    "full": ("pwrite", full),
    "not synced": ("fsync", full),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_after_a_failed_write_nothing_is_written_until_it_is_opened_again(
    path: Path, journal: Journal, monkeypatch: pytest.MonkeyPatch, fault: str
) -> None:
    monkeypatch.setattr(os, *FAULTS[fault])
    with pytest.raises((Refused, OSError), match=r"written in part|no space left"):
        journal.append(b"two\n")
    monkeypatch.undo()
    left = path.read_bytes()
    for _ in range(2):
        with pytest.raises(Refused, match="closed, or a write failed: open it again"):
            journal.append(b"three\n")
    assert path.read_bytes() == left
    journal.close()
    again = Journal.open(path, Refused)
    assert again.content == left
    assert left.startswith(b"one\n")
    again.keep(4)
    again.append(b"three\n")
    assert path.read_bytes() == b"one\nthree\n"


@pytest.mark.parametrize("torn", [b"x", b"a long torn tail, longer than what is written next\n"])
def test_the_next_write_goes_over_a_torn_tail_and_cuts_off_the_rest(path: Path, journal: Journal, torn: bytes) -> None:
    journal.close()
    path.write_bytes(b"one\n" + torn)
    again = Journal.open(path, Refused)
    assert again.content == b"one\n" + torn
    again.keep(4)
    # Opening the file changes nothing; the half-written end is replaced when the next line is written.
    assert path.read_bytes() == b"one\n" + torn
    again.append(b"two\n")
    assert path.read_bytes() == b"one\ntwo\n"
    again.append(b"three\n")
    assert path.read_bytes() == b"one\ntwo\nthree\n"


@pytest.mark.parametrize("how", ["deleted", "moved", "replaced", "longer", "shorter"])
def test_a_file_that_something_else_changed_is_left_alone(path: Path, journal: Journal, how: str) -> None:
    if how == "deleted":
        path.unlink()
    elif how == "moved":
        path.rename(path.with_name("elsewhere"))
    elif how == "replaced":
        path.with_name("new").write_bytes(b"one\n")
        path.with_name("new").replace(path)
    else:
        path.write_bytes(b"one\nmore" if how == "longer" else b"on")
    before = path.read_bytes() if path.exists() else None
    with pytest.raises(Refused, match="the file was moved or changed by something else"):
        journal.append(b"two\n")
    assert (path.read_bytes() if path.exists() else None) == before


def test_a_closed_journal_says_so_and_closing_again_is_safe(path: Path, journal: Journal) -> None:
    journal.close()
    journal.close()
    for write in (lambda: journal.append(b"two\n"), journal.require_writable):
        with pytest.raises(Refused, match="closed"):
            write()
    assert path.read_bytes() == b"one\n"


def test_what_need_not_be_on_disk_yet_is_there_when_it_is_asked_for_and_at_the_end(
    path: Path, journal: Journal, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[bytes] = []
    fsync = os.fsync
    monkeypatch.setattr(os, "fsync", lambda file: (fsync(file), synced.append(path.read_bytes())))
    journal.append(b"two\n", sync=False)
    journal.append(b"three\n", sync=False)
    assert path.read_bytes() == b"one\ntwo\nthree\n"
    assert synced == []
    journal.sync()
    journal.sync()
    assert synced == [b"one\ntwo\nthree\n"]
    journal.append(b"four\n", sync=False)
    journal.close()
    journal.close()
    assert synced[1:] == [b"one\ntwo\nthree\nfour\n"]
    Journal.open(path, Refused).sync()  # The process that wrote the lines may have been killed before they were on disk
    assert len(synced) == 3


def test_what_cannot_be_brought_to_disk_is_not_gone_on_with(journal: Journal, monkeypatch: pytest.MonkeyPatch) -> None:
    journal.append(b"two\n", sync=False)
    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="no space left on device: make room, then resume"):
        journal.sync()
    for write in (journal.sync, lambda: journal.append(b"three\n", sync=False)):
        with pytest.raises(Refused, match="a write failed: open it again"):
            write()


def test_a_child_that_outlives_its_parent_does_not_keep_the_lock(path: Path) -> None:
    """A child process that outlives its parent does not keep the lock.

    A worker that loads data for a run that was killed is such a child.
    """
    told, tell = os.pipe()
    parent = os.fork()
    if parent == 0:
        held = Journal.create(path, Refused)
        child = os.fork()
        if child == 0:
            time.sleep(60)
            os._exit(0)
        os.write(tell, str(child).encode())
        time.sleep(60)
        del held
        os._exit(0)
    child = int(os.read(told, 100))
    with pytest.raises(Refused, match="another process has this file open"):
        Journal.open(path, Refused)
    os.kill(parent, signal.SIGKILL)
    os.waitpid(parent, 0)
    try:
        Journal.open(path, Refused).close()
    finally:
        os.kill(child, signal.SIGKILL)


# The warning is about a file that the interpreter closes, after an interrupt.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_an_interrupt_at_any_instruction_of_opening_and_closing_leaves_no_lock(path: Path, journal: Journal) -> None:
    def work() -> None:
        held = Journal.open(path, Refused)
        held.append(b"two\n", sync=False)
        held.close()

    journal.close()
    found = [chosen for chosen in instructions(work) if chosen[0].endswith("journal.py") and chosen[1] != "__del__"]
    gc.collect()
    descriptors = len(os.listdir("/proc/self/fd"))
    assert len(found) > 200
    for chosen in found:
        assert interrupt(work, chosen)
        Journal.open(path, Refused).close()
    assert len(os.listdir("/proc/self/fd")) == descriptors


def test_a_journal_that_was_closed_is_on_disk(tmp_path: Path) -> None:
    journal = Journal.create(tmp_path / "file", ValueError)
    journal.append(b"some", sync=False)
    journal.close()
    journal.sync()
    with pytest.raises(ValueError, match="closed"):
        journal.append(b"more")
