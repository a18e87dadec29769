"""Measure peak memory in MiB: that of the process on a CPU, that of torch's allocator on a GPU."""

import os
import resource
import sys
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from contextlib import suppress
from multiprocessing import get_context
from pathlib import Path
from typing import ParamSpec, TypeVar

import torch

Arguments = ParamSpec("Arguments")
Answer = TypeVar("Answer")


def in_new_process(
    function: Callable[Arguments, Answer], *arguments: Arguments.args, **named: Arguments.kwargs
) -> Answer:
    """Call a function at the top level of a module in a new process and return its result, which must be one that can
    be pickled. That process gives freed memory back at once (by a setting of glibc), so its peak is the most that the
    call holds. The setting stays for all processes that are started later."""
    # the C library reads this variable when a process starts, so it changes only processes that are started from now on
    os.environ["MALLOC_MMAP_THRESHOLD_"] = "131072"
    with ProcessPoolExecutor(1, get_context("spawn")) as pool:
        return pool.submit(function, *arguments, **named).result()


def reset_peak(device: str) -> float:
    """Start a new measurement of the peak memory and return the memory held now, in MiB. It is the memory that torch's
    allocator has given out if `device` is "cuda", else the resident memory of the process. Outside Linux the peak of a
    CPU process cannot be forgotten; then the peak so far is what is returned."""
    if device == "cuda":
        torch.cuda.reset_peak_memory_stats()
        return torch.cuda.memory_allocated() / 2**20
    with suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")
    return peak(device)


def code() -> float:
    """Return the resident memory of the process in MiB that is a copy of files, such as the code of libraries, which
    all processes share; 0 outside Linux."""
    with suppress(OSError):
        return int(Path("/proc/self/status").read_text().split("RssFile:")[1].split()[0]) / 2**10
    return 0.0


def peak(device: str) -> float:
    """Return the largest amount of memory in MiB held at any moment since `reset_peak` was called, or since the process
    began if it never was. It is the memory that torch's allocator has given out if `device` is "cuda", else the
    resident memory of the process."""
    if device == "cuda":
        return torch.cuda.max_memory_allocated() / 2**20
    try:
        return int(Path("/proc/self/status").read_text().split("VmHWM:")[1].split()[0]) / 2**10
    except OSError:
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (2**20 if sys.platform == "darwin" else 2**10)
