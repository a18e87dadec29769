"""Tests of what the engines do on a device, on `meta` tensors, which have shapes and no values.

An operation whose result the host must know (`nonzero`, a number, a comparison) raises there, so the engines get
through only if nothing but `to_numpy` waits for the device; how often that is called is counted.
"""

from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch.utils._python_dispatch import TorchDispatchMode

from dpzero_theory.synthetic import engine, first_order, place
from dpzero_theory.synthetic.lanes import Draw, Lanes, directions_of
from tests.synthetic.small import lanes, quadratic

Array = NDArray[np.float64]
D, STEPS = 20, 140
VARY = {"cumsum", "cumprod", "index_add", "index_add_", "scatter_add", "scatter_add_", "put_", "histc", "bincount"}
"""Operations whose sums on CUDA depend on the order in which threads come first."""


class Seen(TorchDispatchMode):
    """Counts operations on the device, and tensors that are uploaded to it."""

    def __init__(self) -> None:
        super().__init__()
        self.operations = Counter[str]()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        found = func(*args, **(kwargs or {}))
        name = func.overloadpacket.__name__
        if isinstance(found, torch.Tensor) and found.device.type == "meta":
            self.operations["upload" if name == "_to_copy" and args[0].device.type == "cpu" else name] += 1
        return found


@pytest.fixture
def waits(monkeypatch: pytest.MonkeyPatch) -> list[torch.Size]:
    """Returns the list of the shapes of the tensors for which the host waited."""
    waited: list[torch.Size] = []

    def to_numpy(values: torch.Tensor) -> Array:
        waited.append(values.shape)
        return np.ones(values.shape)

    for module in (engine, first_order, place):
        monkeypatch.setattr(module, "to_numpy", to_numpy)
    return waited


def normal(*shape: int) -> Draw:
    rng = np.random.default_rng(3)
    return lambda count: rng.standard_normal((count, *shape))


def zeroth_order(vector: bool, several: int = 1) -> Callable[[Lanes], object]:
    draw = directions_of("sphere", np.random.default_rng(5), D)
    noise = normal(D) if vector else normal()
    problem = quadratic(3, 200, D, "c")
    run = engine.dpgd_0th if vector else engine.dpzero
    return lambda grid: run(
        problem, np.zeros(D), grid, directions=draw, noise=noise, directions_per_step=several, device="meta"
    )


def dpgd(grid: Lanes) -> object:
    options: dict[str, Any] = {"product_dtype": torch.float32, "device": "meta"}
    return first_order.dpgd(quadratic(3, 200, D, "c"), np.zeros(D), grid, noise=normal(D), **options)


ENGINES = {"dpzero": zeroth_order(False), "dpgd-0th": zeroth_order(True), "several": zeroth_order(False, 4)}


@pytest.mark.parametrize("name", [*ENGINES, "dpgd"])
def test_engines_wait_for_no_step_and_add_in_a_fixed_order(name: str, waits: list[torch.Size]) -> None:
    grid = Lanes.of(steps=STEPS, step_size=[0.01, 0.02], clip=[1.0, 2.0], noise_std=0.1)
    with Seen() as seen:
        (dpgd if name == "dpgd" else ENGINES[name])(grid)
    blocks = -(-STEPS // first_order._STEPS["device"])
    # The host waits for the last iterates, the averages and the quadratic forms.
    assert len(waits) == 3 + (blocks if name == "dpgd" else 0)
    assert sum(seen.operations.values()) > STEPS
    assert seen.operations["upload"] < STEPS / 2
    assert not VARY & set(seen.operations)


@pytest.mark.parametrize("at_once", [2, 7, 64])
def test_blocks_of_steps_change_nothing(at_once: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Dividing DP-GD's steps into blocks changes nothing.

    Settings that part inside a block are tested on the CPU, with the device's way of clipping.
    """
    problem, x0 = quadratic(6, 40, 8, "b"), np.full(8, 8.0)
    grid = Lanes.grid(
        steps=(5, 60), step_sizes=(0.03, 0.1, 0.3), clips=(0.3, 1.0, 3.0, 10.0), noise_std=lambda _, clip: 0.05 * clip
    )
    step_by_step = first_order.dpgd(problem, x0, grid, noise=normal(8))
    monkeypatch.setitem(first_order._STEPS, "host", at_once)
    clipping = first_order.ClippedMean
    monkeypatch.setattr(clipping, "__call__", lambda self, h, clip: self._all(h, clip, h.square().sum(dim=0)))
    in_blocks = first_order.dpgd(problem, x0, grid, noise=normal(8))
    for name, expected in vars(step_by_step).items():
        np.testing.assert_allclose(getattr(in_blocks, name), expected, rtol=1e-9, err_msg=name)


@pytest.mark.parametrize("name", ["engine", "first-order"])
def test_float32_is_whole_whatever_the_process_allows(name: str) -> None:
    """Products in float32 have full precision, whatever the process allows.

    The stream of noise, which is drawn while the engine runs, notes the setting.
    """
    seen: list[str] = []

    def noise(count: int) -> Array:
        seen.append(torch.get_float32_matmul_precision())
        return np.zeros(count if name == "engine" else (count, D))

    problem, grid, x0 = quadratic(3, 50, D, "c"), lanes(3, 2, 5), np.zeros(D)
    torch.set_float32_matmul_precision("medium")
    try:
        if name == "engine":
            draw = directions_of("sphere", np.random.default_rng(5), D)
            engine.dpzero(problem, x0, grid, directions=draw, noise=noise, dtype=torch.float32)
        else:
            first_order.dpgd(problem, x0, grid, noise=noise, dtype=torch.float32)
        assert torch.get_float32_matmul_precision() == "medium"
    finally:
        torch.set_float32_matmul_precision("highest")
    assert set(seen) == {"highest"}
