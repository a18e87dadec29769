"""A job's command in a process group of its own, ended at its limit, and with this process whatever ends that.

A guard between the two starts the command and waits on a pipe from here. It is at its end when the limit is reached,
at Ctrl-C, and when this process is killed; then the guard kills its group, the command's own workers included.
Commands keep what they have done at every moment, so no end is too sudden.
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
    """How a process ended. status: its exit status; None where it was ended at the limit. last: its last line."""

    status: int | None
    seconds: float
    last: str


def run_command(command: Sequence[str], limit: float, log: Path, say: Callable[[str], None]) -> Ended:
    """Run it for at most `limit` seconds; what it prints goes to the end of `log`, and line by line to `say`."""
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
    """The last of the lines that say something."""
    found = [line.strip() for line in lines if line.strip()]
    for line in found:
        say(line)
    return found[-1] if found else ""
