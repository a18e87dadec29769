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
    """Raise TooLong inside the block once it has taken `seconds` seconds of wall time, or, with `processor`, of this
    process's time on the processor.

    An `Exception` that leaves the block after that moment is replaced by TooLong: a library may turn TooLong into an
    error of its own. A signal ends the block, so it must be in the main thread, and two blocks with limits on the same
    kind of time cannot be nested.
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
