"""Check the paper's Algorithms 1 and 2 as algorithms: their sensitivity, the library's runs against the printed
lines, and attacks whose success is compared with the privacy that they have."""

import numpy as np

from dpzero_theory.privacy.noise import SeededNoise
from paper_checks.checks.instances import Array, Instance, largest_change, random_instance
from paper_checks.registry import Disagreement, Finding, agree, check
from tests.optim import reference


def _steps_by_hand(
    algorithm: int, problem: Instance, x0: Array, u: Array, z: Array, settings: dict[str, float]
) -> Array:
    """Return the iterates x_0, ..., x_T, shape (T + 1, d), of the paper's Algorithm 1 or 2 from x0, each line of the
    algorithm written out as the paper prints it.

    u, z: the directions and the noise, both of shape (T, d); Algorithm 2 uses the first coordinate of each z alone.
    settings: has "smoothing", "clip" and "step_size". problem: has the losses.
    """
    x, path = x0, [x0]
    width, clip, alpha = settings["smoothing"], settings["clip"], settings["step_size"]
    for t in range(u.shape[0]):
        difference = (problem.losses(x + width * u[t]) - problem.losses(x - width * u[t])) / (2 * width)
        if algorithm == 1:
            rows = difference[:, None] * u[t]
            rows = rows * np.minimum(1, clip / np.linalg.norm(rows, axis=1, keepdims=True))
            x = x - alpha * (rows.mean(axis=0) + z[t])
        else:
            x = x - alpha * (np.mean(difference * np.minimum(1, clip / np.abs(difference))) + z[t, 0]) * u[t]
        path.append(x)
    return np.array(path)


def _compare_reference(algorithm: int) -> float:
    rng = np.random.default_rng(33)
    problem = random_instance(rng, 5, 4, wave=True)
    x0, steps = rng.standard_normal(4), 12
    z = rng.standard_normal((steps, 4))
    u = 2 * z / np.linalg.norm(z, axis=1, keepdims=True)
    width, clip, alpha = 0.3, 0.4 if algorithm == 2 else 0.8, 0.2
    settings = {"smoothing": width, "clip": clip, "step_size": alpha}
    source = SeededNoise(9)
    sizes = 4 if algorithm == 1 else 1
    noise = np.array([np.atleast_1d(source.gaussian(0.05, sizes)) for _ in range(steps)])
    run = (reference.dpgd_0th if algorithm == 1 else reference.dpzero)(
        problem,
        x0,
        steps=steps,
        step_size=alpha,
        smoothing=width,
        clip=clip,
        noise_std=0.05,
        noise=SeededNoise(9),
        directions=u,
    )
    if run.trajectory is None:
        raise Disagreement("tests.optim.reference returned no trajectory")
    agree("tests.optim.reference", run.trajectory, _steps_by_hand(algorithm, problem, x0, u, noise, settings), 1e-12)
    return float(np.max(np.abs(run.trajectory)))


@check("algo1-sensitivity")
def _(full: bool) -> Finding:
    _compare_reference(1)
    rng, n, clip = np.random.default_rng(34), 4, 0.6
    draws = (5 * rng.standard_normal((n, 1)) * rng.standard_normal(3) for _ in range(500))
    largest = largest_change(draws, clip)
    return Finding(largest <= 2 * clip / n + 1e-12, numbers={"largest change/(2C/n)": largest / (2 * clip / n)})


@check("algo2-sensitivity")
def _(full: bool) -> Finding:
    _compare_reference(2)
    rng, n, clip = np.random.default_rng(35), 4, 0.6
    largest = largest_change((5 * rng.standard_normal((n, 1)) for _ in range(500)), clip)
    ratio = largest / (2 * clip / n)
    return Finding(abs(ratio - 1) < 1e-9, numbers={"largest change/(2C/n)": ratio})
