"""A job's command in a process group of its own, which is ended at its limit, and whenever this process ends.

A guard process starts the command and waits at the end of a pipe from here. The pipe is closed at the limit, at Ctrl-C,
and when this process is killed; then the guard kills its group, the command's own worker processes included. Commands
save what they have done at every moment, so they may be ended at any.
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
    """How a process ended. status: its exit status; None where it was ended at the limit. last: the last line it
    printed."""

    status: int | None
    seconds: float
    last: str


def run_command(command: Sequence[str], limit: float, log: Path, say: Callable[[str], None]) -> Ended:
    """Run the command for at most `limit` seconds. Its output is appended to `log`, and each line is passed to
    `say`."""
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
    """Pass on the lines that are not empty; returns the last of them."""
    found = [line.strip() for line in lines if line.strip()]
    for line in found:
        say(line)
    return found[-1] if found else ""
