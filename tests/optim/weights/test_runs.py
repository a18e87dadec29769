"""Tests of whole runs along low-rank directions: replayed to the bit by other kernels, and verified."""

import json
import os
import platform
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from dpzero_theory.optim.files.transcript import RUN, read
from dpzero_theory.optim.private import make_private_with_epsilon
from dpzero_theory.optim.run import Run
from dpzero_theory.optim.verify import main as verify
from dpzero_theory.optim.weights.directions import Directions
from tests.optim.files.test_replay import OLDEST
from tests.optim.small import BUDGET, FULL, STEP, D, data, losses

KERNELS: tuple[dict[str, str], ...] = (
    OLDEST,
    {"ATEN_CPU_CAPABILITY": "avx2", "OPENBLAS_CORETYPE": "Haswell", "MKL_CBWR": "AVX2"},
    {"ATEN_CPU_CAPABILITY": "default", "MKL_CBWR": "COMPATIBLE", "OMP_NUM_THREADS": "1"},
    {"ONEDNN_MAX_CPU_ISA": "SSE41", "MKL_ENABLE_INSTRUCTIONS": "SSE4_2", "OMP_NUM_THREADS": "2"},
    {"NPY_DISABLE_CPU_FEATURES": "X86_V3 X86_V4", "OPENBLAS_CORETYPE": "Sandybridge", "MKL_NUM_THREADS": "2"},
    {"ONEDNN_DEFAULT_FPMATH_MODE": "BF16", "OMP_NUM_THREADS": "2", "MKL_NUM_THREADS": "2"},
)
"""Settings of the environment under which torch, BLAS and numpy take other kernels."""
PRODUCTS = {"mm", "addmm", "addmm_", "bmm", "baddbmm", "baddbmm_", "mv", "addmv", "dot"}


class Rounding(TorchDispatchMode):
    """Rounds the factors of float32 products to bfloat16 where torch's precision lets a processor do so, which the
    processor at hand may not do."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.overloadpacket.__name__ in PRODUCTS and torch.get_float32_matmul_precision() != "highest":
            first, *factors = args if "add" in func.overloadpacket.__name__ else (None, *args)
            factors = [x.bfloat16().float() if x.dtype == torch.float32 else x for x in factors]
            args = factors if first is None else [first, *factors]
        return func(*args, **(kwargs or {}))


class Layers(nn.Module):
    """Two layers and a vector, in float32."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.scale = nn.Linear(D, 90), nn.Linear(90, 1), nn.Parameter(torch.ones(()))
        for parameter in self.parameters():  # what torch draws depends on the kernels
            parameter.data.copy_((torch.arange(parameter.numel()) * 37 % 101 - 50).view(parameter.shape) / 256)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.second(torch.tanh(self.first(x)))[:, 0]
        return found * self.scale


def started(folder: Path, **changes: Any) -> Run:
    settings: dict[str, Any] = {**BUDGET, **STEP, **FULL, "step_size": 0.3, "folder": folder, **changes}
    return make_private_with_epsilon(Layers(), losses, data(torch.float32), **settings)


def bits(module: nn.Module) -> list[float]:
    return torch.cat([parameter.detach().flatten() for parameter in module.parameters()]).tolist()


CASES = {
    "one direction": {"direction": "low-rank"},
    "sixteen": {"direction": "low-rank", "directions_per_step": 16, "points_at_once": 17, "difference": "forward"},
    "of rank 4": {"direction": "low-rank:4", "directions_per_step": 5},
}


@pytest.mark.skipif(platform.machine() != "x86_64", reason="kernels are chosen by the names of x86 processors")
def test_other_kernels_replay_the_same_bits(tmp_path: Path) -> None:
    """Six settings choose other kernels, and products are rounded to bfloat16 where nothing forbids it."""
    expected = []
    for name in CASES:
        run = started(tmp_path / name, **CASES[name])
        run.run()
        run.close()
        expected.append(bits(run.weights.module))
    asked = (
        "import sys, json, torch; from tests.optim.weights.test_runs import replayed;"
        "torch.set_float32_matmul_precision('medium'); print(json.dumps(list(map(replayed, sys.argv[1:]))))"
    )
    folders = [str(tmp_path / name) for name in CASES]
    for settings in KERNELS:
        done = subprocess.run(
            [sys.executable, "-W", "ignore", "-c", asked, *folders],
            env=os.environ | settings,
            capture_output=True,
            text=True,
            check=True,
        )
        assert json.loads(done.stdout) == expected, settings


def replayed(folder: str) -> list[float]:
    module = Layers()
    with Rounding():
        read(Path(folder) / RUN).replayed(module)
    return bits(module)


@pytest.mark.parametrize("name", CASES)
def test_a_run_is_verified_and_a_changed_sign_is_told(
    tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.save(dict(Layers().named_parameters()), tmp_path / "initial.pt")
    run = started(tmp_path / "run", **CASES[name])
    run.run()
    torch.save(run.state_dict(), tmp_path / "final.pt")
    run.close()
    files = [str(tmp_path / "run"), "--initial", str(tmp_path / "initial.pt")]
    files += ["--final", str(tmp_path / "final.pt")]
    assert verify(files) == 0
    coordinates = Directions.coordinates

    def changed(self: Directions, number: int, *place: Any, **options: Any) -> torch.Tensor:
        found = coordinates(self, number, *place, **options)
        if number == 3:
            found[17] = -found[17]
        return found

    monkeypatch.setattr(Directions, "coordinates", changed)
    assert verify(files) == 1
    assert replayed(str(tmp_path / "run")) != bits(run.weights.module)
