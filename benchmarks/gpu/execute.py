"""Run a job's command in a process group of its own, which is ended at its time limit, and whenever this process ends.

A guard process starts the command and reads from a pipe that this process holds open. The pipe closes at the time
limit, at Ctrl-C, and if this process is killed. Then the guard kills its whole group, including worker processes of the
command. Commands save their results as they go, so they may be ended at any moment.
"""

import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

_GUARD = """
import os, signal, subprocess, sys, threading
def watch():
    sys.stdin.buffer.read()
    os.killpg(0, signal.SIGKILL)
threading.Thread(target=watch, daemon=True).start()
status = subprocess.call(sys.argv[1:], stdin=subprocess.DEVNULL)
os._exit(status if status >= 0 else 128 - status)
"""
_LOOK = 0.2


class Ended(NamedTuple):
    """How a process ended: its exit status (None if it was ended at the time limit), the seconds it took, and the last
    line that it printed."""

    status: int | None
    seconds: float
    last: str


def run_command(command: Sequence[str], limit: float, log: Path, say: Callable[[str], None]) -> Ended:
    """Run a command for at most `limit` seconds and return how it ended.

    command: the words that follow the name of the Python interpreter. log: the file to which everything that the
    command prints is appended. say: called with each line of it that is not empty, while the command runs.
    """
    log.parent.mkdir(parents=True, exist_ok=True)
    started, last = time.monotonic(), ""
    with log.open("ab") as out, log.open(errors="replace") as lines:
        lines.seek(0, 2)
        guarded = [sys.executable, "-S", "-c", _GUARD, *command]
        with subprocess.Popen(guarded, stdin=subprocess.PIPE, stdout=out, stderr=out, start_new_session=True) as guard:
            status: int | None = None
            try:
                while (status := guard.poll()) is None and time.monotonic() - started < limit:
                    last = _told(lines.readlines(), say) or last
                    time.sleep(_LOOK)
            finally:
                assert guard.stdin is not None
                guard.stdin.close()
                guard.wait()
        last = _told(lines.readlines(), say) or last
    return Ended(status, time.monotonic() - started, last)


def _told(lines: Sequence[str], say: Callable[[str], None]) -> str:
    """Call `say` with each of the lines that is not empty, and return the last of these, or "" if there is none."""
    found = [line.strip() for line in lines if line.strip()]
    for line in found:
        say(line)
    return found[-1] if found else ""
