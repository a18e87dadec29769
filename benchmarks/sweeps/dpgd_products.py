"""Why a seed of DP-GD on the paper's grid takes so long.  python -m benchmarks.dpgd_products

A step of DP-GD that clips needs the distance of every sample and a weighted sum of the samples. That takes 4 n d
operations for each combination of parameters in the grid. Combinations that clip nothing, and combinations that move
together, need not be computed one by one and have been left out. For each spectrum (mode) and dimension of the paper's
grid, its runs of T <= 160 (3% of its steps) are made. A row has the number of such steps, the processor time of their
matrix products and of everything, and the speed of the products beside that of a large square product in the same
precision, which no product exceeds. From these follows how long the whole grid would take at that peak speed.
Everything is on a single thread.
"""

import time
from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from benchmarks.kit.device import one_thread
from benchmarks.kit.experiment import Cell, Experiment, flag
from benchmarks.kit.remake import Remake, Row
from benchmarks.kit.tables import rounded_row
from benchmarks.sweeps.synthetic import PRESETS, Computation, Preset, paper_lanes, run_methods, samples
from dpzero_theory.synthetic.problems import MODES, Quadratic, paper_spectrum

GRIDS = {
    "smoke": Preset(200, (5, 10), steps=(10, 40), step_sizes=(0.01, 0.1), clips=(0.3, 3.0)),
    "paper": replace(PRESETS["paper"], steps=PRESETS["paper"].steps[:5]),
}
PRODUCTS = (torch.ops.aten.mm.default, torch.ops.aten.addmm_.default)
FIELDS = (
    *("lane_steps", "clipping_lane_steps", "product_s", "total_s"),
    *("product_share", "gflops", "peak_gflops", "grid_minutes_at_peak"),
)


class _Products(TorchDispatchMode):
    """While this mode is active it counts the floating-point operations of all matrix products (`operations`, two for
    each multiplication with its addition) and their processor seconds (`seconds`)."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.operations, self.seconds = 0, 0.0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func not in PRODUCTS:
            return func(*args, **(kwargs or {}))
        left, right = args[-2:]
        self.operations += 2 * left.shape[0] * left.shape[1] * right.shape[1]
        started = time.process_time()
        found = func(*args, **(kwargs or {}))
        self.seconds += time.process_time() - started
        return found


def peak(size: int = 1500, times: int = 5) -> float:
    """Return the floating-point operations per second of the fastest of `times` products of square float32 matrices
    with `size` rows on the CPU, by processor time."""
    a, fastest = torch.randn(size, size), np.inf
    for _ in range(times):
        started = time.process_time()
        a @ a
        fastest = min(fastest, time.process_time() - started)
    return 2 * size**3 / fastest


def measure(grid: Preset, mode: str, d: int) -> dict[str, Any]:
    """Run DP-GD on the grid's quadratic with the spectrum `mode` in dimension d, with seed 0, and return the measured
    columns."""
    train, _, _ = samples(grid.n, d, 0)
    problem, lanes = Quadratic(train, paper_spectrum(mode, d)), paper_lanes(grid, "paper")
    fastest, started = peak(), time.process_time()
    with _Products() as products:
        run_methods([("dpgd", np.zeros(d), lanes)], problem, 0, [], **Computation().of("dpgd"))
    total = time.process_time() - started
    fastest = max(fastest, peak())
    whole = paper_lanes(PRESETS["paper"], "paper").steps.sum() / lanes.steps.sum()
    row = {
        "product_s": products.seconds,
        "total_s": total,
        "product_share": products.seconds / total,
        "gflops": products.operations / products.seconds / 1e9,
        "peak_gflops": fastest / 1e9,
        "grid_minutes_at_peak": products.operations * whole / fastest / 60,
    }
    return {
        "lane_steps": int(lanes.steps.sum()),
        "clipping_lane_steps": products.operations // (4 * grid.n * (d + 2)),
        **rounded_row(row),
    }


def _again(row: Row) -> list[dict[str, Any]]:
    return [{"mode": row["mode"], "d": row["d"], **measure(GRIDS["paper"], row["mode"], row["d"])}]


REMAKES = {"dpgd_products": Remake(("mode", "d"), _again, varies=FIELDS[2:])}


def _told(at: Cell, rows: list[dict[str, Any]]) -> str:
    row = rows[0]
    told = f"{row['product_share']:.0%} in products at {row['gflops']} of {row['peak_gflops']} GFLOP/s"
    return f"mode {at['mode']}, d = {at['d']:,}: {row['total_s']} s, {told}"


EXPERIMENT = Experiment(
    name="dpgd_products",
    about=__doc__,
    flags=[flag("--preset", choices=GRIDS, default="paper")],
    key=("mode", "d"),
    fields=FIELDS,
    seeds=[0],
    dtype="float64, products float32",
    settings=lambda options: {"n": GRIDS[options.preset].n, "steps": max(GRIDS[options.preset].steps)},
    check=one_thread,
    cells=lambda options: ({"mode": mode, "d": d} for d, mode in product(GRIDS[options.preset].dimensions, MODES)),
    measure=lambda options, at: measure(GRIDS[options.preset], at["mode"], at["d"]),
    told=_told,
)
