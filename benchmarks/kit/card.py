"""The GPU that rows were made on, for their manifest."""

import subprocess
import sys
from typing import Any

_ASKED = ("driver_version", "clocks.sm", "clocks.max.sm", "clocks.mem", "power.limit", "temperature.gpu")


def accelerator(device: str) -> dict[str, Any]:
    """`described()` if this process has computed on the GPU; an empty dictionary if `device` is the processor."""
    torch = None if device.startswith("cpu") else sys.modules.get("torch")
    return described() if torch is not None and torch.cuda.is_initialized() else {}


def described() -> dict[str, Any]:
    """The GPU's name, memory, driver, its clocks at this moment, and whether TF32 is on; an empty dictionary without a
    GPU.

    The call initialises CUDA: from then on this process holds some memory of the GPU.
    """
    import torch

    if not torch.cuda.is_available():
        return {}
    found = torch.cuda.get_device_properties(0)
    return {
        "card": found.name,
        "memory_gib": round(found.total_memory / 2**30, 1),
        "cuda": torch.version.cuda,
        "tf32": {"matmul": torch.backends.cuda.matmul.allow_tf32, "cudnn": torch.backends.cudnn.allow_tf32},
        **_told(f"GPU-{found.uuid}"),
    }


def _told(card: str) -> dict[str, str]:
    """What nvidia-smi says about this GPU. Where nvidia-smi knows no GPU by that name, what it says about the first
    one; an empty dictionary where it says nothing."""
    for chosen in ([f"--id={card}"], []):
        command = ["nvidia-smi", *chosen, f"--query-gpu={','.join(_ASKED)}", "--format=csv,noheader"]
        try:
            done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=20)
        except (OSError, subprocess.SubprocessError):
            continue
        values = [value.strip() for line in done.stdout.splitlines()[:1] for value in line.split(",")]
        if len(values) == len(_ASKED):
            return dict(zip(_ASKED, values, strict=True))
    return {}
