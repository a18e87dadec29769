"""The accelerator behind a row: for the manifest."""

import subprocess
import sys
from typing import Any

_ASKED = ("driver_version", "clocks.sm", "clocks.max.sm", "clocks.mem", "power.limit", "temperature.gpu")


def accelerator(device: str) -> dict[str, Any]:
    """`described`, where this process computes on the card; nothing where `device` is the processor."""
    torch = None if device.startswith("cpu") else sys.modules.get("torch")
    return described() if torch is not None and torch.cuda.is_initialized() else {}


def described() -> dict[str, Any]:
    """The card, its driver, its clocks at this moment and the state of TF32; nothing where there is no card.

    From now on the process holds memory of the card.
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
    """What nvidia-smi says of this card, or where it does not know it by that name of the first; nothing if nothing."""
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
