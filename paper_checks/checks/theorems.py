"""Check each displayed parameter and bound of Theorems 1-3 and Corollaries 1-3, by substitution in sympy.

The bounds before substitution and the displayed formulas are transcribed in `paper_checks.formulas`. That
the library computes these formulas is held by `tests/theory/test_theorems.py`. The argument `id` of the functions names
a statement: a theorem, "thm1" to "thm3", or a corollary, "cor1" to "cor3".
"""

import math
from collections.abc import Callable, Mapping

import sympy as sp

from paper_checks import formulas as f
from paper_checks.registry import Finding, check


def at_parameters(statement: f.Statement) -> sp.Expr:
    """Return the proof's bound before substitution, with the statement's displayed parameters put in. The smoothing
    lambda is the last entry of the minimum that the statement gives for it, which is the entry that limits the bias."""
    bound = f.unsubstituted(statement.id)
    bound = bound.subs({f.lam: statement.lam[-1], f.C0: statement.C / sp.sqrt(2)})
    return bound.subs(f.C, statement.C).subs(f.T, statement.T).subs(f.alpha, statement.alpha)


def _growth(id: str) -> sp.Expr:
    return f.d if id in ("thm1", "cor1") else f.r + 2


def _alpha(id: str) -> Finding:
    """Check the displayed step size alpha of the statement `id`: 1 - 2 k ell alpha = 1/2 with k = d (Theorem 1,
    Corollary 1) or r + 2 (the others), and 2 ell alpha s < 1 with s = 1 or r, as the proofs need."""
    statement = f.STATEMENTS[id]
    half = sp.simplify(1 - 2 * _growth(id) * f.ell * statement.alpha - sp.Rational(1, 2)) == 0
    other = 2 * f.ell * statement.alpha * (f.r if "1" not in id else 1)
    below = all(f.value(other, point) < 1 for point in [*f.paper_points(40), dict(f.SYNTHETIC)])
    return Finding(half and below, numbers={"alpha at the synthetic setting": f.value(statement.alpha, f.SYNTHETIC)})


def _steps(id: str) -> Finding:
    """Check for the statement `id` that the displayed number of steps T times the step size alpha is the product that
    the proof sets."""
    statement, product = f.STATEMENTS[id], f.STATEMENTS[id].alpha * f.STATEMENTS[id].T
    proof = {
        "thm1": f.n * f.eps / (4 * f.ell * f.d * sp.sqrt(f.d * f.K)),
        "thm2": f.n * f.eps / (4 * f.ell * f.d * sp.sqrt(f.r * f.K)),
        "thm3": f.n * f.eps / (16 * f.ell * sp.sqrt(f.r * f.K)),
    }.get(id)
    if proof is None:
        proof = 2 / f.mu * sp.log(statement.log_argument)
    holds = f.same(product, proof)
    return Finding(holds, numbers={"T at the synthetic setting": f.value(statement.T, f.SYNTHETIC)})


def _smoothing(id: str) -> Finding:
    """Check the displayed smoothing lambda of the statement `id`: at its largest value the bias of the finite
    difference contributes to the bound what the proof says.

    That contribution is 16 L^2 d sqrt(s K)/(n eps) with s = d or r for Theorems 1 and 2, L^2 sqrt(r K)/(n eps) for
    Theorem 3, and 2 L^2 (...)/(mu n^2 eps^2) for the corollaries. For Theorem 3 and Corollary 3 the clip also stays
    at least C_0 + ell lambda d/2.
    """
    statement = f.STATEMENTS[id]
    scale = {
        "thm1": 16 * f.L**2 * f.d * sp.sqrt(f.d * f.K) / (f.n * f.eps),
        "thm2": 16 * f.L**2 * f.d * sp.sqrt(f.r * f.K) / (f.n * f.eps),
        "thm3": f.L**2 * sp.sqrt(f.r * f.K) / (f.n * f.eps),
        "cor1": 2 * f.L**2 * f.d**3 * f.K / (f.mu * f.n**2 * f.eps**2),
        "cor2": 2 * f.L**2 * f.r * f.d**2 * f.K / (f.mu * f.n**2 * f.eps**2),
        "cor3": 2 * f.L**2 * f.r * f.K / (f.mu * f.n**2 * f.eps**2),
    }[id]
    bias = f.ell**2 * f.d**3 * statement.lam[-1] ** 2 / (1 if id.startswith("thm") else 2 * f.mu)
    holds = f.same(bias, scale)
    if len(statement.lam) == 2:
        threshold = statement.C / sp.sqrt(2)
        holds &= f.same(threshold + f.ell * statement.lam[0] * f.d / 2, statement.C)
    number = f.value(statement.lam[-1], f.SYNTHETIC)
    return Finding(holds, numbers={"lambda at the synthetic setting": number})


def _clip(id: str) -> Finding:
    """Check the displayed clip C of the statement `id`: it is L d, which bounds the zeroth-order gradient of an
    L-Lipschitz loss, or in Theorem 3 and Corollary 3 sqrt(2) C_0, with C_0^2 = 8 L^2 log(...) from the proof's tail
    bound."""
    statement = f.STATEMENTS[id]
    if len(statement.lam) == 1:
        holds = f.same(statement.C, f.L * sp.sqrt(f.d) * sp.sqrt(f.d))
    else:
        holds = f.same(statement.C**2, 2 * 8 * f.L**2 * sp.log(statement.tail_argument))
    number = f.value(statement.C, f.SYNTHETIC)
    return Finding(holds, numbers={"C at the synthetic setting": number})


def _noise(id: str) -> Finding:
    """Check for the statement `id` that the noise variance sigma^2 that the proof uses, 32 C^2 T K/(n eps)^2, is that
    of the algorithm."""
    holds = f.same(f.noise**2, 32 * f.C**2 * f.T * f.K / (f.n * f.eps) ** 2)
    return Finding(holds)


def _evaluations(id: str) -> Finding:
    """Check the displayed number of zeroth-order gradients of the statement `id`: n T is at most a constant times the
    order O(.) that the statement prints, at fixed epsilon and delta (with its logarithm in the corollaries)."""
    statement = f.STATEMENTS[id]
    ratio = f.n * statement.T / statement.order
    points = [{**p, "eps": 2, "delta": 1e-6} for p in f.paper_points(60)]
    for p in points:
        p["r"] = max(1.0, p["r"] / 40)
    values = [f.value(ratio, p) for p in points]
    limit = {"thm1": 2, "thm2": 6, "thm3": 1.5, "cor1": 8}.get(id, 24)
    limit /= math.sqrt(math.log(math.e + 2 / 1e-6)) if id.startswith("thm") else 1
    return Finding(max(values) <= limit * 1.0001, numbers={"largest nT/order": max(values), "constant": limit})


def _utility(id: str) -> Finding:
    """Check symbolically for the statement `id` that the proof's last line, with the displayed parameters put in, is
    the displayed bound."""
    statement = f.STATEMENTS[id]
    equal = f.same(at_parameters(statement), statement.bound)
    if statement.log_argument is None:
        number = f.value(statement.bound, f.SYNTHETIC)
        return Finding(equal, numbers={"bound at the synthetic setting (L^2 = 1)": number})
    return _with_logarithm(id, equal)


def _with_logarithm(id: str, equal: bool) -> Finding:
    """Return the finding for the statement `id` with a logarithm, which must be positive for bound and parameters to
    make sense. `equal` says whether the displayed bound is the proof's. Stated: the logarithm is positive at a small n
    and epsilon. Repaired: bound and parameters are positive wherever the logarithm is."""
    statement = f.STATEMENTS[id]
    small = {**f.SYNTHETIC, "n": 1, "eps": 0.01, "d": 3, "r": 2.0, "delta": 0.1}
    argument = f.value(statement.log_argument, small)
    bad: bool = argument < 1
    bound = f.value(statement.bound, {**small, "gap": 1e-3})
    steps = f.value(statement.T, small)
    positive = all(f.value(statement.bound, p) > 0 and f.value(statement.T, p) > 0 for p in f.paper_points(60))
    numbers: dict[str, float | str] = {
        "displayed bound at (n, eps, d, r) = (1, 0.01, 3, 2)": bound,
        "T there": steps,
        "argument of the logarithm there": argument,
        "bound at the synthetic setting": f.value(statement.bound, f.SYNTHETIC),
    }
    return Finding(equal and not bad, repaired=equal and positive, numbers=numbers)


def _scale(id: str) -> Finding:
    """Check symbolically that parameters and bound of the statement `id` change as their units say when lengths are
    multiplied by b and losses by c: the step size by b^2/c, for example."""
    b, c = sp.symbols("b c", positive=True)
    units = {
        f.L: f.L * c / b,
        f.ell: f.ell * c / b**2,
        f.mu: f.mu * c / b**2,
        f.gap: f.gap * c,
        f.B: f.B * c,
    }
    s = f.STATEMENTS[id]
    bound_unit = (c / b) ** 2 if id.startswith("thm") else c
    clip_unit = c / b
    pairs = [(s.alpha, b**2 / c), (s.T, sp.Integer(1)), (s.C, clip_unit), (s.bound, bound_unit)]
    pairs += [(x, b) for x in s.lam]
    holds = all(sp.simplify(e.subs(units, simultaneous=True) / (e * unit)) == 1 for e, unit in pairs)
    return Finding(holds)


_PARTS: Mapping[str, Callable[[str], Finding]] = {
    "utility": _utility,
    "alpha": _alpha,
    "steps": _steps,
    "smoothing": _smoothing,
    "clip": _clip,
    "noise": _noise,
    "evaluations": _evaluations,
    "scale": _scale,
}

for _id in f.STATEMENTS:
    for _part, _function in _PARTS.items():
        check(f"{_id}-{_part}")(lambda full, _id=_id, _function=_function: _function(_id))  # type: ignore[misc]
