"""Check the paper's appendix on the PL inequality |grad F|^2 >= 2 mu (F - F*) (app:pl; Corollaries 1 to 3): its
setting, the steps of its proofs, and the conditions that they need. kappa = ell/mu."""

import math

import numpy as np
import sympy as sp

from paper_checks import formulas as f
from paper_checks.registry import Finding, check


@check("pl-setting")
def _(full: bool) -> Finding:
    t, mu, start, lipschitz = sp.symbols("t mu y_0 L", positive=True)
    y = sp.Function("y")
    solution = sp.dsolve(sp.Eq(y(t).diff(t), 2 * mu * y(t)), y(t), ics={y(0): start}).rhs
    most = lipschitz**2 / (2 * mu)
    end = sp.log(most / start) / (2 * mu)
    passes = sp.simplify(solution.subs(t, end) - most) == 0 and sp.simplify(solution.diff(t) / solution).is_positive
    distance = np.geomspace(0.1, 1e6, 200)
    huber = (distance**2 / (1 + distance**2)) / (2 * (np.sqrt(1 + distance**2) - 1))
    logcosh = np.tanh(distance) ** 2 / (2 * (distance + np.log1p(np.exp(-2 * distance)) - math.log(2)))
    constants = {"pseudo-Huber": huber, "log cosh": logcosh}
    far = distance >= 1e3
    off = max(float(np.max(np.abs(v[far] * 2 * distance[far] - 1))) for v in constants.values())
    smallest = max(float(v[-1]) for v in constants.values())
    return Finding(bool(passes and off < 0.01), numbers={"PL constant at distance 1e6": smallest})


@check("pl-gradient-typo")
def _(full: bool) -> Finding:
    x, c, mu = sp.symbols("x c mu", positive=True)
    loss = mu / 2 * x**2 - c
    zero = sp.sqrt(2 * c / mu)
    printed = sp.simplify((loss**2 - 2 * mu * (loss + c)).subs(x, zero))
    repaired = sp.simplify(sp.diff(loss, x) ** 2 - 2 * mu * (loss + c))
    return Finding(
        stated=bool(printed.subs({c: 1, mu: 1}) >= 0),
        repaired=repaired == 0,
        numbers={"F^2 - 2 mu (F - F*) at the zero of F, mu = c = 1": float(printed.subs({c: 1, mu: 1}))},
    )


def _one_step(id: str) -> Finding:
    """Check in sympy that the first display of the proof of the corollary `id` ("cor1" to "cor3") follows from the
    one-step bound of its theorem at the prescribed step size alpha.

    The bound's terms become -(alpha/4)|grad F|^2, at most (alpha/4) ell^2 lambda^2 d^3, and (ell/2) alpha^2 s sigma^2
    with s = d or r; then the PL inequality turns the first into the factor 1 - mu alpha/2 on F - F*.
    """
    k, s = (f.d, f.d) if id == "cor1" else (f.r + 2, f.r)
    alpha = f.STATEMENTS[id].alpha
    progress = sp.simplify(alpha / 2 * (1 - 2 * k * f.ell * alpha) - alpha / 4) == 0
    if id == "cor1":
        bias = f.ell**2 / 8 * alpha * (1 + 2 * f.ell * alpha) * f.d**3
    else:
        bias = f.ell**2 * alpha * f.d**2 * (f.d + 2 * s * f.ell * alpha) / 8
    slack = sp.simplify((alpha / 4 * f.ell**2 * f.d**3 - bias) / (alpha * f.ell**2 * f.d**2))
    positive = all(f.value(slack, p) > 0 for p in f.paper_points(40))
    contraction = sp.simplify(2 * f.mu * alpha / 4 - f.mu * alpha / 2) == 0
    return Finding(bool(progress and positive and contraction))


for _id in ("cor1", "cor2", "cor3"):
    check(f"{_id}-one-step")(lambda full, _id=_id: _one_step(_id))  # type: ignore[misc]


@check("cor3-event")
def _(full: bool) -> Finding:
    step = sp.expand((4 * f.L**2 * f.d + 8 * f.B / f.alpha) * f.alpha / 4)
    first = sp.simplify(step - (f.L**2 * f.d * f.alpha + 2 * f.B)) == 0
    total = sp.simplify(2 / (f.mu * f.alpha) * step + 2 * f.B)
    shown = (2 * f.L**2 * f.d + 4 * f.B / f.alpha + 2 * f.B * f.mu) / f.mu
    second = sp.simplify(total - shown) == 0
    combined = 4 * sp.sqrt(2 * sp.pi) * f.n * f.T * (f.L**2 * f.d + 2 * f.B / f.alpha + f.B * f.mu) / f.mu
    tail = f.tail_probability() / sp.exp(-(f.C0**2) / (8 * f.L**2))
    third = sp.simplify(shown * tail - combined) == 0
    return Finding(bool(first and second and third))


@check("pl-geometric")
def _(full: bool) -> Finding:
    holds = True
    for q in (sp.Rational(1, 8), sp.Rational(1, 100), sp.Rational(1, 2)):
        for steps in (1, 2, 7, 60):
            total = sum((1 - q) ** k for k in range(steps))
            holds &= total == (1 - (1 - q) ** steps) / q and total <= 1 / q
            holds &= bool((1 - q) ** steps <= sp.exp(-q * steps).evalf(30))
    return Finding(bool(holds))


@check("pl-contraction")
def _(full: bool) -> Finding:
    rng, worst, ratios = np.random.default_rng(95), 0.0, list[float]()
    for _ in range(50):
        eigenvalues, rotation = np.sort(rng.uniform(0.1, 3, 3)), np.linalg.qr(rng.standard_normal((3, 3)))[0]
        h = rotation @ np.diag(eigenvalues) @ rotation.T
        x = np.concatenate([rotation.T, rng.standard_normal((200, 3))])
        gaps = np.einsum("ki,ij,kj->k", x, h, x) / 2
        least = float(np.min(np.sum((x @ h) ** 2, axis=1) / (2 * gaps)))
        worst, ratios = max(worst, least / float(eigenvalues[-1])), [*ratios, least / float(eigenvalues[0])]
    rates = [f.value(f.mu * s.alpha / 2, p) for s in f.COROLLARIES for p in f.paper_points(30)]
    holds = worst <= 1 and abs(min(ratios) - 1) < 1e-9 and max(ratios) < 1 + 1e-9 and 0 < max(rates) <= 1 / 8
    return Finding(holds, numbers={"largest mu alpha/2": max(rates), "largest mu/ell": worst})


@check("pl-proof-equality")
def _(full: bool) -> Finding:
    ratios = []
    for id in ("cor1", "cor2"):
        s = f.STATEMENTS[id]
        bound = f.unsubstituted(id).subs({f.C: s.C, f.lam: s.lam[0] / 2}).subs(f.T, s.T).subs(f.alpha, s.alpha)
        ratios += [f.value(bound / s.bound, p) for p in f.paper_points()]
    stated = all(abs(q - 1) < 1e-12 for q in ratios)
    return Finding(stated, repaired=all(q < 1 for q in ratios), numbers={"smallest ratio": min(ratios)})


@check("pl-trivial")
def _(full: bool) -> Finding:
    excess = []
    for id, size in (("cor1", f.d**3), ("cor2", f.r * f.d**2), ("cor3", f.r)):
        scale = f.n * f.eps / sp.sqrt(f.ell / f.mu * size)
        bound = f.STATEMENTS[id].bound.subs(f.K, scale**2)
        excess.append(sp.simplify(bound - (f.gap + 2 * f.L**2 / f.ell)))
    return Finding(all(e == 0 for e in excess))


@check("remark-pl")
def _(full: bool) -> Finding:
    bound = f.STATEMENTS["cor3"].bound
    sizes = [10.0**k for k in range(3, 16, 2)]
    values = [f.value(bound, {**f.SYNTHETIC, "n": 1e8, "d": d}) for d in sizes]
    steps = np.diff(values)
    order = -math.log(
        f.value(bound, {**f.SYNTHETIC, "n": 1e12}) / f.value(bound, {**f.SYNTHETIC, "n": 1e8})
    ) / math.log(1e4)
    linear = bool(np.max(steps) / np.min(steps) < 1.02 and np.min(steps) > 0)
    numbers = {"d = 1e15 over d = 1e3": values[-1] / values[0], "power of 1/n": order}
    return Finding(linear and values[-1] < 4 * values[0] and order > 1.9, numbers=numbers)
