"""Check the paper's Algorithms 1 and 2 as algorithms: their sensitivity, and the reference of the tests against the
printed lines."""

import numpy as np

from dpzero_theory.privacy.noise import SeededNoise
from paper_checks.checks.instances import largest_change, on_sphere, random_instance
from paper_checks.registry import Finding, agree, check
from tests.optim import reference


def _compare_reference(algorithm: int) -> None:
    """Compare a run of the tests' reference with Algorithm 1 or 2, each line written out as the paper prints it."""
    rng, steps, width, alpha = np.random.default_rng(33), 12, 0.3, 0.2
    problem, x = random_instance(rng, 5, 4, wave=True), rng.standard_normal(4)
    u, clip = on_sphere(rng.standard_normal((steps, 4))), 0.4 if algorithm == 2 else 0.8
    run = (reference.dpgd_0th if algorithm == 1 else reference.dpzero)(
        problem, x, steps=steps, step_size=alpha, smoothing=width, clip=clip, noise_std=0.05, noise=SeededNoise(9),
        directions=u,
    )  # fmt: skip
    source, path = SeededNoise(9), [x]
    for t in range(steps):
        difference = (problem.losses(x + width * u[t]) - problem.losses(x - width * u[t])) / (2 * width)
        z = source.gaussian(0.05, 4 if algorithm == 1 else 1)
        if algorithm == 1:
            rows = difference[:, None] * u[t]
            rows = rows * np.minimum(1, clip / np.linalg.norm(rows, axis=1, keepdims=True))
            x = x - alpha * (rows.mean(axis=0) + z)
        else:
            x = x - alpha * (np.mean(difference * np.minimum(1, clip / np.abs(difference))) + z) * u[t]
        path.append(x)
    agree("tests.optim.reference", np.array(run.trajectory), np.array(path), 1e-12)


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
