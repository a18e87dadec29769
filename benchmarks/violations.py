"""A hunt for a violation of the sharpened theorem.  python -m benchmarks violations

Each case is a row with a ratio of what happens to what the theorem allows; no ratio may exceed 1. There are two hunts:

- One step, without sampling error. In 3,000 cases a random problem's sample gradients are changed so that the ratio
grows. On a quadratic with Hessian H and as the smoothing lambda -> 0, the expected change of F over one step needs only
E[m'U'g] and E[m'U'HUm]. Here U has the K directions as columns, m is the clipped mean of the samples' K scalars, and g
is the gradient. For gradients along an eigenvector of H these are one-dimensional integrals in any d and for any K
(part `quadrature` for Gaussian directions, frames, and the sphere with K = 1). For random signs with K d <= 10 they are
finite sums (`enumeration`). The ratio is 1 minus what remains between the two sides of the theorem, as a share of G^2 +
K_0 - gap/alpha, in the theorem's letters. As lambda -> 0 all difference rules are the same.
- Whole runs at parameters near and away from the prescribed ones, on the worst convex family, its burst and its
lengthened slope (`member`), with 24 runs each and Gaussian directions. The ratio is (mean - 4.5 standard
errors)/certified, in 504 combinations of parameters with lambda -> 0.

The summary gives the ratio closest to 1 in each part.
"""

import itertools
import math
import time
from argparse import Namespace
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from functools import cache
from typing import Any

import numpy as np

from benchmarks.kit.experiment import Experiment
from benchmarks.kit.remake import Remake
from benchmarks.kit.rows import read_rows
from benchmarks.problems.hardest import hardest
from benchmarks.problems.worst_case import WorstCase, run
from dpzero_theory.check import Array, PreconditionError
from dpzero_theory.privacy.gaussian import gdp_from_epsilon
from dpzero_theory.theory.noise import noise_std
from dpzero_theory.theory.problem import Problem
from dpzero_theory.theory.sharp.certificate import certificate, prescribe
from dpzero_theory.theory.sharp.constants import constants

D = 2000
RECORDS = 10**9
"""The number of records of a loss of the worst family. The share of records whose gradients oppose the others' is
rounded to a multiple of 1/RECORDS."""
KEY = ("hunt", "part", "case")
FIELDS = ("law", "d", "r", "K", "clip", "step_size", "noise_std", "ratio", "seconds")
PARTS = {
    ("one step", "quadrature"): 2000,
    ("one step", "enumeration"): 1000,
    ("run", "runs"): 504,
}
"""The number of cases by hunt and part."""
CLIMBS = 12
STANDARD_ERRORS, RUN = 4.5, 24
"""For each combination of parameters RUN runs are made. STANDARD_ERRORS standard errors are subtracted from their mean
before it is compared with the certificate, so that chance alone exceeds no bound."""


def quadrature(gradients: Array, weights: Array, clip: float, law: str, d: int, k: int) -> tuple[Array, Array]:
    """Return E[m'U'g]/(K a) and the moments that make up E[m'U'HUm]/K^2, for sample gradients a_i e along one
    eigenvector e of the Hessian H, with the mean g = a e. The matrix U has the K directions as columns, and m is the
    mean of the samples' K scalars, which are clipped to norm c sqrt(K).

    Here y = U'e has length ||y|| = v sqrt(K), and m = sqrt(K) f(v) y/||y|| with f(v) the mean of sign(a_i) min(|a_i| v,
    c). Returned are E[f v] and the moments (E[f^2 v^2], E[f^2 w_1]), where w_1 is the mean, at the same v, of
    (y'U'e')^2/(K ||y||^2) for a unit vector e' orthogonal to e. With the eigenvalue h of e and the trace R of H, the
    second moment is h E[f^2 v^2] + (R - h) E[f^2 w_1], the part along e plus the part across it.

    gradients: the a_i. weights: those of the samples in the mean. clip: c. law: that of the directions in R^d. k: K.
    """
    v, w1, mass = _law(law, d, k, tuple(clip / abs(a) for a in gradients if a != 0))
    f = sum(w * np.sign(a) * np.minimum(abs(a) * v, clip) for w, a in zip(weights, gradients, strict=True))
    moments: Array = np.array([mass @ (f * f * v * v), mass @ (f * f * w1)])
    return np.array(mass @ (f * v)), moments


@cache
def _nodes() -> tuple[Array, Array]:
    x, w = np.polynomial.legendre.leggauss(160)
    return (x + 1) / 2, w / 2


def _law(law: str, d: int, k: int, kinks: Sequence[float]) -> tuple[Array, Array, Array]:
    """Return a quadrature rule for v = ||U'e||/sqrt(K), for K = `k` directions U of a law and a unit vector e in R^d:
    its nodes v, at each node the mean of (e'UU'f)^2/(K ||U'e||^2) for a unit vector f orthogonal to e, and the masses.
    The rule is Gauss-Legendre between the points `kinks`, at which clipping begins."""
    gaussian = law == "gaussian"
    if not gaussian and d == k:
        one = np.ones(1)
        return one, 0 * one, one
    scale = 1.0 if gaussian else math.sqrt(d / k)
    mode = 1.0 if gaussian else math.atan2(math.sqrt(k), math.sqrt(d - k))
    width = 12 / math.sqrt(k if gaussian else d)
    low, high = max(0.0, mode - width), mode + width if gaussian else min(mode + width, math.pi / 2)
    at = [c if gaussian else math.asin(min(c / scale, 1.0)) for c in kinks]
    edges = np.array(sorted({low, mode, high, *(x for x in at if low < x < high)}))
    nodes, weights = _nodes()
    x = (edges[:-1, None] + np.diff(edges)[:, None] * nodes).ravel()
    w = (np.diff(edges)[:, None] * weights).ravel()
    if gaussian:
        v, across = x, np.full_like(x, 1 / k)
        log = (k - 1) * np.log(v) - k * v * v / 2
    else:  # the directions are a frame, or on the sphere with K = 1
        v = scale * np.sin(x)
        across = (d - k * v * v) / ((d - 1) * k)
        log = (k - 1) * np.log(np.sin(x)) + (d - k - 1) * np.log(np.cos(x))
    mass = w * np.exp(log - log.max())
    return v, across, mass / mass.sum()


def enumerated(gradients: Array, weights: Array, clip: float, k: int, curvature: Array) -> tuple[float, float]:
    """Return E[m'U'g]/K and E[m'U'HUm]/K^2 as sums over all matrices U of k random signs in R^d. Here m is the clipped
    mean, by `weights`, of the samples' K = k scalars, g the mean gradient, and H the diagonal matrix `curvature`.
    `gradients` has shape (n, d), and `clip` bounds the norm of a sample's K scalars."""
    d = gradients.shape[1]
    signs = np.array(list(itertools.product((-1.0, 1.0), repeat=k * d))).reshape(-1, k, d)
    s = signs @ gradients.T
    s *= np.minimum(1, clip / np.maximum(np.linalg.norm(s, axis=1, keepdims=True), 1e-300))
    m = s @ weights
    g = weights @ gradients
    moved = np.einsum("sk,skd->sd", m, signs)
    return float((moved @ g).mean()) / k, float(((moved * moved) @ curvature).mean()) / k**2


def one_step(part: str, case: int) -> dict[str, Any]:
    """Return the row of a random problem of a part, after its sample gradients have been changed step by step so that
    the ratio of what happens to what the theorem allows grows. `part` is "quadrature" or "enumeration", as
    the module says, and `case` is the seed."""
    rng = np.random.default_rng([case, len(part)])
    if part == "quadrature":
        law = str(rng.choice(["gaussian", "sphere", "frame"]))
        k = 1 if law == "sphere" else int(2 ** rng.integers(0, 7))
        d = max(int(10 ** rng.uniform(0, 4)), k if law == "frame" else 1)
        n = int(rng.integers(1, 4))
        r = float(d ** rng.uniform(0, 1))
        start = np.clip(rng.normal(0.4, 0.8, n), -1, 1)
    else:
        law, k = "rademacher", int(rng.integers(1, 4))
        d = int(rng.integers(1, 10 // k + 1))
        n = int(rng.integers(1, 4))
        spectrum = np.sort(rng.random(d) ** rng.choice([0.0, 1.0, 4.0]))[::-1]
        spectrum /= spectrum[0]
        r = float(spectrum.sum())
        start = rng.standard_normal((n, d))
        start /= np.maximum(np.linalg.norm(start, axis=-1, keepdims=True), 1)
    clip = float(rng.uniform(0.3, 3 if k == 1 else 1 + 2 / math.sqrt(k)))
    weights = rng.dirichlet(np.ones(n))
    found = constants(np.array([clip]), d, r, law, directions_per_step=k)
    largest = 1.9 * float(found.kept[0]) / max(float(found.quadratic[0]), 1e-3)
    alpha, sigma = (
        float(min(largest, 2.0) * rng.uniform(0, 1) ** 2 + 1e-6),
        float(rng.choice([0.0, rng.uniform(0, 0.2)])),
    )
    stated = certificate(
        Problem(n=1000, d=d, r=r),
        step_size=alpha,
        steps=1,
        clip=clip * math.sqrt(k),
        smoothing=1e-200,
        noise_std=sigma,
        direction=law,
        directions_per_step=k,
    )

    def ratio(gradients: Array) -> float:
        if part != "enumeration":
            g = abs(float(weights @ gradients))
            kept, (along, across) = quadrature(gradients, weights, clip, law, d, k)
            inner, second = float(kept) * float(weights @ gradients), along + (r - 1) * across
        else:
            g = float(np.linalg.norm(weights @ gradients))
            inner, second = enumerated(gradients, weights, clip * math.sqrt(k), k, spectrum)
        cost = alpha / 2 * (second + r * sigma**2 / k) - inner
        return _ratio(cost, stated.progress * g * g - stated.drift * g, stated.floor - 1 / alpha, g)

    best, at = ratio(start), start
    for climb in range(CLIMBS):
        other = at + 0.5 ** (climb / 3) * rng.standard_normal(at.shape)
        size = np.abs(other) if part != "enumeration" else np.linalg.norm(other, axis=1, keepdims=True)
        other = other / np.maximum(size, 1)
        value = ratio(other)
        if value > best:
            best, at = value, other
    names = {"law": law, "d": d, "r": r, "K": k, "clip": clip, "step_size": alpha, "noise_std": sigma}
    return {**names, "ratio": float(best)}


def _ratio(cost: float, progress: float, floor: float, g: float) -> float:
    """Return 1 - (floor - progress - cost)/(G^2 + floor), which is above 1 if the theorem's inequality cost <= floor -
    progress is violated. cost: the expected change of F in a step, over the step size. progress, floor: the terms of
    the theorem with and without the gradient norm G, which is `g`."""
    return 1 - (floor - progress - cost) / (g * g + floor + 1e-9)


def whole_run(case: int) -> dict[str, Any]:
    """Return the row of a random prescription, whose step size and clip are multiplied by random factors in every
    second case, with runs at these parameters on a loss of `problems.worst_case` that is hard for them, the member
    "mean", "long" or "burst" in turn. `case` is the seed."""
    rng = np.random.default_rng([case, 99])
    n, epsilon = int(10 ** rng.uniform(3, 6)), float(rng.choice([0.5, 2.0, 8.0]))
    r, k = float(10 ** rng.uniform(0, 2.3)), int(2 ** rng.integers(0, 7))
    problem = Problem(n=n, d=D, r=r)
    gdp = float(gdp_from_epsilon(epsilon, 1e-6))
    steps = int(10 ** rng.uniform(2, 3.5))
    p = prescribe(problem, gdp, max_steps=steps, direction="gaussian", directions_per_step=k)
    factors = np.exp(rng.normal(0, 0.4, 2)) if case % 2 else np.ones(2)
    clip = p.clip * float(factors[1])
    at: dict[str, Any] = {
        "step_size": p.step_size * float(factors[0]),
        "steps": steps,
        "clip": clip,
        "noise_std": noise_std(gdp, steps, clip, n, "replace-one"),
        "directions_per_step": k,
    }
    bound = certificate(problem, **at, smoothing=p.smoothing, direction="gaussian").bound
    names = {"law": "gaussian", "d": D, "r": r, "K": k, "clip": clip / math.sqrt(k), "step_size": at["step_size"]}
    names |= {"noise_std": at["noise_std"]}
    try:
        loss = member(("mean", "long", "burst")[case % 3], problem, at)
    except PreconditionError:
        return {**names, "ratio": 0.0}
    mean = run(loss, **at, chains=RUN, rng=rng).mean
    low = float(mean.mean()) - STANDARD_ERRORS * float(mean.std()) / math.sqrt(RUN)
    return {**names, "ratio": low / bound}


def member(name: str, problem: Problem, at: dict[str, Any]) -> WorstCase:
    """Return the loss of the family of `problems.worst_case` that is worst for a run with the parameters `at` (step
    size, steps, clip, noise and directions per step), among problems with the constants of `problem`: "mean" for the
    mean over the run, "long" with a slope that is longer by three standard deviations, and "burst" with a slope that a
    run leaves after few steps."""
    h = hardest(problem, **at, lengthened=3.0 if name == "long" else 0.0)
    given = {key: value for key, value in asdict(h).items() if key not in ("share", "slope", "drift", "bound")}
    opposing = round((1 - h.share) * RECORDS)
    if name == "burst":
        start = problem.gap / h.forward + h.width / 2
        given |= {"backward": 0.0, "start": start, "curvature": (problem.r - 1) / h.curved}
        opposing = 0
    return WorstCase(n=RECORDS, d=max(D, h.curved + 1), opposing=opposing, **given)


def _cases() -> Iterator[tuple[str, str, int]]:
    for (hunt, part), count in PARTS.items():
        yield from ((hunt, part, case) for case in range(count))


def _row(hunt: str, part: str, case: int) -> dict[str, Any]:
    started = time.perf_counter()
    row = whole_run(case) if hunt == "run" else one_step(part, case)
    seconds = round(time.perf_counter() - started, 3)
    short = {name: float(f"{x:.10g}") if isinstance(x, float) else x for name, x in row.items()}
    return {"hunt": hunt, "part": part, "case": case, **short, "seconds": seconds}


REMAKES = {"violations": Remake(KEY, lambda row: [_row(row["hunt"], row["part"], row["case"])], varies=("seconds",))}


def _report(options: Namespace) -> int:
    """Print the ratio closest to 1 in each part. Returns 1 if a ratio exceeds 1, else 0."""
    table = read_rows(options.out)
    for (hunt, part), group in table.groupby(["hunt", "part"], sort=False):
        worst = group.sort_values("ratio").iloc[-1]
        print(
            f"{hunt}, {part}: {len(group):,} cases, largest ratio {worst['ratio']:.5f} "
            f"({worst['law']}, d = {worst['d']}, K = {worst['K']}, r = {worst['r']:.3g}, c = {worst['clip']:.3g})"
        )
    return int(bool((table["ratio"] > 1 + 1e-9).any()))


def _measure(options: Namespace, at: dict[str, Any]) -> dict[str, Any]:
    return _row(**at)


EXPERIMENT = Experiment(
    name="violations",
    about=__doc__,
    key=KEY,
    fields=FIELDS,
    seeds=[0],
    compress=True,
    cells=lambda options: (dict(zip(KEY, case, strict=True)) for case in _cases()),
    measure=_measure,
    workers=1,
    report=_report,
)
