"""Raise KeyboardInterrupt, as Ctrl-C does, at a chosen bytecode instruction of the library, or of the standard
library's and torch's functions that it calls to tidy up."""

import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import dpzero_theory

LIBRARY = str(Path(dpzero_theory.__file__).parent)
OTHERS = (
    *("contextlib.py", "_python_dispatch.py", "grad_mode.py", "autocast_mode.py"),
    *("torch/overrides.py", "forward_ad.py", "vmap.py", "eager_transforms.py"),
)

Instruction = tuple[str, str, int, int]
"""An instruction of Python's bytecode: its file, its function, the first line of that function, and its offset in it.
"""


if sys.version_info >= (3, 12):  # from 3.12 on sys.settrace skips some instructions
    _TOOL = 4

    @contextmanager
    def traced(event: Callable[[Instruction], None]) -> Iterator[None]:
        """Call `event` with each bytecode instruction of the library, or of a file in `OTHERS`, before this thread runs
        it. This lasts until `stop` is called or the block ends. What other threads and other files run is not
        reported."""
        thread = threading.get_ident()

        def told(code: CodeType, offset: int) -> object:
            if not _watched(code):
                return sys.monitoring.DISABLE
            if threading.get_ident() == thread:
                event((code.co_filename, code.co_name, code.co_firstlineno, offset))
            return None

        kind = sys.monitoring.events.INSTRUCTION
        sys.monitoring.use_tool_id(_TOOL, __name__)
        sys.monitoring.register_callback(_TOOL, kind, told)
        sys.monitoring.set_events(_TOOL, kind)
        try:
            yield
        finally:
            stop()
            sys.monitoring.register_callback(_TOOL, kind, None)
            sys.monitoring.free_tool_id(_TOOL)
            sys.monitoring.restart_events()

    def stop() -> None:
        """End the calls of `event` that `traced` began, while its block goes on."""
        sys.monitoring.set_events(_TOOL, sys.monitoring.events.NO_EVENTS)

else:

    @contextmanager
    def traced(event: Callable[[Instruction], None]) -> Iterator[None]:
        """Call `event` with each bytecode instruction of the library, or of a file in `OTHERS`, before this thread runs
        it. This lasts until `stop` is called or the block ends. What other threads and other files run is not
        reported."""

        def trace(frame: FrameType, kind: str, argument: object) -> Any:
            code = frame.f_code
            if not _watched(code):
                return None
            frame.f_trace_opcodes, frame.f_trace_lines = True, False
            if kind == "opcode":
                event((code.co_filename, code.co_name, code.co_firstlineno, frame.f_lasti))
            return trace

        before = sys.gettrace()
        sys.settrace(trace)
        try:
            yield
        finally:
            sys.settrace(before)

    def stop() -> None:
        """End the calls of `event` that `traced` began, while its block goes on."""
        sys.settrace(None)


def _watched(code: CodeType) -> bool:
    return code.co_filename.startswith(LIBRARY) or code.co_filename.endswith(OTHERS)


def instructions(work: Callable[[], object]) -> list[Instruction]:
    """Run `work` and return the bytecode instructions that it runs in this thread in files of the library and in those
    of `OTHERS`, each once, in the order in which they are first run."""
    found: dict[Instruction, None] = {}
    with traced(lambda instruction: found.setdefault(instruction)):
        work()
    return list(found)


def interrupt(work: Callable[[], object], instruction: Instruction, time: int = 1) -> KeyboardInterrupt | None:
    """Run `work`, and raise KeyboardInterrupt in it just before it runs `instruction` for the time-th time (1 is the
    first).

    Returns the KeyboardInterrupt that leaves `work`, or None where `work` ends without one, because it did not run the
    instruction so often or because it caught the interrupt.
    """
    reached = 0

    def event(found: Instruction) -> None:
        nonlocal reached
        reached += found == instruction
        if found == instruction and reached == time:
            stop()
            raise KeyboardInterrupt

    try:
        with traced(event):
            work()
    except KeyboardInterrupt as raised:
        return raised
    return None
