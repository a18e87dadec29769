"""Definitions and privacy claims: sensitivities by brute force, divergences by our own arithmetic."""

import itertools
import math

import numpy as np

from dpzero_theory.optim.estimator import clip_scalars, clip_vectors
from dpzero_theory.privacy import gaussian
from paper_checks.checks.divergence import DELTAS, hockey_stick, least_epsilon, lemma_gdp, lemma_limit, region
from paper_checks.registry import Finding, Plot, agree, check


@check("def-neighbouring")
def _(full: bool) -> Finding:
    """Datasets of equal size 3 over 3 values: max{|S - S'|, |S' - S|} = 1 as multisets means one record replaced."""
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
    """|clip_C(x)| <= C, clip_C(x) = x inside, 1-Lipschitz; scalars and vectors, seed 31, 20,000 pairs."""
    rng = np.random.default_rng(31)
    holds = True
    for d in (1, 2, 5):
        x, y = (rng.standard_normal((20_000, d)) * np.exp(rng.normal(size=(20_000, 1))) for _ in range(2))
        norms = np.linalg.norm(x, axis=1, keepdims=True)
        cx = x * np.minimum(1, 1.3 / norms)
        cy = y * np.minimum(1, 1.3 / np.linalg.norm(y, axis=1, keepdims=True))
        holds &= bool(np.all(np.linalg.norm(cx, axis=1) <= 1.3 * (1 + 1e-14)))
        holds &= bool(np.all(np.linalg.norm(cx - cy, axis=1) <= np.linalg.norm(x - y, axis=1) + 1e-12))
        agree("estimator.clip_vectors", clip_vectors(x, 1.3), cx, 1e-13)
        agree("estimator.clip_scalars", clip_scalars(x, 1.3), x * np.minimum(1, 1.3 / np.abs(x)), 1e-13)
    return Finding(holds)


@check("dpgd-sensitivity")
def _(full: bool) -> Finding:
    """sup |A(S) - A(S')|, A the mean of n = 5 clipped vectors: attained by opposite clipped vectors, never passed."""
    rng, n, clip, largest = np.random.default_rng(32), 5, 0.7, 0.0
    for _ in range(2000):
        rows = rng.standard_normal((n, 3)) * 3
        other = rows.copy()
        other[0] = -rows[0] * rng.uniform(0.5, 2)
        clipped = [v * np.minimum(1, clip / np.linalg.norm(v, axis=1, keepdims=True)) for v in (rows, other)]
        largest = max(largest, float(np.linalg.norm(clipped[0].mean(axis=0) - clipped[1].mean(axis=0))))
    agree("gaussian.sensitivity", gaussian.sensitivity(clip, n, "replace-one"), 2 * clip / n)
    agree("gaussian.sensitivity", gaussian.sensitivity(clip, n, "add-remove"), clip / n)
    ratio = largest / (2 * clip / n)
    return Finding(abs(ratio - 1) < 1e-9, numbers={"largest change/(2C/n)": ratio})


@check("composition-lemma")
def _(full: bool) -> Finding:
    everywhere, below = region(full)
    limits = {delta: lemma_limit(delta) for delta in DELTAS}
    agree("gaussian.paper_lemma_limit", gaussian.paper_lemma_limit(1e-6), limits[1e-6], 1e-6)
    for epsilon, delta in ((0.3, 1e-5), (2.0, 1e-6), (40.0, 0.01)):
        agree("gaussian.paper_gdp", gaussian.paper_gdp(epsilon, delta), lemma_gdp(epsilon, delta))
        exact = hockey_stick(epsilon, lemma_gdp(epsilon, delta))
        agree("gaussian.delta_from_gdp", gaussian.delta_from_gdp(epsilon, lemma_gdp(epsilon, delta)), exact, 1e-9)
    grid = np.geomspace(0.1, 600, 40)
    ratios = [hockey_stick(e, lemma_gdp(e, 1e-6)) / 1e-6 for e in grid.tolist()]
    plot = Plot(
        "delta of the lemma's noise over the delta claimed (1e-6)",
        "epsilon",
        "ratio",
        {"exact": (grid.tolist(), [max(q, 1e-8) for q in ratios])},
        marks={"claimed": 1.0},
        log_x=True,
        log_y=True,
    )
    numbers: dict[str, float | str] = {f"valid up to epsilon, delta = {k:g}": v for k, v in limits.items()}
    return Finding(everywhere <= 1, repaired=below <= 1 + 1e-6, numbers=numbers, plot=plot)


@check("composition-slack")
def _(full: bool) -> Finding:
    """How much more noise than needed: mu_exact/mu_lemma over the paper's budgets; and the epsilon really given."""
    numbers: dict[str, float | str] = {}
    for epsilon, delta in ((2, 1e-6), (2, 1e-5), (6, 1e-5)):
        given = least_epsilon(lemma_gdp(epsilon, delta), delta)
        low, high = 0.0, 10.0
        for _ in range(60):
            middle = (low + high) / 2
            low, high = (middle, high) if hockey_stick(epsilon, middle) <= delta else (low, middle)
        agree("gaussian.gdp_from_epsilon", gaussian.gdp_from_epsilon(epsilon, delta), low, 1e-9)
        numbers[f"({epsilon}, {delta:g}): noise over what is needed"] = low / lemma_gdp(epsilon, delta)
        numbers[f"({epsilon}, {delta:g}): epsilon really given"] = given
    ratios = [v for k, v in numbers.items() if "noise" in k and isinstance(v, float)]
    return Finding(stated=max(ratios) < 1.1, repaired=min(ratios) > 2.2 and max(ratios) < 2.5, numbers=numbers)


@check("composition-adaptive-vectors")
def _(full: bool) -> Finding:
    """T = 2 releases in R^2 with shifts s_1, s_2: delta by two- and four-dimensional quadrature, against one number.

    The divergence of N(s, I) from N(0, I) depends on |s| only: a rotation makes the pair differ in one coordinate.
    """
    nodes, weights = np.polynomial.hermite_e.hermegauss(160)
    weights = weights / math.sqrt(2 * math.pi)
    worst = 0.0
    for shift, epsilon in (((0.6, 0.8), 0.5), ((1.2, -0.3), 1.0), ((0.1, 0.4), 0.2)):
        a, b = shift
        loss = a * nodes[:, None] + b * nodes[None, :] + (a * a + b * b) / 2
        gain = np.maximum(1 - np.exp(epsilon - loss), 0)
        delta = float(weights @ gain @ weights)
        worst = max(worst, abs(delta - hockey_stick(epsilon, math.hypot(a, b))))
    return Finding(worst < 2e-3, numbers={"largest difference": worst})


@check("variance-sigma")
def _(full: bool) -> Finding:
    """Algorithms 1 and 2 give 'variance sigma = 4C sqrt(2T log)/(n eps)'. As a variance the noise depends on units.

    Read as a standard deviation it is the lemma's. As a variance, multiplying losses by 100 changes mu by 10.
    """

    def gdp(scale: float, variance: bool) -> float:
        n, clip, steps, epsilon, delta = 1000, 2.0 * scale, 50, 2.0, 1e-6
        level = 4 * clip * math.sqrt(2 * steps * math.log(math.e + epsilon / delta)) / (n * epsilon)
        return math.sqrt(steps) * 2 * clip / n / (math.sqrt(level) if variance else level)

    printed = abs(gdp(100, True) / gdp(1, True) - 1) < 1e-9
    repaired = abs(gdp(100, False) / lemma_gdp(2, 1e-6) - 1) < 1e-12
    lemma = lemma_gdp(2, 1e-6)
    agree(
        "gaussian.noise_std",
        gaussian.noise_std(lemma, 50, 2.0, 1000, "replace-one"),
        2 * 2.0 / 1000 * math.sqrt(50) / lemma,
    )
    return Finding(
        printed, repaired, numbers={"mu at 100 times the loss, as a variance": gdp(100, True) / gdp(1, True)}
    )


def _region_finding(full: bool, id: str) -> Finding:
    everywhere, below = region(full)
    numbers: dict[str, float | str] = {
        "largest delta/claimed, any epsilon": everywhere,
        "the same below the lemma's limit": below,
        "limit at delta = 1e-6": lemma_limit(1e-6),
    }
    return Finding(everywhere <= 1, repaired=below <= 1 + 1e-6, numbers=numbers)


for _id in ("thm1-privacy", "thm2-privacy", "thm3-privacy"):
    check(_id)(lambda full, _id=_id: _region_finding(full, _id))  # type: ignore[misc]


@check("direction-public")
def _(full: bool) -> Finding:
    """Any data-independent u_t: given u the release is a scalar Gaussian with the same sensitivity for every law of u.

    Sphere, a fixed basis vector, heavy tails: the clipped mean's largest change is 2C/n for each.
    """
    rng, n, clip, ratios = np.random.default_rng(37), 4, 0.6, []
    for law in ("sphere", "fixed", "cauchy"):
        largest = 0.0
        for _ in range(300):
            u = {"sphere": rng.standard_normal(3), "fixed": np.eye(3)[0], "cauchy": rng.standard_cauchy(3)}[law]
            gradients = rng.standard_normal((n, 3)) * 10
            other = gradients.copy()
            other[0] = -gradients[0]
            means = [np.clip(g @ u, -clip, clip).mean() for g in (gradients, other)]
            largest = max(largest, abs(float(means[0] - means[1])))
        ratios.append(largest / (2 * clip / n))
    return Finding(max(ratios) <= 1 + 1e-12, numbers={"largest change/(2C/n)": max(ratios)})
