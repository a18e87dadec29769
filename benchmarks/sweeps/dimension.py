"""How DPZero and DPGD-0th grow with the dimension d, to 10^6 and beyond.  python -m benchmarks.dimension

The loss is quadratic with eigenvalues 1/i (called mode c). Data, directions and noise are drawn in blocks of
coordinates, from the seed and the number of the block. A run needs only inner products of them, which add over blocks,
so memory does not depend on d (`peak_mb` is the most that the process has held). Under torchrun the processes share the
blocks, and all of them hold the same sums afterwards:

    torchrun --nproc-per-node 4 -m benchmarks.dimension --preset full
    python -m benchmarks.dimension --preset gpu --seeds 1 --device cuda     (d = 10^8; the GPU draws for itself)

Each of the 1,000 samples stands for 10 equal records, so that the noise is that of the paper's n = 10,000. There is one
row for each combination of steps, step size and clip in a grid. Runs are (2, 1e-6)-DP with exact calibration and start
at 0. Noise comes from seeds: no row is a private release.
"""

import math
import os
import time
from argparse import Namespace
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray
from scipy.special import digamma

from benchmarks.kit.device import chosen_device
from benchmarks.kit.experiment import Command, flag
from benchmarks.kit.peaks import peak
from benchmarks.kit.remake import SIX_DIGITS, Remake
from benchmarks.kit.rows import RESULTS, Results
from benchmarks.kit.tables import rounded
from dpzero_theory.cli import Parser, integer, output_folder
from dpzero_theory.privacy.gaussian import gdp_from_epsilon, noise_std
from dpzero_theory.synthetic.lanes import Lanes
from dpzero_theory.synthetic.products import Products, Start, coefficients, form_path, products

Array = NDArray[np.float64]
Tensor = torch.Tensor

EPSILON, DELTA = 2.0, 1e-6
RECORDS_PER_SAMPLE = 10
METHODS = ("dpzero", "dpgd-0th")
BLOCKS = {"cpu": 1024, "cuda": 32_768}
"""How many coordinates a block has, by device. On a CPU, larger blocks let freed temporaries fragment the heap, and
memory grows with d. On a GPU, small blocks spend their time on launching kernels."""
GROUPS = 8
"""The number of groups in which the blocks are summed. The groups are added in a fixed order, so that the sums do not
depend on which process makes them."""
KEY = ("method", "d", "seed", "steps", "step_size", "clip")
FIELDS = ("r", "gradient_squared", "last_gradient_squared", "seconds", "peak_mb")


@dataclass(frozen=True)
class Sizes:
    """The sizes of a sweep: the number of samples, the dimensions, and the grid of steps, step sizes and clips. Step
    sizes are in units of 1/(r + 2), with r the effective rank. Clips are in units of 1, or of sqrt(d) for DPGD-0th."""

    samples: int
    dimensions: tuple[int, ...]
    steps: tuple[int, ...] = (20, 80, 320)
    step_sizes: tuple[float, ...] = (0.003, 0.01, 0.03, 0.1, 0.3, 1.0)
    clips: tuple[float, ...] = (0.1, 0.3, 1.0, 3.0)


PRESETS = {
    "smoke": Sizes(50, (10, 100, 5_000), steps=(5, 20)),
    "full": Sizes(1_000, (100, 1_000, 10_000, 100_000, 1_000_000)),
    "gpu": Sizes(1_000, (1_000_000, 10_000_000, 100_000_000)),
}


@dataclass(frozen=True)
class _Worker:
    """The part that this process has in the work: its `rank`, 0 to count - 1, the `count` of processes that share the
    blocks of coordinates, and the `device` on which it computes."""

    rank: int
    count: int
    device: str

    def tensor(self, values: Array) -> Tensor:
        return torch.as_tensor(values, dtype=torch.float64, device=self.device)


def _lanes(preset: Sizes, method: str, d: int, r: float) -> Lanes:
    gdp = float(gdp_from_epsilon(EPSILON, DELTA))
    n = preset.samples * RECORDS_PER_SAMPLE
    scale = math.sqrt(d) if method == "dpgd-0th" else 1.0
    return Lanes.grid(
        steps=preset.steps,
        step_sizes=[step_size / (r + 2) for step_size in preset.step_sizes],
        clips=[clip * scale for clip in preset.clips],
        noise_std=lambda steps, clip: noise_std(gdp, steps, clip, n, "replace-one"),
    )


def _rank(d: int) -> float:
    """Return the effective rank of the eigenvalues 1/i, which is 1 + 1/2 + ... + 1/d."""
    return float(digamma(d + 1) + np.euler_gamma)


def run_cell(preset: Sizes, d: int, seed: int, worker: _Worker) -> list[dict[str, Any]]:
    """Run both methods in dimension d with one seed, and return a row for each combination of parameters in the
    preset's grid. The methods share data and directions. Every process under torchrun returns all rows. `worker` is
    this process's part in the work."""
    started = time.perf_counter()
    room = _Room(preset.samples, max(preset.steps), worker.device)
    steps, blocks = room.steps, -(-d // room.width)
    mine = {
        group: _group(range(group, blocks, GROUPS), room, d, seed, worker)
        for group in range(worker.rank, GROUPS, worker.count)
    }
    parts = [_share(mine.get(group), group, preset.samples, steps, worker) for group in range(GROUPS)]
    given, squares = parts[0]
    for more, more_squares in parts[1:]:
        given += more
        squares += more_squares
    scale = (d / squares).sqrt()  # the factor that scales each step's direction to length sqrt(d)
    given = _scaled(given, scale)
    scalars = worker.tensor(np.random.default_rng([seed, 3]).standard_normal(steps))
    lanes = [_lanes(preset, method, d, _rank(d)) for method in METHODS]
    paths = [
        _path(method, some, given, starts, d, scalars, worker).cpu().numpy()
        for method, some, starts in zip(METHODS, lanes, given.starts, strict=True)
    ]
    usage = {"seconds": round(time.perf_counter() - started, 2), "peak_mb": round(peak(worker.device), 1)}
    return [
        {
            **dict(zip(KEY, (method, d, seed, int(end), float(alpha), float(clip)), strict=True)),
            "r": _rank(d),
            "gradient_squared": rounded(path[:end, lane].mean(), 6),
            "last_gradient_squared": rounded(path[end, lane], 6),
            **usage,
        }
        for method, some, path in zip(METHODS, lanes, paths, strict=True)
        for lane, (end, alpha, clip) in enumerate(zip(some.steps, some.step_size, some.clip, strict=True))
    ]


def _path(
    method: str, lanes: Lanes, given: Products, starts: Sequence[Start], d: int, scalars: Tensor, worker: _Worker
) -> Tensor:
    """Return the squared gradient norm of every iterate of a method, shape (S + 1, L) for S steps and L lanes, which
    are runs with step size, clip and noise of their own.

    method: "dpzero" or "dpgd-0th". given: the inner products of data, directions and noise. starts: two sets of inner
    products of the method's start and noise, those from which its steps are computed and those from which the
    gradient's norms are. d: the dimension. scalars: the standard normal noise of the S steps, which dpgd-0th does not
    use. The result is on the device of `worker`.
    """
    alpha, clip, std = map(worker.tensor, (lanes.step_size, lanes.clip, lanes.noise_std))
    own = starts[0].own(alpha * std)
    vector = method == "dpgd-0th"
    limit = (clip / math.sqrt(d) if vector else clip).expand_as(own)
    shift = torch.zeros_like(own) if vector else scalars[:, None] * std
    move = coefficients(given.data, given.grams[0], own, alpha, limit, shift)
    return form_path(starts[1], given.grams[1], move, alpha * std)


class _Room:
    """Memory for the random numbers of one block of coordinates. All blocks and dimensions use the same memory in
    turn."""

    def __init__(self, samples: int, steps: int, device: str) -> None:
        self.samples, self.steps, self.width = samples, steps, BLOCKS[device]
        self._space = [
            torch.empty(rows * self.width, dtype=torch.float64, device=device) for rows in (samples, steps, steps)
        ]

    def draw(self, stream: int, seed: int, number: int, width: int) -> Tensor:
        """Draw the standard normals of block `number` of coordinates for data (stream 0), directions (1) or noise (2),
        a function of `seed`, and return them with a row for each sample or step and `width` columns, one for each
        coordinate. They overwrite those that this stream drew before."""
        rows = (self.samples, self.steps, self.steps)[stream]
        values = self._space[stream][: rows * width].view(rows, width)
        fill_normal(values, [seed, number, stream])
        return values


def fill_normal(values: Tensor, key: Sequence[int]) -> None:
    """Fill the float64 tensor `values` with standard normals that are a function of the key, drawn on its device.

    A CPU and a GPU draw different numbers. All CPUs draw the same, and so do all GPUs of one type.
    """
    if values.device.type == "cpu":
        np.random.default_rng(key).standard_normal(out=values.numpy())
    else:
        seed = int(np.random.SeedSequence(key).generate_state(1, np.uint64)[0])
        values.normal_(generator=torch.Generator(values.device).manual_seed(seed))


def _group(numbers: Sequence[int], room: _Room, d: int, seed: int, worker: _Worker) -> tuple[Products, Tensor]:
    """Return the inner products of the problem in d dimensions with this seed, summed over the blocks of coordinates
    with these numbers, and, for each step, the squared length in these coordinates of its Gaussian direction, before it
    is scaled. `room` is the memory for a block's random numbers, and `worker` this process's part in the work."""
    total, squares = _nothing(room.samples, room.steps, worker)
    for number in numbers:
        first = number * room.width
        width = min(room.width, d - first)
        points = room.draw(0, seed, number, width).add_(1)
        w = room.draw(1, seed, number, width)
        squares += w.square().sum(dim=1)
        spectrum = 1 / torch.arange(first + 1, first + width + 1, dtype=torch.float64, device=worker.device)
        root = spectrum.sqrt()
        center = points.mean(dim=0)
        points.sub_(center).mul_(root)
        start = -(root * center)[:, None]
        noise = room.draw(2, seed, number, width).mul_(root)
        total += products(w.mul_(root), points, [(start, None), (start, noise)], [spectrum])
    return total, squares


def _nothing(samples: int, steps: int, worker: _Worker) -> tuple[Products, Tensor]:
    """Return the sums over no blocks of coordinates: inner products and squared lengths that are all zero, to which
    those of blocks are added. The sums are for `samples` samples and `steps` steps, on the worker's device."""

    def zeros(*shape: int) -> Tensor:
        return torch.zeros(shape, dtype=torch.float64, device=worker.device)

    def start(vector: bool) -> Start:
        drifts = (zeros(steps), zeros(steps + 1, 1), zeros(steps + 1, steps), zeros(steps + 1)) if vector else ()
        return Start(zeros(1), zeros(steps, 1), *drifts)

    starts = tuple((start(vector), start(vector)) for vector in (False, True))
    return Products(zeros(steps, samples), (zeros(steps, steps), zeros(steps, steps)), starts), zeros(steps)


def _share(
    part: tuple[Products, Tensor] | None, group: int, samples: int, steps: int, worker: _Worker
) -> tuple[Products, Tensor]:
    """Return the sums over a group of blocks of coordinates on every process. `group` is the group's number; the
    process whose rank is that number modulo the count of processes made the sums. It has them as `part` and sends them
    to the others, where `part` is None. They are for `samples` samples and `steps` steps. `worker` has this process's
    rank, the count of processes and the device."""
    found = _nothing(samples, steps, worker) if part is None else part
    if worker.count > 1:
        given, squares = found
        for tensor in (*given.tensors(), squares):
            dist.broadcast(tensor, src=group % worker.count)
    return found


def _scaled(given: Products, scale: Tensor) -> Products:
    """Return the inner products as they are after the direction of each step t has been multiplied by scale[t]. `given`
    are the inner products of samples, directions and noise, summed over all blocks."""
    column, both = scale[:, None], scale[:, None] * scale

    def start(one: Start) -> Start:
        own = None if one.drift_own is None else one.drift_own * scale
        cross = None if one.drift_cross is None else one.drift_cross * scale
        return replace(one, linear=one.linear * column, drift_own=own, drift_cross=cross)

    starts = tuple(tuple(start(one) for one in starts) for starts in given.starts)
    return Products(given.data * column, tuple(gram * both for gram in given.grams), starts)


REMAKES = {
    "dimension": Remake(
        KEY,
        lambda row: run_cell(PRESETS["full"], row["d"], row["seed"], _Worker(0, 1, "cpu")),
        varies=("seconds", "peak_mb"),
        elsewhere=SIX_DIGITS,
    )
}


def _body(parser: Parser, options: Namespace) -> int:
    """Run the combinations of dimension and seed that are not in the results yet, dimensions in ascending order.
    Returns the exit status."""
    device = chosen_device(parser, options.device)
    count = int(os.environ.get("WORLD_SIZE", "1"))
    if count > GROUPS:
        parser.error(f"torchrun --nproc-per-node must be at most {GROUPS} processes in all; got {count}")
    if count > 1:
        dist.init_process_group("nccl" if device == "cuda" else "gloo")
    worker = _Worker(dist.get_rank() if count > 1 else 0, count, device)
    if device == "cuda":
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")))
    preset = PRESETS[options.preset]
    results = Results(
        options.out or (Path("out") if options.preset == "smoke" else RESULTS) / "dimension",
        key=KEY,
        fields=FIELDS,
        seeds=range(options.seeds),
        device=f"{device}, {count} process{'es' * (count > 1)}",
        dtype="float64",
        settings={
            "samples": preset.samples,
            "records_per_sample": RECORDS_PER_SAMPLE,
            "epsilon": EPSILON,
            "delta": DELTA,
            "mode": "c",
            "noise": "seeded",
        },
        cell=("method", "d", "seed"),
    )
    cells = [(d, seed) for d in preset.dimensions for seed in range(options.seeds)]
    if worker.rank > 0:
        for cell in _todo(None, worker):
            run_cell(preset, *cell, worker)
        return 0
    with parser.opened("--out", results):
        for d, seed in _todo([cell for cell in cells if not _complete(results, preset, *cell)], worker):
            rows = run_cell(preset, d, seed, worker)
            results.add(row for row in rows if not results.done(**{name: row[name] for name in KEY}))
            best = {m: min(row["gradient_squared"] for row in rows if row["method"] == m) for m in METHODS}
            told = ", ".join(f"{method} {value:.4g}" for method, value in best.items())
            print(f"d={d} seed={seed}: best {told}, {rows[0]['seconds']} s, {rows[0]['peak_mb']} MB", flush=True)
    return 0


Todo = list[tuple[int, int]]


def _todo(mine: Todo | None, worker: _Worker) -> Todo:
    """Return on every process the pairs of dimension and seed that are left to run. Rank 0 passes them as `mine` and
    sends them to the others, which pass None. `worker` is this process's part in the work."""
    if worker.count == 1:
        return mine or []
    told = [mine]
    dist.broadcast_object_list(told, src=0)
    return told[0] or []


def _complete(results: Results, preset: Sizes, d: int, seed: int) -> bool:
    return all(
        results.done(method=method, d=d, seed=seed, steps=int(steps), step_size=float(step_size), clip=float(clip))
        for method in METHODS
        for lanes in [_lanes(preset, method, d, _rank(d))]
        for steps, step_size, clip in zip(lanes.steps, lanes.step_size, lanes.clip, strict=True)
    )


EXPERIMENT = Command(
    "dimension",
    __doc__,
    _body,
    [
        flag("--preset", choices=PRESETS, default="smoke"),
        flag("--seeds", type=integer(1, 1000), default=3),
        flag("--device", choices=("auto", "cpu", "cuda"), default="auto"),
        flag("--out", type=output_folder, help="folder (default: out/NAME, else benchmarks/results/NAME)"),
    ],
)
