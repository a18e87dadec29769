"""A limit on the time of a block of code."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


class TooLong(BaseException):
    """Raised inside a block of code when its time limit is reached. It is not an `Exception`, so that no `except
    Exception` inside the block catches it."""


@contextmanager
def limited(seconds: float, *, processor: bool = False) -> Iterator[None]:
    """Raise TooLong inside the block after `seconds` of wall time, or of processor time if `processor` holds.

    Any other exception that the block raises once the time is over, such as a library's own, becomes TooLong, too.
    """
    kind, timer = (signal.SIGVTALRM, signal.ITIMER_VIRTUAL) if processor else (signal.SIGALRM, signal.ITIMER_REAL)
    late = False

    def stop(signum: int, frame: FrameType | None) -> None:
        nonlocal late
        late = True
        raise TooLong

    before = signal.signal(kind, stop)
    signal.setitimer(timer, seconds)
    try:
        yield
    except Exception as error:
        raise TooLong if late else error from None
    finally:
        signal.setitimer(timer, 0)
        signal.signal(kind, before)
