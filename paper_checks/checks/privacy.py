"""Check the paper's definitions and its claims about privacy: sensitivities by brute force, and divergences by
arithmetic that shares nothing with the library."""

import itertools
import math
from functools import cache

import numpy as np

from dpzero_theory.optim.step.algorithm import clip_jointly
from dpzero_theory.privacy import gaussian
from dpzero_theory.theory import noise as theory_noise
from paper_checks import formulas as f
from paper_checks.checks.divergence import (
    DELTAS,
    hockey_stick,
    lemma_gdp,
    lemma_limit,
    region,
)
from paper_checks.checks.instances import largest_change, on_sphere
from paper_checks.registry import Finding, agree, check


@check("def-neighbouring")
def _(full: bool) -> Finding:
    values, holds = range(3), True
    data = list(itertools.product(values, repeat=3))
    for s, t in itertools.product(data, repeat=2):
        removed = sum(max(s.count(v) - t.count(v), 0) for v in values)
        added = sum(max(t.count(v) - s.count(v), 0) for v in values)
        orders = itertools.permutations(t)
        replaced = min(sum(a != b for a, b in zip(s, order, strict=True)) for order in orders) == 1
        holds &= (max(removed, added) == 1) == replaced
    return Finding(holds)


@check("def-clip")
def _(full: bool) -> Finding:
    rng = np.random.default_rng(31)
    holds = True
    for d in (1, 2, 5):
        x, y = (rng.standard_normal((20_000, d)) * np.exp(rng.normal(size=(20_000, 1))) for _ in range(2))
        norms = np.linalg.norm(x, axis=1, keepdims=True)
        cx = x * np.minimum(1, 1.3 / norms)
        cy = y * np.minimum(1, 1.3 / np.linalg.norm(y, axis=1, keepdims=True))
        holds &= bool(np.all(np.linalg.norm(cx, axis=1) <= 1.3 * (1 + 1e-14)))
        holds &= bool(np.all(np.linalg.norm(cx - cy, axis=1) <= np.linalg.norm(x - y, axis=1) + 1e-12))
        agree("estimator.clip_jointly", clip_jointly(x, 1.3), cx, 1e-13)
        one = x[:, :1]
        agree("estimator.clip_jointly", clip_jointly(one, 1.3), one * np.minimum(1, 1.3 / np.abs(one)), 1e-13)
    return Finding(holds)


@check("dpgd-sensitivity")
def _(full: bool) -> Finding:
    rng, n, clip = np.random.default_rng(32), 5, 0.7
    largest = largest_change((3 * rng.standard_normal((n, 3)) for _ in range(2000)), clip)
    agree("theory.noise.noise_std", theory_noise.noise_std(1, 1, clip, n, "replace-one"), 2 * clip / n)
    agree("theory.noise.noise_std", theory_noise.noise_std(1, 1, clip, n, "add-remove"), clip / n)
    ratio = largest / (2 * clip / n)
    return Finding(abs(ratio - 1) < 1e-9, numbers={"largest change/(2C/n)": ratio})


@check("composition-lemma")
def _(full: bool) -> Finding:
    everywhere, below = region(full)
    limits = {delta: lemma_limit(delta) for delta in DELTAS}
    for epsilon, delta in ((0.3, 1e-5), (2.0, 1e-6), (40.0, 0.01)):
        agree("theory.noise.paper_gdp", theory_noise.paper_gdp(epsilon, delta), lemma_gdp(epsilon, delta))
        exact = hockey_stick(epsilon, lemma_gdp(epsilon, delta))
        agree("gaussian.delta_from_gdp", gaussian.delta_from_gdp(epsilon, lemma_gdp(epsilon, delta)), exact, 1e-9)
    numbers: dict[str, float | str] = {f"valid up to epsilon, delta = {k:g}": v for k, v in limits.items()}
    return Finding(everywhere <= 1, repaired=below <= 1 + 1e-6, numbers=numbers)


_LOSSES = 100_000


def _adaptive_delta(
    rng: np.random.Generator, shift: float, steps: int, epsilon: float, stops: bool
) -> tuple[float, float]:
    """Estimate delta(epsilon) of `steps` vector releases in R^3 whose queries depend on earlier releases, from
    `_LOSSES` runs drawn with `rng`, and return it with its standard error.

    Each query's sensitivity is a vector of length `shift`, where the noise has standard deviation 1. Its direction
    depends on the last release. With `stops` the length is 0 as long as the privacy loss is above the mean that it has
    without stopping. The estimate is the mean of (1 - e^{epsilon - loss})_+ over releases on the first data set.
    """
    direction = np.tile(np.eye(3)[0], (_LOSSES, 1))
    loss, length = np.zeros(_LOSSES), np.full(_LOSSES, shift)
    for t in range(steps):
        mean = length[:, None] * direction
        y = mean + rng.standard_normal(mean.shape)
        loss += (
            np.sum(y**2 - (y - mean) ** 2, axis=1) / 2
            # the added term is the logarithm of the density of N(mean, I) over that of N(0, I)
        )
        direction = np.cross(y, direction) if t % 2 else y[:, [1, 2, 0]]
        direction /= np.linalg.norm(direction, axis=1, keepdims=True)
        if stops:
            length = np.where(loss > (t + 1) * shift**2 / 2, 0.0, shift)
    gain = np.maximum(1 - np.exp(epsilon - loss), 0)
    return float(gain.mean()), float(gain.std()) / math.sqrt(_LOSSES)


@check("composition-adaptive-vectors")
def _(full: bool) -> Finding:
    rng, steps, scores, below = np.random.default_rng(39), 4, [], []
    for shift, epsilon in ((0.5, 0.5), (0.8, 1.0)):
        claimed = hockey_stick(epsilon, math.sqrt(steps) * shift)
        delta, error = _adaptive_delta(rng, shift, steps, epsilon, stops=False)
        scores.append(abs(delta - claimed) / error)
        delta, error = _adaptive_delta(rng, shift, steps, epsilon, stops=True)
        below.append((delta - claimed) / error)
    numbers = {"largest z-score": max(scores), "z-score of one who stops": max(below)}
    return Finding(max(scores) < 4.5 and max(below) < 4.5, numbers=numbers)


@check("variance-sigma")
def _(full: bool) -> Finding:
    def gdp(scale: float, variance: bool) -> float:
        n, clip, steps, epsilon, delta = 1000, 2.0 * scale, 50, 2.0, 1e-6
        level = 4 * clip * math.sqrt(2 * steps * math.log(math.e + epsilon / delta)) / (n * epsilon)
        return math.sqrt(steps) * 2 * clip / n / (math.sqrt(level) if variance else level)

    printed = abs(gdp(100, True) / gdp(1, True) - 1) < 1e-9
    repaired = abs(gdp(100, False) / lemma_gdp(2, 1e-6) - 1) < 1e-12
    lemma = lemma_gdp(2, 1e-6)
    agree(
        "theory.noise.noise_std",
        theory_noise.noise_std(lemma, 50, 2.0, 1000, "replace-one"),
        2 * 2.0 / 1000 * math.sqrt(50) / lemma,
    )
    return Finding(
        printed, repaired, numbers={"mu at 100 times the loss, as a variance": gdp(100, True) / gdp(1, True)}
    )


def _theorem_privacy(id: str) -> Finding:
    """Check that the algorithm of the theorem `id` ("thm1" to "thm3") is (epsilon, delta)-DP for any epsilon, as its
    theorem says.

    mu of the whole run follows from the theorem's clip C and number of steps T, a sensitivity found by brute force, and
    the noise's standard deviation sigma as printed. Then delta(epsilon) of mu-GDP is computed to 60 digits, for epsilon
    from 0.01 to 2,000 at three delta, and close to `lemma_limit`, the epsilon at which the composition lemma stops
    holding. The finding's `stated` says whether delta(epsilon) is never above the delta asked for, and `repaired`
    whether it is not above it for epsilon up to `lemma_limit` and is above it just past `lemma_limit`.
    """
    statement, everywhere, below, past, n = f.STATEMENTS[id], 0.0, 0.0, math.inf, 5
    point = f.paper_points(1)[0] | {"n": n}
    for delta in (0.1, 1e-5, 1e-10):
        limit = lemma_limit(delta)
        for epsilon in [*np.geomspace(0.01, 2000, 12).tolist(), 0.999 * limit, 1.001 * limit]:
            free = {**point, "eps": epsilon, "delta": delta, "n": 10**6}
            steps, clip = max(1, round(f.value(statement.T, free))), f.value(statement.C, free)
            sigma = f.value(f.noise, {**free, "n": n, "T": steps, "C": clip})
            gdp = math.sqrt(steps) * _relative_change(id[-1], n) * clip / sigma
            ratio = hockey_stick(epsilon, gdp) / delta
            everywhere = max(everywhere, ratio)
            if epsilon <= limit:
                below = max(below, ratio)
            elif epsilon < 1.01 * limit:
                past = min(past, ratio)
    numbers: dict[str, float | str] = {
        "largest delta/claimed, any epsilon": everywhere,
        "the same below the lemma's limit": below,
        "limit at delta = 1e-6": lemma_limit(1e-6),
    }
    return Finding(everywhere <= 1, repaired=below <= 1 < past, numbers=numbers)


@cache
def _relative_change(theorem: str, n: int) -> float:
    """Return the largest Euclidean norm of the change of the average that the theorem's algorithm releases, before
    noise and over the clip, when one of n records is replaced (200 random trials, seed 40, d = 3). The records'
    gradients are long, so that most are clipped."""
    rng = np.random.default_rng(40)
    draws = ((on_sphere(rng.standard_normal(3)), 10 * rng.standard_normal((n, 3))) for _ in range(200))
    return largest_change(((g @ u)[:, None] * (np.ones(1) if theorem == "3" else u) for u, g in draws), 1.0)


for _id in ("thm1-privacy", "thm2-privacy", "thm3-privacy"):
    check(_id)(lambda full, _id=_id: _theorem_privacy(_id.partition("-")[0]))  # type: ignore[misc]


@check("direction-public")
def _(full: bool) -> Finding:
    rng, n, clip, ratios = np.random.default_rng(37), 4, 0.6, []
    laws = (lambda: rng.standard_normal(3), lambda: np.eye(3)[0], lambda: rng.standard_cauchy(3))
    for law in laws:
        draws = ((10 * rng.standard_normal((n, 3)) @ law())[:, None] for _ in range(300))
        ratios.append(largest_change(draws, clip) / (2 * clip / n))
    holds = max(ratios) <= 1 + 1e-12 and min(ratios) > 0.999
    return Finding(holds, numbers={"largest change/(2C/n)": max(ratios), "least over the laws": min(ratios)})
