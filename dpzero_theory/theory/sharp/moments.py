"""The `Constants` for problems that bound a mean over samples of gradient norms, and not their maximum.

The module `constants` computes them for samples' gradients that all have norm at most `Problem.lipschitz`, which is
hard to measure. Here the problem has `gradient_moment` or `mean_excess` in its place. Proof:
dpzero_theory/theory/sharp/proof.md, "No Lipschitz constant".
"""

import functools
import math
from collections.abc import Callable
from dataclasses import replace

import numpy as np

from dpzero_theory.check import Array
from dpzero_theory.theory.problem import Problem
from dpzero_theory.theory.sharp.constants import Constants, law_of

# `_suprema` seeks suprema over x > 0 of x^(m-1) f(x), where f falls, in this range. Below it f(x) is f(0), up to
# rounding; above it f(x) is below e^-50.
_SMALLEST, _LARGEST = 1e-6, 15.0
# A supremum is sought on 96 cells of x. Then, two times, each cell that may hold the largest value is divided into 16
# parts. The bound that is returned exceeds the supremum by less than (m - 1)/3000 of it, for the m-th moment, m <= 64.
_CELLS, _PARTS, _ROUNDS = 96, 16, 3


def without_lipschitz(k: Constants, c: Array, p: Problem, direction: str, directions: int) -> Constants:
    """Return the `Constants` that `certificate` needs, for a problem with `gradient_moment` or `mean_excess`.

    Args:
        k: the constants for samples' gradients that all have norm at most `Problem.gradient_unit`, at the clips `c`.
        c: clips C/(A sqrt(K)) > 0, shape (clips,), where C clips the norm of a sample's K finite differences and A is
            `Problem.gradient_unit`.
        p: the problem.
        direction: the name of the distribution of the directions, such as "sphere".
        directions: K >= 1, the number of directions in a step.

    Returns:
        The constants; arrays have one entry for each clip.
    """
    if p.gradient_moment is not None:
        return _by_moment(k, c, p, direction, directions)
    assert p.mean_excess is not None
    return _by_excess(k, c, p.r, p.mean_excess[1] / p.mean_excess[0])


def _by_moment(k: Constants, c: Array, p: Problem, direction: str, directions: int) -> Constants:
    # The samples' mean of ||grad f_i||^m is at most A^m, m = `power`, and the clips c are C/(A sqrt(K)). `_suprema`
    # returns numbers b and w, with which bias is b/c^(m-1) and excess is w/c^(m-1).
    assert p.gradient_moment is not None
    power = p.gradient_moment[0]
    bias, excess = _suprema(p.d, p.r, direction, directions, power)
    with np.errstate(over="ignore"):
        larger = c ** (1 - power)
        lost = np.minimum(excess * larger, k.spread)
        return replace(
            k,
            kept=np.ones_like(c),
            bias=np.minimum(bias * larger, 1.0),
            quadratic=np.full_like(c, k.spread**2),
            cross=k.spread * lost,
            excess=lost,
        )


def _by_excess(k: Constants, c: Array, r: float, share: float) -> Constants:
    # The constants if the samples' mean of max(||grad f_i|| - t, 0) is at most `share` times t. The clips c are C/(t
    # sqrt(K)), r is `Problem.r`, and `k` has the constants for gradients of length at most t.
    return replace(
        k,
        bias=k.bias + k.kept * share,
        cross=k.cross * (1 + share) + k.spread**2 * share,
        excess=k.excess + k.spread * share,
        sampled=np.sqrt(k.sampled**2 + 2 * c * k.spread * math.sqrt(r) * share),
    )


@functools.lru_cache(maxsize=4096)
def _suprema(d: int, r: float, direction: str, directions: int, power: float) -> tuple[float, float]:
    # Upper bounds on b and w, the suprema over x > 0 of x^(m-1) beta(x) and of x^(m-1) omega(x), for m = `power`. If
    # clipping to norm x sqrt(K) removes phi from U'a, where a is a unit vector and U the K directions, beta(x) is
    # E[phi'U'a]/K, and omega(x)^2 bounds E[phi'U'HU phi]/K^2 for every matrix H with 0 <= H <= I and trace(H) <= r.
    law = law_of(direction)
    # For random signs and their products (`removed` is None) moments of v = ||U'a||/sqrt(K) bound both suprema, since
    # (v - x)_+ x^(m-1) <= kappa v^m with kappa = (m-1)^(m-1)/m^m, and beta(x) <= E[(v - x)_+^2]^(1/2).
    if law.removed is None:
        kappa = math.exp((power - 1) * math.log(power - 1) - power * math.log(power))
        spread = (law.moment(2) * r * (r + 2) / directions + (1 - 1 / directions) * r) ** 0.25
        # Moments of the projection v on one direction of low rank bound those on K, which is smaller in convex order.
        alone = 1 if math.isfinite(law.rank) else directions
        moments = [_gaussian_moment(alone, j * power) * law.moment(j * power / 2) for j in (2, 4)]
        return kappa * math.sqrt(moments[0]), kappa * moments[1] ** 0.25 * spread

    removed = law.removed
    edges = np.concatenate([[_SMALLEST], np.geomspace(0.02, min(law.largest(d, directions), _LARGEST), _CELLS)])
    return (
        _supremum(edges, lambda x: removed(x, d, r, directions)[0], power - 1),
        _supremum(edges, lambda x: removed(x, d, r, directions)[1], power - 1),
    )


def _gaussian_moment(directions: int, power: float) -> float:
    # E[v^power], where v is the length of K = `directions` independent standard normal numbers over sqrt(K)
    half = directions / 2
    return math.exp(math.lgamma(half + power / 2) - math.lgamma(half) - power / 2 * math.log(half))


def _supremum(edges: Array, falling: Callable[[Array], Array], power: float) -> float:
    # On a cell x^power is largest at the upper end and `falling` at the lower one, so their product is an upper bound.
    low, high = edges[:-1], edges[1:]
    for _ in range(_ROUNDS - 1):
        values = falling(low)
        may_hold = high**power * values >= (low**power * values).max()
        parts = low[may_hold, None] * (high / low)[may_hold, None] ** (np.arange(_PARTS + 1) / _PARTS)
        low, high = parts[:, :-1].ravel(), parts[:, 1:].ravel()
    return float((high**power * falling(low)).max())
