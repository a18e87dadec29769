"""Tests of what somebody might do to a run's folder on purpose.

Each attack is refused in one line that says what to do, or its releases are counted.
"""

import hashlib
import json
import os
import shutil
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dpzero_theory.optim.files.folder import KEY, LEDGER, TRANSCRIPT, Folder
from dpzero_theory.optim.files.transcript import Transcript, TranscriptError, contents, read
from dpzero_theory.optim.private import make_private
from dpzero_theory.optim.run import Run
from dpzero_theory.optim.verify import verify
from dpzero_theory.privacy.journal import Journal
from dpzero_theory.privacy.ledger import Ledger, LedgerError
from dpzero_theory.privacy.ledger import read as account_of
from tests.optim.small import Logistic, data, losses, plan, private

MADE = 4
REFUSALS = (LedgerError, TranscriptError, ValueError, OSError)
ADVICE = "put|resume|open it|use a|start|make|must be|mend|cut it"


@pytest.fixture(scope="module")
def begun(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run that has made four of its eight releases and is closed."""
    folder = tmp_path_factory.mktemp("begun") / "run"
    run = private(folder)
    for _ in range(MADE):
        run.step()
    run.close()
    return folder


@pytest.fixture
def folder(begun: Path, tmp_path: Path) -> Path:
    """A copy of that folder, for one test; the run is told that it was moved.

    A copy by hard links would be the folder itself.
    """
    shutil.copytree(begun, tmp_path / "run")
    private(tmp_path / "run", resume="moved").close()
    return tmp_path / "run"


def signed(lines: list[dict[str, Any]]) -> bytes:
    """Returns the bytes of a ledger with these lines, with all checks computed anew."""
    check, found = "0" * 64, b""
    for line in lines:
        body = json.dumps({name: value for name, value in line.items() if name != "check"})
        check = hashlib.sha256((check + body).encode()).hexdigest()
        found += f'{body[:-1]}, "check": "{check}"}}\n'.encode()
    return found


def of_line(number: int, **changes: Any) -> Callable[[bytes], bytes]:
    """Returns a function that changes values in line `number` of a ledger, with all checks computed anew.

    `changes` are the new values by name; the value ... leaves the name out.
    """

    def edit(text: bytes) -> bytes:
        lines = [json.loads(line) for line in text.splitlines()]
        lines[number] = {name: value for name, value in {**lines[number], **changes}.items() if value is not ...}
        return signed(lines)

    return edit


def swapped(text: bytes) -> bytes:
    lines = text.splitlines(keepends=True)
    return b"".join([*lines[:2], lines[3], lines[2], *lines[4:]])


LEDGERS: dict[str, Callable[[bytes], bytes]] = {
    "empty": lambda text: b"",
    "empty line inside": lambda text: text.replace(b"\n", b"\n\n", 1),
    "carriage returns": lambda text: text.replace(b"\n", b"\r\n"),
    "line twice": lambda text: text + text.splitlines(keepends=True)[-1],
    "line twice inside": lambda text: b"".join(sorted([*text.splitlines(keepends=True)] * 2, key=text.find)),
    "lines swapped": swapped,
    "spaces": lambda text: text.replace(b", ", b",  ", 1),
    "homoglyph": lambda text: text.replace(b"budget", "b\u0443dget".encode()),
    "not utf-8": lambda text: text.replace(b"budget", b"b\xffdget"),
    "byte order mark": lambda text: b"\xef\xbb\xbf" + text,
    "zeros": lambda text: bytes(len(text)),
    "NaN in a line": lambda text: text.replace(b'"release": 1', b'"release": NaN'),
    "1e400 in a line": lambda text: text.replace(b'"release": 1', b'"release": 1e400'),
    "huge number": lambda text: text.replace(b'"release": 1', b'"release": ' + b"9" * 5000),
    "deep": lambda text: text.replace(b"{", b"[" * 100_000 + b"{", 1),
    "last line is NaN": lambda text: text + b'{"kind": "spend", "release": NaN, "check": "0"}\n',
    # Since every check is computed anew, all that remains is what a ledger's lines can say.
    "budget of nothing": of_line(0, target_epsilon=-1),
    "no kind": of_line(2, kind=...),
    "unknown kind": of_line(2, kind="gift"),
    "no settings": of_line(1, settings=...),
    "other settings": of_line(1, settings={"n": 1}),
    "no steps": of_line(1, steps="many"),
    "other plan": of_line(1, steps=9),
    "a release again": of_line(3, release=0),
    "a release left out": of_line(3, release=7),
    "minus one release": of_line(3, count=-1),
    "half a release": of_line(3, count=0.5),
    "too many at once": of_line(3, count=2),
    "other run": of_line(0, run="0" * 64),
    "other state": of_line(5, state="3:none"),
    "state without number": of_line(5, state="x"),
}


def header(**changes: Any) -> Callable[[bytes], bytes]:
    """Returns a function that changes values in a transcript's header.

    A name plan__NAME stands for a value of its plan.
    """

    def edit(text: bytes) -> bytes:
        line, _, rest = text.partition(b"\n")
        values = json.loads(line)
        for name, value in changes.items():
            where, key = (values["plan"], name[6:]) if name.startswith("plan__") else (values, name)
            where[key] = value
        return json.dumps(values).encode() + b"\n" + rest

    return edit


def record(number: int, place: int, value: bytes) -> Callable[[bytes], bytes]:
    """Returns a function that writes other bytes into a record of a transcript, with all checks computed anew.

    `number` is that of the record, `place` the position of the bytes in it, and `value` the new bytes.
    """

    def edit(text: bytes) -> bytes:
        line, _, rest = text.partition(b"\n")
        check, found = hashlib.sha256(line + b"\n").digest(), line + b"\n"
        for index in range(0, len(rest), 20):
            body = bytearray(rest[index : index + 12])
            if index == 20 * number:
                body[place : place + len(value)] = value
            check = hashlib.sha256(check + body).digest()[:8]
            found += bytes(body) + check
        return found

    return edit


TRANSCRIPTS: dict[str, Callable[[bytes], bytes]] = {
    "empty": lambda text: b"",
    "no line": lambda text: b"\n",
    "zeros": lambda text: bytes(len(text)),
    "not utf-8": lambda text: text.replace(b"dpzero", b"dp\xffero", 1),
    "carriage return": lambda text: text.replace(b"\n", b"\r\n", 1),
    "deep": lambda text: b"[" * 100_000 + text,
    "garbage": lambda text: text + os.urandom(1000),
    "a record of zeros": lambda text: text + bytes(20),
    "records swapped": lambda text: text[:-40] + text[-20:] + text[-40:-20],
    "a record twice": lambda text: text + text[-20:],
    "homoglyph": header(precision="ne\u0430rest"),
    "no key": header(key=None),
    "short key": header(key="00"),
    "other key": header(key="0" * 32),
    "unknown field": header(colour="blue\nred"),
    "other format": header(format="dpzero-transcript-9"),
    "not private": header(private=False),
    "private as text": header(private="yes"),
    "list for a word": header(losses=[1]),
    "less noise": header(plan__scale=1),
    "other algorithm": header(plan__algorithm="mezo"),
    "algorithm of a list": header(plan__algorithm=[1]),
    "NaN": header(plan__smoothing=float("nan")),
    "infinity": header(plan__clip=float("inf")),
    "no step sizes": header(plan__step_sizes=None),
    "huge plan": header(plan__steps=10**30),
    "other records": header(records="0" * 64),
    "another release": record(2, 0, b"\x07"),
    "a number that was not released": record(1, 4, b"\x00\x00"),
}


def require_refused(folder: Path, resume: bool | str = True) -> str:
    before = {path: path.read_bytes() for path in folder.iterdir() if path.is_file()}
    with pytest.raises(REFUSALS) as found:
        private(folder, resume=resume)
    said = str(found.value)
    assert "\n" not in said
    assert any(word in said for word in ADVICE.split("|")), said
    assert before == {path: path.read_bytes() for path in folder.iterdir() if path.is_file()}
    report = verify(folder, None, None)
    assert report.fault
    assert "\n" not in report.fault
    return said


@pytest.mark.parametrize("name", LEDGERS)
def test_another_ledger_is_refused(folder: Path, name: str) -> None:
    path = folder / LEDGER
    changed = LEDGERS[name](path.read_bytes())
    assert changed != path.read_bytes()
    path.write_bytes(changed)
    require_refused(folder)


@pytest.mark.parametrize("name", TRANSCRIPTS)
def test_another_transcript_is_refused(folder: Path, name: str) -> None:
    path = folder / TRANSCRIPT
    changed = TRANSCRIPTS[name](path.read_bytes())
    assert changed != path.read_bytes()
    path.write_bytes(changed)
    require_refused(folder)


@pytest.mark.parametrize("tail", [b"\n", b"garbage", b"garbage\n", b"\x00" * 500, b'{"kind": "spend"'])
def test_what_is_appended_to_the_ledger_is_counted_as_a_release(folder: Path, tail: bytes) -> None:
    with (folder / LEDGER).open("ab") as file:
        file.write(tail)
    assert account_of(folder / LEDGER).spent == MADE + 1
    again = private(folder, resume=True)
    assert again.step().release == MADE + 1
    again.run()
    assert [made.release for made in read(folder / TRANSCRIPT)[1]] == [0, 1, 2, 3, 5, 6, 7]


def test_a_torn_record_is_written_over(folder: Path) -> None:
    with (folder / TRANSCRIPT).open("ab") as file:
        file.write(b"torn in a crash")
    again = private(folder, resume=True)
    assert again.step().release == MADE
    assert len(contents(folder / TRANSCRIPT).records) == MADE + 1


@pytest.mark.parametrize("name", [TRANSCRIPT, LEDGER, KEY])
@pytest.mark.parametrize("kind", ["folder", "pipe", "device", "dangling", "unreadable"])
def test_what_is_no_plain_file_is_refused_and_not_waited_for(folder: Path, name: str, kind: str) -> None:
    path = folder / name
    path.rename(folder.parent / "kept")
    if kind == "folder":
        path.mkdir()
    elif kind == "pipe":
        os.mkfifo(path)
    elif kind == "device":
        path.symlink_to("/dev/zero")
    elif kind == "dangling":
        path.symlink_to(folder / "nowhere")
    else:
        path.symlink_to(path)
    if name == KEY:  # An auditor does not have the file of the key
        with pytest.raises(OSError, match=f"{KEY}") as found:
            private(folder, resume=True)
        assert "\n" not in str(found.value)
        assert verify(folder, None, None).fault == ""
    else:
        require_refused(folder)
    if path.is_dir():
        path.rmdir()
    else:
        path.unlink()
    (folder.parent / "kept").rename(path)
    assert private(folder, resume=True).step().release == MADE


@pytest.mark.parametrize("size", [0, 31, 33])
def test_a_key_of_another_length_is_refused(folder: Path, size: int) -> None:
    key = (folder / KEY).read_bytes()
    (folder / KEY).write_bytes((key + key)[:size])
    with pytest.raises(ValueError, match=rf"data.key must hold 32 bytes; got {size}: put it back"):
        private(folder, resume=True)


def test_the_key_of_another_run_is_refused(folder: Path) -> None:
    (folder / KEY).write_bytes(bytes(32))
    with pytest.raises(ValueError, match=r"these are others, or data\.key is"):
        private(folder, resume=True)


def test_a_link_to_the_folder_is_the_folder(folder: Path) -> None:
    link = folder.parent / "link"
    link.symlink_to(folder)
    run = private(link, resume=True)
    with pytest.raises(TranscriptError, match="another process has this file open, or another run here: close it"):
        private(folder, resume=True)
    link.unlink()
    assert run.step().release == MADE
    run.close()
    (folder.parent / "empty").mkdir()
    link.symlink_to(folder.parent / "empty")
    private(link).close()
    assert link.is_symlink()
    assert sorted(path.name for path in (folder.parent / "empty").iterdir()) == [KEY, LEDGER, TRANSCRIPT]


def test_hard_links_are_the_run_itself(folder: Path) -> None:
    other = folder.parent / "other"
    other.mkdir()
    for path in folder.iterdir():
        os.link(path, other / path.name)
    run = private(folder, resume=True)
    with pytest.raises(TranscriptError, match="another process has this file open"):
        private(other, resume=True)
    run.step()
    run.close()
    assert private(other, resume=True).step().release == MADE + 1
    assert account_of(folder / LEDGER).spent == MADE + 2


def test_where_no_folder_can_be_put_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for place in (".", tmp_path):
        with pytest.raises(ValueError, match=r"^folder must not be the working directory or a mount point; got"):
            private(place)  # type: ignore[arg-type]
    (tmp_path / "file").touch()
    for place in (tmp_path / "file" / "run", tmp_path / ("n" * 300), tmp_path / "a\0b"):
        with pytest.raises((OSError, ValueError)) as found:
            private(place)
        assert "\n" not in str(found.value)
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_the_child_of_a_fork_cannot_go_on_and_does_not_end_the_run(folder: Path) -> None:
    run = private(folder, resume=True, paid_at_once=1)
    child = os.fork()
    if child == 0:
        status = 9
        try:
            run.step()
        except (TranscriptError, LedgerError) as error:
            status = 0 if "before a fork" in str(error) else 8
        run.close()
        os._exit(status)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    with pytest.raises(TranscriptError, match="another process has this file open"):
        private(folder, resume=True)
    assert run.step().release == MADE


def test_a_run_that_nobody_holds_any_more_is_closed(folder: Path) -> None:
    """A run that no variable refers to any more is closed, as one is that a failed cell of a notebook has made."""
    private(folder, resume=True).step()
    assert private(folder, resume=True).step().release == MADE + 1


@pytest.mark.parametrize(
    "place", [(Journal, "keep"), (Journal, "_lock"), (Transcript, "__init__"), (Ledger, "__init__"), (Ledger, "_load"),
              (Folder, "__init__"), (Run, "__init__")]
)  # fmt: skip
def test_an_interrupt_while_the_folder_is_opened_leaves_no_lock(
    folder: Path, monkeypatch: pytest.MonkeyPatch, place: tuple[type, str]
) -> None:
    """An interrupt while a run's folder is opened leaves no lock on it.

    It comes before or after a call, and the exception is kept, as a notebook keeps the last one.
    """
    work = getattr(*place)

    def before(*arguments: Any, **named: Any) -> None:
        raise KeyboardInterrupt

    def after(*arguments: Any, **named: Any) -> None:
        work(*arguments, **named)
        raise KeyboardInterrupt

    for interrupted in (before, after):
        with monkeypatch.context() as patch:
            patch.setattr(*place, interrupted)
            with pytest.raises(KeyboardInterrupt) as kept:
                private(folder, resume=True)
        private(folder, resume=True).close()
        del kept


def test_the_budget_of_the_run_is_kept(tmp_path: Path) -> None:
    folder, chosen = tmp_path / "run", plan()
    make_private(Logistic(), losses, data(), chosen, target_delta=1e-5, folder=folder).close()
    for changes, message in (
        ({"target_delta": 1e-6}, "target_delta must be 1e-05, as the run was begun; got 1e-06"),
        ({"target_epsilon": 9.0}, "target_epsilon must be 3, as the run was begun; got 9"),
    ):
        with pytest.raises(ValueError, match=message):
            make_private(
                Logistic(), losses, data(), chosen, **{"target_delta": 1e-5, **changes}, folder=folder, resume=True
            )
    make_private(Logistic(), losses, data(), chosen, target_delta=1e-5, folder=folder, resume=True).close()


def test_data_that_read_differently_now_and_then_can_be_resumed(tmp_path: Path) -> None:
    """A run can be resumed on data that give other records from time to time.

    The first record is the same each time it is read.
    """

    class Flipped:
        def __len__(self) -> int:
            return len(data())

        def __getitem__(self, index: int) -> Any:
            features, label = data()[index]
            return (features if index < 3 else features * (1 + int.from_bytes(os.urandom(2), "big") / 1e9)), label

    def made(resume: bool) -> Run:
        return make_private(
            Logistic(), losses, Flipped(), plan(), target_delta=1e-5, folder=tmp_path / "run", resume=resume
        )

    made(resume=False).close()
    made(resume=True).step()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT, signal.SIGKILL])
def test_signals_end_a_run_that_can_be_resumed(tmp_path: Path, number: signal.Signals) -> None:
    """A signal that ends a run leaves one that can be resumed.

    That holds also if the run is stopped and continued before, as by a terminal.
    """
    folder = tmp_path / "run"
    private(folder, steps=10**5).close()
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        if number != signal.SIGKILL:  # Whoever started the tests may have set the signal to be ignored
            signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)
        try:
            run = private(folder, resume=True, steps=10**5)
            run.step()
            os.write(writing, b"begun")
            run.run()
        finally:
            os._exit(1)
    assert os.read(reading, 5) == b"begun"
    os.kill(child, signal.SIGSTOP)
    with pytest.raises(TranscriptError, match="another process has this file open"):
        private(folder, resume=True, steps=10**5)
    os.kill(child, signal.SIGCONT)
    time.sleep(0.02)
    os.kill(child, number)
    os.waitpid(child, 0)
    os.close(reading)
    os.close(writing)
    again = private(folder, resume=True, steps=10**5)
    paid = account_of(folder / LEDGER).spent
    assert paid > 0
    assert again.step().release == paid
