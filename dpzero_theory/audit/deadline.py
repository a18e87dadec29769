"""Ends runs of an audited loop at a fixed time, also a run that hangs."""

import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from types import FrameType

now = partial(time.monotonic)
"""Returns the time in seconds, by a clock that goes on where `sources.stopped_clocks` has stopped the others."""
_AGAIN = 0.1
"""Seconds after which a run is interrupted again that has caught the first interruption and went on."""


class OutOfTime(BaseException):
    """Raised where the time for the runs of a loop is over.

    It is no `Exception`, so that a loop which catches all exceptions ends as well.
    """


@contextmanager
def until(deadline: float | None) -> Iterator[None]:
    """A context whose body raises `OutOfTime` as soon as `now()` reaches `deadline`; never if it is None.

    In the main thread of a Unix process the body is interrupted by a timer (SIGALRM), as soon as the interpreter runs
    again. Elsewhere the time is compared when the body is entered, so a body that was entered runs to its end.
    """
    if deadline is None:
        yield
        return
    left = deadline - now()
    if left <= 0:
        raise OutOfTime
    if threading.current_thread() is not threading.main_thread() or not hasattr(signal, "setitimer"):
        yield
        return
    entered, running = now(), True

    def interrupt(_number: int, _frame: FrameType | None) -> None:
        if running:
            raise OutOfTime

    handler = signal.signal(signal.SIGALRM, interrupt)
    others, again = signal.setitimer(signal.ITIMER_REAL, left, _AGAIN)
    try:
        try:
            yield
        finally:
            # the time limit interrupts nothing from here on, so that the lines below always put the timer back
            running = False
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, handler)
        if others:  # a timer that was running before the body, as of a test's own time limit, runs on
            signal.setitimer(signal.ITIMER_REAL, max(1e-3, others - (now() - entered)), again)
