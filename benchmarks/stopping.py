"""Runs that stop by what they released: the curve that is safe to stop at, and the old claim, against the best rule.

    python -m benchmarks stopping

The best rule for stopping is found by value iteration, of 500 random plans (sampling, relation, noise, number of steps,
looks, delta). It shares no code with `privacy.stopping`: losses come from quadrature over the outputs, without rounding
to a side, on a finer grid, and blocks of steps from Fourier transforms. `safe` is the delta that the rule attains
against the curve, and `old` what it attains against "epsilon of the steps made", both as shares of the delta that is
claimed: above 1 the claim is broken. `rounding` is the difference to a grid of half as many points; where the record is
seldom in a batch the error has been up to 2.5 times as much, on grids 8 times finer, so that 3 times it is allowed for.
"""

import math
import time
from argparse import Namespace
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.signal import fftconvolve
from scipy.stats import norm

from benchmarks.kit.experiment import Cell, Experiment
from benchmarks.kit.rows import RESULTS, read_rows
from dpzero_theory.privacy.accountant import epsilon_of_history
from dpzero_theory.privacy.calibration import calibrate_noise_multiplier
from dpzero_theory.privacy.sampling import FixedSize, FullBatch, Poisson, Sampling
from dpzero_theory.privacy.step import Step
from dpzero_theory.privacy.stopping import stopping_curve

SEED, PLANS = 20_261_127, 500
Floats = NDArray[np.float64]


def plans(options: Namespace) -> Iterator[Cell]:
    """Yield the numbers of the plans."""
    for number in range(1, PLANS + 1):
        yield {"setting": number}


def drawn(number: int) -> tuple[Step, int, int, float]:
    """Return the random plan with this number: a step, the number of steps, how many are between looks, and delta."""
    rng = np.random.default_rng((SEED, number))
    kind = rng.choice(["full", "poisson", "poisson", "fixed-size"])
    relation = "add-remove" if kind == "fixed-size" else str(rng.choice(["add-remove", "replace-one"]))
    rate = math.exp(rng.uniform(math.log(0.02), math.log(0.7)))
    steps = int(math.exp(rng.uniform(math.log(2), math.log(400))))
    every = max(1, math.ceil(steps / rng.integers(2, 21)))
    delta = 10 ** rng.uniform(-8, -2)
    batches: Sampling = FullBatch()
    if kind != "full":
        batches = Poisson(rate) if kind == "poisson" else FixedSize(round(200 * rate) / 200)
    epsilon = math.exp(rng.uniform(math.log(0.3), math.log(5)))
    found = calibrate_noise_multiplier(
        target_epsilon=epsilon, target_delta=delta, steps=steps, sampling=batches, relation=relation
    )
    return Step(float(f"{found.upper:.6g}"), batches, relation), steps, every, delta


def losses(step: Step, reverse: bool) -> tuple[Floats, Floats]:
    """Return losses of one release and their probabilities under the first law, by quadrature over its outputs."""
    q = step.sampling.sample_rate
    # Exchanging a record for one outside a batch of fixed size moves the sum by two clips.
    s = step.noise / (2 if isinstance(step.sampling, FixedSize) else 1)
    x = np.linspace(-1 - 9 * s, 1 + 9 * s, 10_001)
    without = norm.logpdf(x, 0, s)

    def mixed(mean: float) -> Floats:
        inside = math.log(q) + norm.logpdf(x, mean, s)
        return np.asarray(inside if q == 1 else np.logaddexp(math.log1p(-q) + without, inside))

    first, second = mixed(1.0), mixed(-1.0) if str(step.relation) == "replace-one" else without
    if reverse:
        first, second = second, first
    mass = np.exp(first)
    return first - second, mass / mass.sum()


def attained(step: Step, looks: Sequence[int], epsilons: Sequence[float], fineness: int = 24) -> float:
    """Return the delta that the best rule for stopping attains against these claims at these looks."""
    found = 0.0
    for reverse in (False, True):
        loss, mass = losses(step, reverse)
        mean = float(mass @ loss)
        deviation = math.sqrt(float(mass @ (loss - mean) ** 2))
        reach = max(epsilons) + 5.0
        h = max(deviation / fineness, reach / (250 * fineness))
        n = math.ceil(reach / h)
        place = np.clip(loss / h + n, 1, 2 * n - 1)
        near = np.rint(place).astype(int)
        off = place - near
        one = np.zeros(2 * n + 1)
        # Three points of the grid for each loss, so that the mean and the variance are kept.
        for at_point, share in ((near - 1, off * (off - 1) / 2), (near, 1 - off**2), (near + 1, off * (off + 1) / 2)):
            one += np.bincount(at_point, mass * share, 2 * n + 1)
        counts = np.diff([0, *looks]).tolist()
        laws = {count: composed(one, count) for count in set(counts)}
        at = (np.arange(2 * n + 1) - n) * h
        value: Floats = np.zeros(2 * n + 1)
        for count, epsilon in zip(reversed(counts), reversed(epsilons), strict=True):
            value = np.maximum(value, -np.expm1(epsilon - at))
            padded = np.concatenate([np.full(n, value[0]), value, np.full(n, value[-1])])
            value = np.maximum(fftconvolve(padded, laws[count][::-1], "valid"), 0.0)
        found = max(found, float(value[n]))
    return found


def composed(one: Floats, count: int) -> Floats:
    """Return the law of the sum of `count` losses on the same grid, by a power of a Fourier transform."""
    n = (len(one) - 1) // 2
    size = 4 * len(one)
    power = np.fft.irfft(np.fft.rfft(np.roll(np.pad(one, (0, size - len(one))), -n)) ** count, size)
    return np.maximum(np.roll(power, n)[: len(one)], 0.0)


def compared(cell: Cell) -> dict[str, Any]:
    """Return the row of the plan with the number cell["setting"]."""
    step, steps, every, delta = drawn(cell["setting"])
    began = time.process_time()
    curve = stopping_curve(step, steps, every, delta)
    seconds = time.process_time() - began
    old = [epsilon_of_history(step * count, delta).upper for count in curve.looks]
    safe, coarse = (attained(step, curve.looks, curve.epsilons, fineness) / delta for fineness in (24, 12))
    return cell | {
        "sampling": step.sampling.word, "rate": step.sampling.sample_rate, "relation": str(step.relation),
        "noise": step.noise, "steps": steps, "every": every, "looks": len(curve.looks), "delta": delta,
        "epsilon": old[-1], "half": curve.at((steps + 1) // 2), "raised": curve.epsilons[-1] - old[-1],
        "safe": safe, "rounding": abs(safe - coarse), "old": attained(step, curve.looks, old) / delta,
        "seconds": round(seconds, 3), "status": "ok",
    }  # fmt: skip


def summary() -> str:
    """Return in words what the committed rows say."""
    rows = read_rows(RESULTS / "stopping")
    return (
        f"Of {len(rows)} random plans the best rule breaks the old claim in {int((rows['old'] > 1.01).sum())}, with"
        f" {rows['old'].median():.2f} times its delta in the median and {rows['old'].max():.1f} at most; the curve in"
        f" {int((rows['safe'] > 1 + 3 * rows['rounding']).sum())}, with {rows['safe'].median():.3f} and"
        f" {rows['safe'].max():.4f}. D is {rows['raised'].median():.3f} in the median, and"
        f" {(rows['raised'] / rows['epsilon']).median():.1%} of the plan's epsilon."
    )


def _measure(options: Namespace, cell: Cell) -> Cell:
    return compared(cell)


EXPERIMENT = Experiment(
    name="stopping",
    about=__doc__,
    key=("setting",),
    fields=("sampling", "rate", "relation", "noise", "steps", "every", "looks", "delta", "epsilon", "half", "raised",
            "safe", "rounding", "old", "seconds"),
    seeds=[SEED],
    cells=plans,
    measure=_measure,
    workers=2,
)  # fmt: skip
