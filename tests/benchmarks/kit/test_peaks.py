"""Tests of the measurement of a process's peak memory.

An allocation counts, also after it is freed, until the peak is reset.
"""

from pathlib import Path

import pytest
import torch

from benchmarks.kit.peaks import peak, reset_peak


@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="a peak can be forgotten on Linux only")
def test_a_freed_allocation_counts_until_the_reset() -> None:
    held = reset_peak("cpu")
    torch.ones(100 * 2**18)
    assert peak("cpu") - held == pytest.approx(100, abs=5)
    held = reset_peak("cpu")
    assert peak("cpu") - held < 5
