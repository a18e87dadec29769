"""Programs as `python` would start them, in forks of a process that has made the tests' imports and nothing else.

An import of torch takes two seconds, a fork some milliseconds. What forks is itself a fork of the test process, made
after its imports and before its tests: without threads, and with nothing that a test could have changed. A program that
needs an interpreter of its own, for its flags or for what it imports, is run by `subprocess`.
"""

import json
import os
import runpy
import signal
import socket
import sys
import traceback
import warnings
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from subprocess import CompletedProcess
from tempfile import mkstemp
from typing import Any

ROOT = Path(__file__).resolve().parents[1]

_servers: list[tuple[int, socket.socket]] = []
"""Its number and the way to ask it: one, between `prepare` and `finish`."""


def prepare() -> None:
    """Make the process that forks."""
    ours, theirs = socket.socketpair()
    with warnings.catch_warnings(action="ignore", category=DeprecationWarning):  # a thread of xdist, which waits
        server = os.fork()
    if server == 0:
        ours.close()
        _serve(theirs)
    theirs.close()
    _servers.append((server, ours))


def finish() -> None:
    """End it; what its forks have used is then known to this process."""
    while _servers:
        server, ours = _servers.pop()
        ours.close()
        os.waitpid(server, 0)


def _serve(requests: socket.socket) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    while True:
        message, files, _, _ = socket.recv_fds(requests, 1 << 20, 3)
        with suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG if message else 0)[0]:
                pass
        if not message:
            os._exit(0)
        if os.fork() == 0:
            requests.close()
            _be(json.loads(message), *files)
        for file in files:
            os.close(file)


def _be(asked: dict[str, Any], out: int, err: int, ended: int) -> None:
    """The process that was asked for: it does not return."""
    status = 1
    try:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        for number, file in enumerate((os.open(os.devnull, os.O_RDONLY), out, err)):
            os.dup2(file, number)
        sys.stdin, sys.stdout, sys.stderr = (os.fdopen(k, "rww"[k], closefd=False) for k in range(3))
        os.chdir(asked["folder"])
        os.environ.clear()
        os.environ.update(asked["environment"])
        warnings.resetwarnings()
        kind, what, *arguments = asked["words"]
        sys.argv, sys.path[0] = [what, *arguments], ""
        status = _status(kind, what)
        sys.stdout.flush()
        sys.stderr.flush()
    finally:
        os.write(ended, b"%d" % status)
        os._exit(status)


def _status(kind: str, what: str) -> int:
    try:
        if kind == "-m":
            runpy.run_module(what, run_name="__main__", alter_sys=True)
        else:
            exec(compile(what, "<string>", "exec"), {"__name__": "__main__"})
    except SystemExit as stop:
        if isinstance(stop.code, str):
            print(stop.code, file=sys.stderr)
        return stop.code if isinstance(stop.code, int) else int(stop.code is not None)
    except BaseException:
        traceback.print_exc()
        return 1
    return 0


class Started:
    """A program that runs."""

    def __init__(self, words: tuple[str, ...], folder: Path, environment: Mapping[str, str]) -> None:
        self.words = words
        (out, self._out), (err, self._err) = mkstemp(), mkstemp()
        self._ended, ended = os.pipe()
        message = json.dumps({"words": words, "folder": str(folder), "environment": dict(environment)}).encode()
        socket.send_fds(_servers[0][1], [message], [out, err, ended])
        for file in (out, err, ended):
            os.close(file)

    def wait(self) -> CompletedProcess[str]:
        """What it printed and its status; of one that was killed -9."""
        with open(self._ended, "rb") as ended:
            status = int(ended.read() or b"-9")
        told = [Path(path).read_text() for path in (self._out, self._err)]
        for path in (self._out, self._err):
            Path(path).unlink()
        return CompletedProcess(self.words, status, *told)


def start(*words: str | Path, folder: Path = ROOT, environment: Mapping[str, str] | None = None) -> Started:
    """`python *words` in a folder; words: -m MODULE or -c CODE, and arguments; environment: beside this one's."""
    return Started(tuple(map(str, words)), folder, {**os.environ, **(environment or {})})


def run(*words: str | Path, folder: Path = ROOT, environment: Mapping[str, str] | None = None) -> CompletedProcess[str]:
    """`start`, and the end of it."""
    return start(*words, folder=folder, environment=environment).wait()
