"""Runs Python programs in forks of a process that has made the tests' imports and nothing else.

An import of torch takes two seconds, a fork some milliseconds. The process that forks is itself a fork of the test
process, made after its imports and before its tests: without threads, and with nothing that a test could have changed.
A program that needs an interpreter of its own, for its flags or for what it imports, is run by `subprocess`.
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
"""The process that forks: its process id, and the socket by which it is asked for a fork.

The list has one entry between `prepare` and `finish`, and is empty otherwise.
"""


def prepare() -> None:
    """Start the process that forks when it is asked to."""
    ours, theirs = socket.socketpair()
    # The warning is about a thread of pytest-xdist, which only waits.
    with warnings.catch_warnings(action="ignore", category=DeprecationWarning):
        server = os.fork()
    if server == 0:
        ours.close()
        _serve(theirs)
    theirs.close()
    _servers.append((server, ours))


def finish() -> None:
    """End the process that forks; the resources that its forks have used are then counted for this process."""
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
    """Become the program that was asked for; this function does not return.

    `asked` has the program's words, folder and environment, as `Started` has them. `out`, `err` and `ended` are file
    descriptors: of the program's standard output, of its standard error, and of the pipe to which its exit status is
    written.
    """
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
    """A Python program that runs in a fork.

    `words` are the words after `python`, `folder` its working directory, and `environment` its environment variables.
    """

    def __init__(self, words: tuple[str, ...], folder: Path, environment: Mapping[str, str]) -> None:
        self.words = words
        (out, self._out), (err, self._err) = mkstemp(), mkstemp()
        self._ended, ended = os.pipe()
        message = json.dumps({"words": words, "folder": str(folder), "environment": dict(environment)}).encode()
        socket.send_fds(_servers[0][1], [message], [out, err, ended])
        for file in (out, err, ended):
            os.close(file)

    def wait(self) -> CompletedProcess[str]:
        """Waits until the program ends, and returns what it printed and its exit status, -9 if it was killed."""
        with open(self._ended, "rb") as ended:
            status = int(ended.read() or b"-9")
        told = [Path(path).read_text() for path in (self._out, self._err)]
        for path in (self._out, self._err):
            Path(path).unlink()
        return CompletedProcess(self.words, status, *told)


def start(*words: str | Path, folder: Path = ROOT, environment: Mapping[str, str] | None = None) -> Started:
    """Starts `python *words` in a folder, and returns the running program.

    The words are -m MODULE or -c CODE, and arguments; `environment` has variables beside those of this process.
    """
    return Started(tuple(map(str, words)), folder, {**os.environ, **(environment or {})})


def run(*words: str | Path, folder: Path = ROOT, environment: Mapping[str, str] | None = None) -> CompletedProcess[str]:
    """Runs `python *words` in a folder to its end, and returns what it printed and its exit status.

    The arguments are those of `start`.
    """
    return start(*words, folder=folder, environment=environment).wait()
