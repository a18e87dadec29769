"""The GPU that rows were made on, for the manifest."""

import subprocess
import sys
from typing import Any

_ASKED = ("driver_version", "clocks.sm", "clocks.max.sm", "clocks.mem", "power.limit", "temperature.gpu")


def accelerator(device: str) -> dict[str, Any]:
    """Return `described()` if `device` is a GPU on which this process has computed, else an empty dictionary."""
    torch = None if device.startswith("cpu") else sys.modules.get("torch")
    return described() if torch is not None and torch.cuda.is_initialized() else {}


def described() -> dict[str, Any]:
    """Return the GPU's name, memory, driver, present clock rates, and whether TF32 is on; an empty dictionary if
    there is no GPU.

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
    """Return what nvidia-smi says about the GPU with this name, or about the first GPU if it knows none by that
    name; an empty dictionary if nvidia-smi cannot be asked."""
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
