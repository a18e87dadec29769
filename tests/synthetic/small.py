"""Random settings of runs on small quadratics, and the runs that the reference algorithms make with them."""

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpzero_theory.privacy.noise import SeededNoise
from dpzero_theory.synthetic import engine
from dpzero_theory.synthetic.lanes import Draw, Lanes
from dpzero_theory.synthetic.problems import Quadratic, paper_spectrum
from tests.optim import reference

Array = NDArray[np.float64]
TOLERANCE = 1e-9


def quadratic(seed: int, n: int, d: int, mode: str) -> Quadratic:
    rng = np.random.default_rng(seed)
    return Quadratic(1 + rng.standard_normal((n, d)), paper_spectrum(mode, d))


def lanes(seed: int, count: int, longest: int) -> Lanes:
    """Returns `count` random settings of runs of at most `longest` steps; `seed` selects them.

    Clipping goes from never to always, and noise from none to dominant.
    """
    rng = np.random.default_rng(seed)
    noise_std = np.where(rng.random(count) < 0.2, 0.0, 10 ** rng.uniform(-3, 1, count))
    return Lanes.of(
        steps=rng.integers(1, longest + 1, count),
        step_size=10 ** rng.uniform(-4, 0, count),
        clip=10 ** rng.uniform(-2, 3, count),
        noise_std=noise_std,
    )


def runs(
    method: Callable[..., reference.ReferenceRun], x0: Array, grid: Lanes, u: Array | None, **same: Any
) -> list[Array]:
    """Returns the iterates, shape (T + 1, d), of a run of the reference algorithm for each setting.

    Args:
        method: the reference algorithm.
        x0: the start.
        grid: the settings.
        u: the directions of the steps, or None.
        same: further arguments that are the same for all runs.
    """
    found = []
    for lane in range(len(grid)):
        options: dict[str, Any] = {
            "steps": int(grid.steps[lane]),
            "step_size": float(grid.step_size[lane]),
            "clip": float(grid.clip[lane]),
            "noise_std": float(grid.noise_std[lane]),
            "noise": SeededNoise(7),
            **same,
        }
        if u is not None:
            rows = int(grid.steps[lane]) * same.get("directions_per_step", 1)
            options |= {"directions": u[:rows], "smoothing": float(grid.smoothing[lane])}
        trajectory = method(x0=x0, **options).trajectory
        assert trajectory is not None
        found.append(trajectory)
    return found


def close(actual: Array, expected: Array) -> None:
    np.testing.assert_allclose(actual, expected, rtol=TOLERANCE, atol=TOLERANCE)


CASES = [
    # The columns are seed, number of samples n, dimension d, spectrum, start, and block of directions.
    (1, 1, 1, "a", 0.0, 128),
    (2, 7, 3, "b", 5.0, 4),
    (3, 200, 20, "c", 0.0, 128),
    (4, 50, 60, "a", -2.0, 7),
    (5, 300, 40, "b", 0.0, 1),
]


def close_forms(outcome: engine.Outcome, problem: Quadratic, expected: list[Array], centers: list[Array]) -> None:
    for index, center in enumerate(centers):
        offsets = [run[:-1] - center for run in expected]
        gradients = [((problem.spectrum * z) ** 2).sum(axis=1).mean() for z in offsets]
        excess = [(problem.spectrum * z * z).sum(axis=1).mean() / 2 for z in offsets]
        close(outcome.gradient_squared[index], np.array(gradients))
        close(outcome.excess[index], np.array(excess))


def from_array(rows: Array) -> Draw:
    """Returns a stream that hands out the rows of an array; asking for more than there are raises ValueError."""
    position = 0

    def draw(count: int) -> Array:
        nonlocal position
        if position + count > len(rows):
            raise ValueError(f"rows must number at least {position + count}; got {len(rows)}")
        position += count
        return rows[position - count : position]

    return draw
