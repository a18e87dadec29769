"""Assumptions, remarks, Table tab:compare and the discussion around the theorems."""

import math
from collections.abc import Mapping

import numpy as np
import sympy as sp
from scipy import stats

from dpzero_theory import sphere
from paper_checks import formulas as f
from paper_checks.checks.instances import Instance, circle, random_instance
from paper_checks.registry import Finding, Plot, agree, check

_MODES = {
    "a": lambda i: np.ones_like(i),
    "b": lambda i: 1 / np.sqrt(i),
    "c": lambda i: 1 / i,
}
DIMENSIONS = (20, 50, 100, 200, 500, 1000, 2000)


def spectrum(mode: str, d: int) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    """The diagonal of A in the synthetic experiment."""
    values: np.ndarray[tuple[int], np.dtype[np.float64]] = _MODES[mode](np.arange(1.0, d + 1))
    return values


def dpgd_bound() -> sp.Expr:
    """DP-GD by the same proof: E|grad F|^2 <= 2 gap/(alpha T) + ell alpha r sigma^2 at the best alpha T.

    From E F(x+) <= F - alpha(1 - ell alpha/2)|grad F|^2 + (alpha^2/2) tr(H) sigma^2 with C = L, so
    1 - ell alpha/2 >= 1/2 and sigma^2 = 32 L^2 T K/(n eps)^2: 2 sqrt(64 gap ell L^2 r K)/(n eps).
    """
    product = sp.Symbol("p", positive=True)
    total = 2 * f.gap / product + f.ell * f.r * 32 * f.L**2 * product * f.K / (f.n * f.eps) ** 2
    best = sp.sqrt(sp.solve(sp.diff(total, product), product**2)[0])
    return sp.simplify(total.subs(product, best))


@check("asp-rank-to-smooth")
def _(full: bool) -> Finding:
    """f_1 = |x|, f_2 = 2 sqrt(1 + x^2) - |x|: Lipschitz, the average sqrt(1 + x^2) is 1-smooth, no f_i is smooth.

    So Assumption asp:smooth holds and asp:rank, which asks every f_i to be smooth, fails although r = d = 1.
    """
    h = 1e-6
    second = abs((abs(h) - 2 * abs(0.0) + abs(-h)) / h**2)
    x = np.linspace(-50, 50, 20_001)
    average = np.max((1 + x**2) ** -1.5)
    smooth_samples = second < 1e3
    return Finding(
        smooth_samples, repaired=bool(average <= 1 + 1e-12), numbers={"second difference of f_1 at 0": second}
    )


@check("asp-trace")
def _(full: bool) -> Finding:
    """eq:onestep2 with tr(H) = r ell < r' |H|: an H with |H| = ell/3 needs r' = 3 r under the printed assumption.

    The one-step bound with the smaller r (from ell) holds on random problems (seed 81), as no step uses |H|.
    """
    rng, worst, gain = np.random.default_rng(81), -math.inf, []
    u = circle(128)
    for _ in range(12):
        problem, x = random_instance(rng, 4, 2, wave=True), rng.standard_normal(2)
        h, g = problem.curvature, problem.gradient(x)
        ell = 3 * float(np.linalg.norm(h, 2))
        r, g2, alpha = float(np.trace(h)) / ell, float(g @ g), 1 / (4 * ell)
        gain.append(float(np.trace(h)) / float(np.linalg.norm(h, 2)) / r)
        for lam in (0.01, 0.4):
            move = problem.differences(x, u, lam).mean(axis=-1)[:, None] * u
            left = float(problem.loss(x - alpha * move).mean())
            right = float(problem.loss(x)) - alpha / 2 * (1 - 2 * (r + 2) * ell * alpha) * g2
            right += ell**2 * alpha * lam**2 * 4 * (2 + 2 * r * ell * alpha) / 8
            worst = max(worst, left - right)
    return Finding(min(gain) < 1.01, repaired=worst <= 1e-12, numbers={"r by |H| over r by ell": min(gain)})


@check("eigenvalue-example")
def _(full: bool) -> Finding:
    """Eigenvalues ell/i: r = H_d <= 1 + log d, full rank; H_d - log d tends to Euler's constant."""
    sizes = [10**k for k in range(1, 8)]
    harmonic = [float(np.sum(1 / np.arange(1, d + 1))) for d in sizes]
    holds = all(h <= 1 + math.log(d) for h, d in zip(harmonic, sizes, strict=True))
    limit = harmonic[-1] - math.log(sizes[-1])
    plot = Plot(
        "r = sum 1/i",
        "d",
        "r",
        {"r": (sizes, harmonic), "1 + log d": (sizes, (1 + np.log(sizes)).tolist())},
        log_x=True,
    )
    return Finding(holds and abs(limit - 0.5772156649) < 1e-6, numbers={"r at d = 1e7": harmonic[-1]}, plot=plot)


@check("remark-naive-sources")
def _(full: bool) -> Finding:
    """The three sources: E|G|^2 -> d|grad F|^2 exactly, C = L d, E|z|^2 = d sigma^2 = O(d C^2) = O(d^3)."""
    sigma2 = (f.noise**2).subs(f.C, f.L * f.d)
    power = int(sp.degree(sp.expand(f.d * sigma2), f.d))
    rng, d = np.random.default_rng(82), 6
    gradient = rng.standard_normal(d)
    exact = sphere.projection_sample_norm(gradient)
    return Finding(
        power == 3 and abs(exact / (d * float(gradient @ gradient)) - 1) < 1e-12, numbers={"power of d": power}
    )


def _onestep_noise(trace: sp.Expr) -> sp.Expr:
    """(ell/2) alpha^2 s sigma^2 with C = L d, over alpha^2: the last term of the simplified one-step inequalities."""
    return sp.expand(f.ell / 2 * trace * (f.noise**2).subs(f.C, f.L * f.d))


@check("eq-onestep1simple")
def _(full: bool) -> Finding:
    """The last term is c alpha^2 d^3 with c = 16 ell L^2 T K/(n eps)^2, free of alpha and d for given T.

    Balancing: min over alpha T of 4 gap/(alpha T) + 64 ell L^2 alpha T d^3 K/(n eps)^2 grows as d^{3/2}.
    """
    c = sp.simplify(_onestep_noise(f.d) / f.d**3)
    free = f.d not in c.free_symbols and f.alpha not in c.free_symbols
    product = sp.Symbol("p", positive=True)
    total = 4 * f.gap / product + 64 * f.ell * f.L**2 * product * f.d**3 * f.K / (f.n * f.eps) ** 2
    best = total.subs(product, sp.sqrt(sp.solve(sp.diff(total, product), product**2)[0]))
    power = sp.simplify(sp.log(best.subs(f.d, 4 * f.d) / best) / sp.log(4))
    return Finding(bool(free and sp.simplify(power - sp.Rational(3, 2)) == 0), numbers={"power of d": str(power)})


@check("eq-onestep2simple")
def _(full: bool) -> Finding:
    c = sp.simplify(_onestep_noise(f.r) / (f.r * f.d**2))
    free = not {f.d, f.r, f.alpha} & c.free_symbols
    return Finding(bool(free), numbers={"c": str(c)})


@check("remark-small-step")
def _(full: bool) -> Finding:
    """1 - 2 d ell alpha > 0 iff alpha < 1/(2 ell d), also that the factor 2d comes from E|G|^2 and is not needed.

    At lambda -> 0 on F = (ell/2)|x|^2 a step decreases E F iff alpha < 2/(ell d): four times larger (d = 40, exact).
    """
    d, ell = 40, 1.0

    def change(alpha: float) -> float:
        return -alpha + ell / 2 * alpha**2 * d

    threshold = 2 / (ell * d)
    at_most = change(threshold * 0.999) < 0 < change(threshold * 1.001)
    bracket = sp.simplify((1 - 2 * f.d * f.ell * f.alpha).subs(f.alpha, 1 / (2 * f.ell * f.d)))
    return Finding(
        bool(bracket == 0 and at_most), numbers={"largest useful alpha over 1/(2 ell d)": threshold * 2 * ell * d}
    )


@check("remark-d-worse")
def _(full: bool) -> Finding:
    """Theorem 1's rate over DP-GD's own (r = d): proportional to d, no other power."""
    ratio = sp.simplify(f.STATEMENTS["thm1"].bound / dpgd_bound().subs(f.r, f.d) / f.d)
    return Finding(
        f.d not in ratio.free_symbols, numbers={"ratio/d at the synthetic setting": f.value(ratio, f.SYNTHETIC)}
    )


@check("remark-clip-never")
def _(full: bool) -> Finding:
    """|g_lambda| <= L d pointwise (seed 83, 20,000 cases), with equality for a linear loss along u."""
    rng, worst = np.random.default_rng(83), 0.0
    for _ in range(20):
        d = int(rng.integers(1, 8))
        problem, z = random_instance(rng, 4, d, wave=True), rng.standard_normal((1000, d))
        u = math.sqrt(d) * z / np.linalg.norm(z, axis=1, keepdims=True)
        g = np.abs(problem.differences(rng.standard_normal((1000, d)), u, 0.3)) * math.sqrt(d)
        worst = max(worst, float(np.max(g)) / (problem.lipschitz * d))
    d = 5
    slope = np.ones(d) / math.sqrt(d)
    u = math.sqrt(d) * slope
    attained = abs(slope @ u) * math.sqrt(d) / d
    return Finding(worst <= 1, numbers={"largest |g|/(L d)": worst, "linear loss along u": float(attained)})


@check("remark-onestep2-factor")
def _(full: bool) -> Finding:
    """E|G|_H^2 <= (r + 2) d/(d + 2) ell |grad F|^2 against d ell |grad F|^2 (and E|z|_H^2: r against d)."""
    rng, d, worst = np.random.default_rng(84), 40, 0.0
    h = np.diag(1 / np.arange(1.0, d + 1))
    r = float(np.trace(h))
    for _ in range(50):
        a = rng.standard_normal(d) * np.exp(rng.normal(size=d))
        exact = sphere.projection_curvature(a, h)
        worst = max(worst, exact / ((r + 2) * d / (d + 2) * float(a @ a)))
    top = sphere.projection_curvature(np.eye(d)[0], h)
    agree("sphere.projection_curvature along the top eigenvector", top, (r + 2) * d / (d + 2))
    return Finding(worst <= 1, numbers={"(r + 2)/(d + 2), d = 40": (r + 2) / (d + 2), "largest exact/bound": worst})


@check("scalar-noise-gain")
def _(full: bool) -> Finding:
    """E|z u|_H^2 with C = L sqrt(d), scalar, over E|z|_H^2 with C = L d, vector: 1/d, so 1/sqrt(d) in the bound."""
    scalar = (f.noise**2).subs(f.C, f.L * sp.sqrt(f.d)) * f.r * f.ell
    vector = (f.noise**2).subs(f.C, f.L * f.d) * f.r * f.ell
    gain = sp.simplify(scalar / vector)
    return Finding(sp.simplify(sp.sqrt(gain) - 1 / sp.sqrt(f.d)) == 0, numbers={"ratio of the noise terms": str(gain)})


@check("clip-threshold-gain")
def _(full: bool) -> Finding:
    """L sqrt(d) over C = 4 L-tilde: grows as sqrt(d) up to the log; below 1 until d is several hundred (n = 10,000)."""
    ratio = f.L * sp.sqrt(f.d) / f.STATEMENTS["thm3"].C
    values = {d: f.value(ratio, {**f.SYNTHETIC, "d": d}) for d in (10**2, 10**4, 10**8, 10**12)}
    slope = math.log(values[10**12] / values[10**8]) / math.log(10**4)
    crossing = next(d for d in range(2, 10**5) if f.value(ratio, {**f.SYNTHETIC, "d": d}) > 1)
    numbers: dict[str, float | str] = {"power of d between 1e8 and 1e12": slope, "smaller from d =": crossing}
    return Finding(0.45 < slope < 0.5, numbers=numbers)


@check("main-text-tail")
def _(full: bool) -> Finding:
    """The tail displayed in the text, for gradients of norm at most L: exact over bound on a grid; worst at norm L."""
    worst = 0.0
    for d in (2, 10, 1000):
        for norm in (0.2, 0.7, 1.0):
            for c in np.linspace(0, min(math.sqrt(d), 12), 60):
                exact = float(stats.beta.sf(min((c / norm) ** 2 / d, 1.0), 0.5, (d - 1) / 2))
                worst = max(worst, exact / (2 * math.sqrt(2 * math.pi) * math.exp(-(c**2) / 8)))
    return Finding(worst <= 1, numbers={"largest exact/bound": worst})


@check("clip-without-smoothness")
def _(full: bool) -> Finding:
    """(f(x + lambda u) - f(x - lambda u))/(2 lambda) is odd and L-Lipschitz in u, so eq:tail-unit bounds it directly.

    No smoothness of f and no term ell lambda d/2. Kinked losses sum_k |a_k'x - b_k| scaled to L = 1, 200,000 draws
    (seed 94), d = 2, 10, 50, lambda = 0.01, 1, 10: the empirical tail must not pass the bound by 5 standard errors.
    """
    rng, size, worst, ratio = np.random.default_rng(94), 200_000 if full else 50_000, -math.inf, 0.0
    for d in (2, 10, 50):
        z = rng.standard_normal((size, d))
        u = math.sqrt(d) * z / np.linalg.norm(z, axis=1, keepdims=True)
        a, b = rng.standard_normal((3, d)), rng.standard_normal(3)
        a /= np.sum(np.linalg.norm(a, axis=1))
        for lam in (0.01, 1.0, 10.0):
            plus, minus = (np.abs(sign * lam * u @ a.T - b).sum(axis=1) for sign in (1, -1))
            difference = np.abs(plus - minus) / (2 * lam)
            for c in (1.0, 2.0, 3.0, 4.0, 5.0):
                bound = min(1.0, 2 * math.sqrt(2 * math.pi) * math.exp(-c * c / 8))
                chance = float(np.mean(difference >= c))
                worst = max(worst, (chance - bound) / math.sqrt(max(bound * (1 - bound), 1e-6) / size))
                ratio = max(ratio, chance / bound)
    needed = bool(worst >= 5)
    return Finding(needed, repaired=worst < 5, numbers={"largest tail/bound": ratio})


@check("clip-order")
def _(full: bool) -> Finding:
    """C^2/(L^2 log(n d)) stays below 60 for n, d from 1e2 to 1e12, any r in [1, d] (other constants 1)."""
    ratio = (f.STATEMENTS["thm3"].C / f.L) ** 2 / sp.log(f.n * f.d)
    values = [
        f.value(ratio, {**f.SYNTHETIC, "n": 10.0**a, "d": 10.0**b, "r": 10.0 ** (b * c)})
        for a in range(2, 13, 2)
        for b in range(2, 13, 2)
        for c in (0, 0.5, 1)
    ]
    return Finding(max(values) < 60, numbers={"largest ratio": max(values)})


@check("thm3-logarithmic")
def _(full: bool) -> Finding:
    """bound/log d at fixed r is bounded and the growth per factor of d tends to 64 L^2 per unit of log d."""
    sizes = [10.0**k for k in range(3, 16, 2)]
    settings = [{**f.SYNTHETIC, "d": d} for d in sizes]
    scale = sp.sqrt(f.r * f.K) / (f.n * f.eps)
    values = [f.value(f.STATEMENTS["thm3"].bound / scale, s) for s in settings]
    growth = (values[-1] - values[-2]) / (math.log(sizes[-1]) - math.log(sizes[-2]))
    other = [f.value(f.STATEMENTS["thm2"].bound / scale, s) for s in settings]
    plot = Plot(
        "bounds at fixed r, in units of sqrt(r K)/(n eps)",
        "d",
        "bound",
        {"Theorem 3": (sizes, values), "Theorem 2": (sizes, other)},
        log_x=True,
        log_y=True,
    )
    return Finding(abs(growth / 64 - 1) < 1e-3, numbers={"growth per unit of log d, over L^2": growth}, plot=plot)


@check("thm3-matches-dpgd")
def _(full: bool) -> Finding:
    """At r = d, Theorem 3 over DP-GD's bound by the same proof: grows only as log d ('nearly matches')."""
    ratio = (f.STATEMENTS["thm3"].bound / dpgd_bound()).subs(f.r, f.d)
    values = [f.value(ratio, {**f.SYNTHETIC, "d": 10.0**k}) for k in (2, 5, 8, 11)]
    steps = np.diff(values)
    logarithmic = bool(np.max(steps) / np.min(steps) < 1.2)
    return Finding(logarithmic, numbers={"ratio at d = 100": values[0], "ratio at d = 1e11": values[-1]})


@check("dpgd-match-exactly")
def _(full: bool) -> Finding:
    """'Matches this rate' without 'nearly': the ratio to DP-GD's bound is unbounded in d and in n."""
    ratio = (f.STATEMENTS["thm3"].bound / dpgd_bound()).subs(f.r, f.d)
    near, far = (f.value(ratio, {**f.SYNTHETIC, "d": d, "n": n}) for d, n in ((20.0, 1e3), (1e12, 1e12)))
    return Finding(far / near < 1.5, repaired=far / near < 20, numbers={"ratio, small": near, "ratio, large": far})


@check("thm3-factor-d")
def _(full: bool) -> Finding:
    """Theorem 2 over Theorem 3 is d divided by 4(gap ell + L-tilde^2 + L^2/32)/(gap ell + 2 L^2), about 49 there."""
    ratio = f.STATEMENTS["thm2"].bound / f.STATEMENTS["thm3"].bound
    at = f.value(ratio, f.SYNTHETIC)
    loss = f.value(f.d / ratio, f.SYNTHETIC)
    crossing = next(
        d
        for d in range(2, 5000)
        if f.value(ratio, {**f.SYNTHETIC, "d": d, "r": float(np.sum(1 / np.arange(1, d + 1)))}) > 1
    )
    large = [f.value(f.d / ratio, {**f.SYNTHETIC, "d": 10.0**k}) / math.log(10.0**k) for k in (6, 9, 12, 15)]
    numbers = {"Theorem 2/Theorem 3, d = 2000": at, "d over that": loss, "Theorem 3 is smaller from d =": crossing}
    return Finding(abs(at / 2000 - 1) < 0.1, repaired=max(large) / min(large) < 2, numbers=numbers)


@check("remark-thm3-noise")
def _(full: bool) -> Finding:
    """E|z u|_H^2 = sigma^2 tr(H), and sigma^2 with C = 4 L-tilde depends on d only through the log in L-tilde."""
    statement = f.STATEMENTS["thm3"]
    noise = (f.noise**2).subs(f.C, statement.C).subs(f.T, statement.T) * f.r * f.ell
    values = [f.value(noise, {**f.SYNTHETIC, "d": 10.0**k}) for k in (3, 6, 9, 12)]
    steps = np.diff(values)
    return Finding(
        bool(np.ptp(steps) / np.mean(steps) < 0.02), numbers={"d = 1e12 over d = 1e3": values[-1] / values[0]}
    )


_CELLS: Mapping[str, tuple[str, sp.Expr, bool]] = {
    "dpgd0th-without": ("thm1", f.d * sp.sqrt(f.d), True),
    "dpgd0th-with": ("thm2", f.d * sp.sqrt(f.r), False),
    "dpzero-without": ("thm3", sp.log(f.d) * sp.sqrt(f.d), True),
    "dpzero-with": ("thm3", sp.log(f.d) * sp.sqrt(f.r), False),
    "dpgd-without": ("dpgd", sp.sqrt(f.d), True),
    "dpgd-with": ("dpgd", sp.sqrt(f.r), False),
}


def _cell(name: str) -> Finding:
    """bound/order over d from 1e3 to 1e24 (r = d, or r = d^{1/3}): the largest over the smallest is below 4."""
    id, order, full_rank = _CELLS[name]
    bound = dpgd_bound() if id == "dpgd" else f.STATEMENTS[id].bound
    points = [{**f.SYNTHETIC, "d": 10.0**k, "r": 10.0**k if full_rank else 10.0 ** (k / 3)} for k in range(3, 25, 3)]
    values = [f.value(bound / order, p) for p in points]
    spread = max(values) / min(values)
    return Finding(spread < 4, numbers={"spread of bound/order": spread})


for _name in _CELLS:
    check(f"table-compare-{_name}")(lambda full, _name=_name: _cell(_name))  # type: ignore[misc]


@check("table-compare-iterations")
def _(full: bool) -> Finding:
    """T of Theorem 3 over T of DP-GD at alpha = 1/(2 ell) and the same alpha T: 2(r + 2), so O(r) times as many."""
    product = sp.Symbol("p", positive=True)
    ratio = (product / f.STATEMENTS["thm3"].alpha) / (product * 2 * f.ell)
    return Finding(sp.simplify(ratio - 2 * (f.r + 2)) == 0, numbers={"ratio at r = 200": float(ratio.subs(f.r, 200))})


@check("iterations-o-r")
def _(full: bool) -> Finding:
    """O(r) times more iterations: T_3/T_DPGD <= c r with c = 3(r+2)/(3r) <= 3; the observed factor 10 is below it.

    Only the order is tested: with r = 200, the figure the paper cites for RoBERTa, the theory's factor is about 400.
    """
    ratios = [2 * (r + 2) / r for r in (1.0, 2.0, 10.0, 200.0, 1e6)]
    return Finding(max(ratios) <= 6 and 10 <= 2 * 202, numbers={"theory at r = 200": 404.0, "observed": 10.0})


@check("extension-gaussian")
def _(full: bool) -> Finding:
    """Gaussian u: E[(u'a)^2 u'Hu] = 2a'Ha + |a|^2 tr(H), the sphere's value times (d+2)/d; tail 2 exp(-C^2/(2|a|^2)).

    By quadrature in R^2, exact for polynomials. So (r + 2) ell in the one-step inequality needs no change.
    """
    nodes, weights = np.polynomial.hermite_e.hermegauss(8)
    weights = weights / weights.sum()
    rng, worst = np.random.default_rng(85), 0.0
    for _ in range(10):
        a, h = rng.standard_normal(2), rng.standard_normal((2, 2))
        grid = np.stack(np.meshgrid(nodes, nodes, indexing="ij"), axis=-1)
        value = float(weights @ ((grid @ a) ** 2 * np.einsum("abi,ij,abj->ab", grid, h, grid)) @ weights)
        stated = 2 * float(a @ h @ a) + float(a @ a) * float(np.trace(h))
        worst = max(worst, abs(value - stated))
        agree("sphere.projection_curvature, Gaussian", sphere.projection_curvature(a, h, "gaussian"), stated, 1e-9)
    tail = max(2 * float(stats.norm.sf(c)) / (2 * math.exp(-c * c / 2)) for c in np.linspace(0, 30, 200))
    return Finding(worst < 1e-10 and tail <= 1, numbers={"largest difference": worst, "largest tail/bound": tail})


@check("extension-any-u")
def _(full: bool) -> Finding:
    """u = +-sqrt(d) e_i has E[uu'] = I and |u|^2 = d; with H = e_1 e_1' (r = 1) and a = e_1, E[(u'a)^2 u'Hu] = d.

    The proofs of Theorems 2 and 3 need at most (r + 2) = 3. Correction: also E[(u'a)^2 u'Hu] <= (r + 2) ell |a|^2.
    """
    d = 50
    u = math.sqrt(d) * np.concatenate([np.eye(d), -np.eye(d)])
    isotropic = np.allclose(u.T @ u / (2 * d), np.eye(d))
    value = float(np.mean(u[:, 0] ** 2 * u[:, 0] ** 2))
    allowed = sphere.projection_curvature(np.eye(d)[0], np.diag(np.eye(d)[0]))
    return Finding(
        isotropic and value <= 3, repaired=allowed <= 3, numbers={"E[(u'a)^2 u'Hu], d = 50": value, "sphere": allowed}
    )


@check("extension-one-point")
def _(full: bool) -> Finding:
    """(f(x + lambda u)/lambda) u: E|g|^2 = (d/lambda^2) E f^2 grows without bound as lambda -> 0 unless f(x) = 0.

    So no bound 2d|grad f|^2 + O(lambda^2) exists, and |g| <= L d fails: the prescribed lambda and C do not carry over.
    """
    problem = Instance(np.array([[1.0, 0.2]]), np.array([0.3]), np.array([1.0]), wave=True)
    x, u = np.array([1.0, -0.4]), circle(256)
    sizes = (1.0, 0.1, 0.01, 0.001)
    norms = [2 * float(np.mean(problem.loss(x + s * u) ** 2)) / s**2 for s in sizes]
    bound = 2 * 2 * float(np.sum(problem.gradient(x) ** 2)) + problem.smoothness**2 * 4
    largest = max(float(np.max(np.abs(problem.loss(x + s * u)))) / s * math.sqrt(2) for s in sizes)
    numbers = {"E|g|^2 at lambda = 0.001": norms[-1], "two-point bound at lambda = 1": bound, "largest |g|": largest}
    return Finding(max(norms) <= bound, numbers=numbers)


@check("extension-directional")
def _(full: bool) -> Finding:
    """u'grad f u (lambda = 0): mean grad f, E|g|^2 = d|grad f|^2, |u'grad f| <= L sqrt(d)."""
    rng, worst = np.random.default_rng(86), 0.0
    u = circle(64)
    for _ in range(10):
        problem, x = random_instance(rng, 3, 2, wave=True), rng.standard_normal(2)
        g = problem.gradient(x)
        estimate = (u @ g)[:, None] * u
        worst = max(worst, float(np.max(np.abs(estimate.mean(axis=0) - g))))
        worst = max(worst, abs(float(np.mean(np.sum(estimate**2, axis=1))) - 2 * float(g @ g)))
    return Finding(worst < 1e-12, numbers={"largest difference": worst})


@check("clipping-scalar")
def _(full: bool) -> Finding:
    """clip of s u at C|u| equals (clip of s at C) u, for every s and u: seed 87, 10,000 cases."""
    rng = np.random.default_rng(87)
    s, u = 5 * rng.standard_normal(10_000), rng.standard_normal((10_000, 7))
    g = s[:, None] * u
    limit = 1.3 * np.linalg.norm(u, axis=1)
    vector = g * np.minimum(1, limit / np.linalg.norm(g, axis=1))[:, None]
    return Finding(bool(np.allclose(vector, np.clip(s, -1.3, 1.3)[:, None] * u, rtol=1e-12, atol=1e-14)))


@check("clipping-dpgd0th-costly")
def _(full: bool) -> Finding:
    """DPGD-0th 'still requires per-sample clipping of the gradient estimator, which is costly'.

    All n estimators are multiples of one u, so clipping them is clipping n scalars at C/|u|: no (n, d) array.
    """
    rng, n, d, clip = np.random.default_rng(88), 50, 400, 3.0
    s, u = rng.standard_normal(n), rng.standard_normal(d)
    rows = s[:, None] * u
    rows *= np.minimum(1, clip / np.linalg.norm(rows, axis=1))[:, None]
    length = float(np.linalg.norm(u))
    scalars = np.clip(s, -clip / length, clip / length).mean() * u
    difference = float(np.max(np.abs(rows.mean(axis=0) - scalars)))
    return Finding(
        difference > 1e-12, numbers={"largest difference": difference, "numbers clipped": f"{n} instead of {n * d}"}
    )


@check("thm3-loss-bound")
def _(full: bool) -> Finding:
    """|F(x_t)| <= B 'for the run' with Gaussian noise: x_1 has a density on all of R^d, so F must be bounded by B.

    For a pseudo-Huber sum, unbounded, P(|F(x_1)| > B) is positive for every B: its values at B = 2, 4, 8 times F(x_0)
    from 200,000 draws of (u, z), seed 89. For the sine sum, bounded, it is 0 at B = mean c_i.
    """
    rng = np.random.default_rng(89)
    problem, x0 = random_instance(rng, 3, 3, wave=False), 2 * rng.standard_normal(3)
    z = rng.standard_normal((200_000, 4))
    u = math.sqrt(3) * z[:, :3] / np.linalg.norm(z[:, :3], axis=1, keepdims=True)
    x = x0 - (np.clip(problem.differences(x0, u, 0.1), -1, 1).mean(axis=1) + 10 * z[:, 3])[:, None] * u
    chances = [float(np.mean(problem.loss(x) > k * problem.loss(x0))) for k in (2, 4, 8)]
    wave = random_instance(rng, 3, 3, wave=True)
    bounded = float(np.max(np.abs(wave.loss(x)))) <= wave.bound
    numbers = {f"P(F(x_1) > {k} F(x_0))": p for k, p in zip((2, 4, 8), chances, strict=True)}
    return Finding(max(chances) == 0, repaired=min(chances) > 0 and bounded, numbers=numbers)


@check("thm3-shift")
def _(full: bool) -> Finding:
    """F -> F + c changes no difference, so nothing in Algorithm 2, but B and so the bound, which grows with |c|."""
    bound = f.STATEMENTS["thm3"].bound
    values = [f.value(bound, {**f.SYNTHETIC, "B": b}) for b in (1.0, 1e6)]
    rng = np.random.default_rng(90)
    problem, x, u = random_instance(rng, 3, 3, wave=True), rng.standard_normal((500, 3)), rng.standard_normal((500, 3))
    shifted = ((problem.losses(x + 0.1 * u) + 1e3) - (problem.losses(x - 0.1 * u) + 1e3)) / 0.2
    same = bool(np.max(np.abs(shifted - problem.differences(x, u, 0.1))) < 1e-10)
    return Finding(
        values[0] == values[1],
        repaired=same and values[1] > values[0],
        numbers={"bound, B = 1e6 over B = 1": values[1] / values[0]},
    )


@check("thm3-informative")
def _(full: bool) -> Finding:
    """Is Theorem 3's bound below the trivial L^2 at the paper's synthetic settings (L = ell = gap = B = 1)?

    21 cells: three spectra, seven dimensions, n = 10,000, (2, 1e-6). Theorems 1 and 2 likewise.
    """
    counts, best = dict.fromkeys(("thm1", "thm2", "thm3"), 0), math.inf
    series = {}
    for mode in "abc":
        values = []
        for d in DIMENSIONS:
            point = {**f.SYNTHETIC, "d": d, "r": float(np.sum(spectrum(mode, d)))}
            for id in counts:
                counts[id] += f.value(f.STATEMENTS[id].bound, point) < 1
            values.append(f.value(f.STATEMENTS["thm3"].bound, point))
        series[f"mode {mode}"] = (list(DIMENSIONS), values)
        best = min(best, *values)
    plot = Plot(
        "Theorem 3's bound at the synthetic settings",
        "d",
        "bound",
        series,
        {"trivial, L^2": 1.0},
        log_x=True,
        log_y=True,
    )
    numbers = {f"cells below L^2 of 21, {k}": float(v) for k, v in counts.items()}
    numbers["smallest bound"] = best
    numbers["bound at mode c, d = 2000"] = f.value(f.STATEMENTS["thm3"].bound, f.SYNTHETIC)
    return Finding(counts["thm3"] >= 11, numbers=numbers, plot=plot)


@check("rmk-bound-steps")
def _(full: bool) -> Finding:
    """Where T of a theorem is below 1 its displayed bound is above L^2, so max{T, 1} and min{., L^2} lose nothing.

    In units x = sqrt(s K)/(n eps): T1 < 1 gives bound >= 32 d L^2, T2 < 1 gives >= 32 (r + 2) L^2, T3 < 1 gives
    >= 2 L^2 (r + 2)/4 at least 1.5 L^2 where the logarithm is positive. Random settings with T < 1, seed 91.
    """
    rng, least = np.random.default_rng(91), math.inf
    for id in ("thm1", "thm2", "thm3"):
        for _ in range(400):
            d = float(10 ** rng.uniform(0, 6))
            point = {**f.SYNTHETIC, "d": d, "r": float(d ** rng.uniform(0, 1)), "n": float(10 ** rng.uniform(0, 5))}
            point["gap"] = 1e-9
            point["eps"] = float(10 ** rng.uniform(-3, 1))
            argument = f.STATEMENTS[id].log_argument
            if f.value(f.STATEMENTS[id].T, point) < 1 and (argument is None or f.value(argument, point) > 1):
                least = min(least, f.value(f.STATEMENTS[id].bound, point))
    return Finding(least > 1, numbers={"smallest bound/L^2 where T < 1": least})


@check("rmk-bound-trivial")
def _(full: bool) -> Finding:
    """|grad F|^2 <= L^2 always (seed 92); this is why DPGD-0th's error stops growing with d."""
    rng, worst = np.random.default_rng(92), 0.0
    for _ in range(40):
        problem = random_instance(rng, 4, 3, wave=True)
        g = problem.gradient(3 * rng.standard_normal((500, 3)))
        worst = max(worst, float(np.max(np.sum(g**2, axis=1))) / problem.lipschitz**2)
    return Finding(worst <= 1, numbers={"largest |grad F|^2/L^2": worst})


@check("thm3-min-entry")
def _(full: bool) -> Finding:
    """Where Theorem 3's bound is below L^2 the second entry of the minimum over lambda is the smaller; seed 93."""
    rng, first_smaller, cells = np.random.default_rng(93), 0, 0
    for _ in range(1500):
        d = float(10 ** rng.uniform(0, 6))
        point = {**f.SYNTHETIC, "d": d, "r": float(d ** rng.uniform(0, 1)), "n": float(10 ** rng.uniform(0, 9))}
        point["gap"] = float(10 ** rng.uniform(-6, 0))
        point["eps"] = float(10 ** rng.uniform(-3, 1))
        statement = f.STATEMENTS["thm3"]
        if f.value(statement.log_argument, point) > 1 and f.value(statement.bound, point) < 1:
            cells += 1
            first, second = (f.value(x, point) for x in statement.lam)
            first_smaller += first < second
    numbers = {"settings with bound < L^2": float(cells), "first entry smaller in": float(first_smaller)}
    return Finding(first_smaller > 0, repaired=cells > 50 and first_smaller == 0, numbers=numbers)
