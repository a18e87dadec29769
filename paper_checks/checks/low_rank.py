"""Check the paper's assumptions asp:smooth and asp:rank, and its remarks on DPGD-0th (Algorithm 1) with and without
a low effective rank r. In these checks ell is the smoothness, L the Lipschitz constant, K = log(e + epsilon/delta),
G the zeroth-order gradient and z the noise."""

import math

import numpy as np
import sympy as sp

from paper_checks import formulas as f
from paper_checks.checks.instances import Instance, on_sphere, outer_moment, random_instance
from paper_checks.registry import Finding, check


@check("asp-rank-to-smooth")
def _(full: bool) -> Finding:
    h = 1e-6
    second = abs((abs(h) - 2 * abs(0.0) + abs(-h)) / h**2)
    x = np.linspace(-50, 50, 20_001)
    average = np.max((1 + x**2) ** -1.5)
    smooth_samples = second < 1e3
    return Finding(
        smooth_samples, repaired=bool(average <= 1 + 1e-12), numbers={"second difference of f_1 at 0": second}
    )


@check("low-rank-hessian")
def _(full: bool) -> Finding:
    rng, worst, over = np.random.default_rng(98), -math.inf, 0.0
    for k in (1, 2, 5):
        a = rng.standard_normal((12, k)) @ rng.standard_normal((k, 9)) / 3
        problem = Instance(a, rng.uniform(-1, 1, 12), rng.uniform(0.5, 1.5, 12), wave=True)
        over = max(over, problem.r / k)
        for _ in range(40):
            x, h = 2 * rng.standard_normal(9), 1e-5
            hessian = np.array(
                [(problem.gradient(x + h * e) - problem.gradient(x - h * e)) / (2 * h) for e in np.eye(9)]
            )
            extremes = [
                float(np.linalg.eigvalsh(problem.curvature - s * (hessian + hessian.T) / 2)[0]) for s in (1, -1)
            ]
            worst = max(worst, -min(extremes))
    equal = Instance(np.eye(9)[:5], np.zeros(5), np.ones(5), wave=True)
    holds = worst < 1e-7 and over <= 1 + 1e-12 and abs(equal.r - 5) < 1e-12
    return Finding(holds, numbers={"largest r/k": over, "largest excess of the Hessian over H": worst})


@check("eigenvalue-example")
def _(full: bool) -> Finding:
    sizes = [10**k for k in range(1, 8)]
    harmonic = [float(np.sum(1 / np.arange(1, d + 1))) for d in sizes]
    holds = all(h <= 1 + math.log(d) for h, d in zip(harmonic, sizes, strict=True))
    limit = harmonic[-1] - math.log(sizes[-1])
    return Finding(holds and abs(limit - 0.5772156649) < 1e-6, numbers={"r at d = 1e7": harmonic[-1]})


@check("remark-naive-sources")
def _(full: bool) -> Finding:
    sigma2 = (f.noise**2).subs(f.C, f.L * f.d)
    power = int(sp.degree(sp.expand(f.d * sigma2), f.d))
    rng, d = np.random.default_rng(82), 6
    gradient = rng.standard_normal(d)
    exact = float(np.trace(outer_moment(gradient)))
    return Finding(
        power == 3 and abs(exact / (d * float(gradient @ gradient)) - 1) < 1e-12, numbers={"power of d": power}
    )


def _onestep_noise(trace: sp.Expr) -> sp.Expr:
    """Return the noise's term (ell/2) alpha^2 s sigma^2 of a one-step inequality, divided by alpha^2, at the clip C = L
    d. Here sigma is the noise's standard deviation, and `trace` is s: d in eq:onestep1simple, r in
    eq:onestep2simple."""
    return sp.expand(f.ell / 2 * trace * (f.noise**2).subs(f.C, f.L * f.d))


@check("eq-onestep1simple")
def _(full: bool) -> Finding:
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
    ratio = sp.simplify(f.STATEMENTS["thm1"].bound / f.dpgd_bound().subs(f.r, f.d) / f.d)
    return Finding(
        f.d not in ratio.free_symbols, numbers={"ratio/d at the synthetic setting": f.value(ratio, f.SYNTHETIC)}
    )


@check("remark-clip-never")
def _(full: bool) -> Finding:
    rng, worst = np.random.default_rng(83), 0.0
    for _ in range(20):
        d = int(rng.integers(1, 8))
        problem, u = random_instance(rng, 4, d, wave=True), on_sphere(rng.standard_normal((1000, d)))
        g = np.abs(problem.differences(rng.standard_normal((1000, d)), u, 0.3)) * math.sqrt(d)
        worst = max(worst, float(np.max(g)) / (problem.lipschitz * d))
    d = 5
    slope = np.ones(d) / math.sqrt(d)
    u = math.sqrt(d) * slope
    attained = abs((slope @ (0.3 * u) - slope @ (-0.3 * u)) / (2 * 0.3)) * np.linalg.norm(u) / d
    holds = worst <= 1 and bool(abs(attained - 1) < 1e-12)
    return Finding(holds, numbers={"largest |g|/(L d)": worst, "linear loss along u": float(attained)})


@check("remark-onestep2-factor")
def _(full: bool) -> Finding:
    rng, d, worst = np.random.default_rng(84), 40, 0.0
    h = np.diag(1 / np.arange(1.0, d + 1))
    r = float(np.trace(h))
    for _ in range(50):
        a = rng.standard_normal(d) * np.exp(rng.normal(size=d))
        exact = float(np.sum(outer_moment(a) * h))
        worst = max(worst, exact / ((r + 2) * d / (d + 2) * float(a @ a)))
    top = np.sum(outer_moment(np.eye(d)[0]) * h)
    tight = abs(float(top) / ((r + 2) * d / (d + 2)) - 1) < 1e-12
    return Finding(
        worst <= 1 + 1e-12 and tight,
        numbers={"(r + 2)/(d + 2), d = 40": (r + 2) / (d + 2), "largest exact/bound": worst},
    )


@check("related-d-times")
def _(full: bool) -> Finding:
    sizes, rng = (10, 100, 1000), np.random.default_rng(79)
    squares, norms, steps = [], [], []
    for d in sizes:
        gradient = np.full(d, 1 / math.sqrt(d))
        squares.append(float(np.trace(outer_moment(gradient))))
        norms.append(float(np.mean(np.abs(on_sphere(rng.standard_normal((4000, d))) @ gradient))) * math.sqrt(d))
        # with ell = |grad F| = 1, a step of size a changes F on average by a (a E|g|^2/2 - 1), below 0 for smaller a
        steps.append(2 / squares[-1])
    power, square, step = (math.log(v[-1] / v[0]) / math.log(sizes[-1] / sizes[0]) for v in (norms, squares, steps))
    repaired = abs(power - 0.5) < 0.02 and abs(square - 1) < 1e-9 and abs(step + 1) < 1e-9
    numbers = {"power of d, E|g|": power, "E|g|^2": square, "largest step": step}
    return Finding(power > 0.9, repaired=repaired, numbers=numbers)
