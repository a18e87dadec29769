"""Check section 15 of the sharpened theorem's proof (docs/explanation/sharpened-theorem.md): directions of low rank.

In this module u = rho^(-1/2) sum_j a_j b_j' is a direction of rank rho for a weight matrix, with random signs a_j and
b_j. g is a gradient, G the same as a matrix, and H a curvature matrix with largest eigenvalue 1 and trace at most r."""

import itertools
import math

import numpy as np
from scipy.integrate import quad
from scipy.special import gamma, kve

from dpzero_theory.check import Array
from dpzero_theory.theory.sharp import constants
from dpzero_theory.theory.sharp.products import Products
from paper_checks.outcome import SEED, STANDARD_ERRORS, Checked, within
from paper_checks.sharp.signs import Block, Tail, factored, off_the_minima, removed_along

SHAPES: tuple[tuple[int, tuple[Block, ...]], ...] = (
    *((1, ((2, 2),)), (1, ((3, 4),)), (1, ((8, 8),)), (1, ((3, 9),)), (2, ((2, 3),)), (3, ((2, 2),))),
    *((1, ((3, 3), 3)), (1, ((3, 2), (2, 2)))),
)
"""The rank and the blocks of the directions of which all patterns are summed over."""


def _gradients(rng: np.random.Generator, blocks: tuple[Block, ...]) -> list[Array]:
    """Return unit gradients for these blocks: flat, of rank one and a little of another, and random ones."""
    found = []
    for kind in range(6):
        parts = []
        for block in blocks:
            m, n = (1, block) if isinstance(block, int) else block
            sizes = np.array([1.0, *np.full(min(m, n) - 1, 0.3 * (kind == 1))])
            left, right = (
                np.linalg.qr(np.ones((size, 1)) + kind % 2 * rng.standard_normal((size, len(sizes))))[0]
                for size in (m, n)
            )
            if kind == 0:
                parts.append(np.outer(rng.choice([-1.0, 1.0], m), rng.choice([-1.0, 1.0], n)).ravel())
            elif kind == 1:
                parts.append((left * sizes @ right.T).ravel())
            else:
                parts.append((rng.standard_normal(m * n) ** (kind - 1)) * rng.choice([1.0, 0.1]))
        g = np.concatenate(parts)
        found.append(g / float(np.linalg.norm(g)))
    return found


def fourth_moments() -> Checked:
    """Section 15 of the sharpened theorem's proof, summed over all signs: E[(u'g)^2 u'Hu] is at most what `spread`
    says, for the worst H of each trace r, which is a projection on eigenvectors of E[(u'g)^2 uu']; and E[(u'Hu)^2] at
    most (1 + 2/rho)(tr(H)^2 + 2 |H|^2). Both come within a quarter of their bounds."""
    rng = np.random.default_rng(SEED + 40)
    worst = tightest = 0.0
    for rank, blocks in SHAPES:
        u = factored(1, rank, *blocks)[:, 0]
        d = u.shape[1]
        for g in _gradients(rng, blocks):
            values, vectors = np.linalg.eigh((u * ((u @ g) ** 2)[:, None]).T @ u / len(u))
            # u'Hu for each pattern and each r, for H has the r eigenvectors of the largest eigenvalues
            curved = np.cumsum((u @ vectors[:, ::-1]) ** 2, axis=1)
            for r in range(1, d + 1):
                k = constants.constants(np.ones(1), d, r, f"low-rank:{rank}")
                # spread^2 = E[(u'g)^2 u'Hu]: K = 1
                ratio = float(values[-r:].sum()) / k.spread**2
                second = float(np.mean(curved[:, r - 1] ** 2)) / ((1 + 2 / rank) * (r * r + 2 * r))
                worst, tightest = max(worst, ratio, second), max(tightest, min(ratio, second))
    return within(
        worst if tightest > 0.75 else math.inf,
        1 + 1e-12,
        f"fourth moments of directions of low rank, all signs: largest ratio to the bound; nearest {tightest:.2f}",
    )


def factored_curvature() -> Checked:
    """Section 15 of the sharpened theorem's proof, summed over all signs: for H = A x B, E[(u'g)^2 u'Hu] is at most
    what `spread` says with the layer rank r_A + r_B, also for two matrices with different factors and any H between
    them, and for one matrix and rank 1 at most tr(H) (1 + 2/r_A)(1 + 2/r_B)."""
    rng = np.random.default_rng(SEED + 41)
    worst = 0.0
    for (rank, blocks), _ in itertools.product(SHAPES, range(60)):
        shapes = [block for block in blocks if not isinstance(block, int)]
        if len(shapes) < len(blocks):
            continue
        u = factored(1, rank, *blocks)[:, 0]
        roots, ranks = [], []
        for block in shapes:
            pair = [rng.standard_normal((size, rng.integers(1, size + 1))) * rng.random() ** 2 for size in block]
            if rng.random() < 0.5:
                pair = [np.ones((size, 1)) + 0.3 * part for size, part in zip(block, pair, strict=True)]
            pair = [part / np.linalg.norm(part, 2) for part in pair]
            ranks.append([float(np.sum(part**2)) for part in pair])
            roots.append(np.kron(*pair))
        width = max(root.shape[1] for root in roots)
        # with one root below the other, the blocks off the diagonal of H are not 0
        whole = np.concatenate([np.pad(root, ((0, 0), (0, width - root.shape[1]))) for root in roots])
        largest = float(np.linalg.norm(whole, 2)) ** 2
        r = max(1.0, float(np.sum(whole**2)) / largest)
        curved = np.sum((u @ whole) ** 2, axis=1) / largest
        layer = max(sum(pair) for pair in ranks)
        k = constants.constants(np.ones(1), u.shape[1], r, f"low-rank:{rank}", layer_rank=layer)
        top = np.linalg.eigh((u * curved[:, None]).T @ u / len(u))[0][-1]  # the largest over all unit gradients
        worst = max(worst, float(top) / k.spread**2)
        if rank == 1 and len(shapes) == 1:
            (a, b), *_ = ranks
            worst = max(worst, float(top) / (a * b * (1 + 2 / a) * (1 + 2 / b)))
    return within(worst, 1 + 1e-12, "fourth moments at factored curvature, all signs: largest ratio to the bound")


def _tail_of(k: int, rank: int) -> Tail:
    """Return the function (m, c) -> E(v - c)_+^m for one direction of any rank, by the density of a product, or for two
    of rank 2, whose projections have Laplace's law."""
    if k == 1:
        order = (rank - 1) / 2
        unit = 2 * math.sqrt(rank) / (math.sqrt(math.pi) * gamma(rank / 2))

        def density(s: float) -> float:
            x = math.sqrt(rank) * s
            return float(unit * (x / 2) ** order * kve(order, x) * math.exp(-x))

        def single(m: int, c: float) -> float:
            ends = (c, c + 1, c + 8, c + 60)
            return sum(
                float(quad(lambda s: (s - c) ** m * density(s), *pair, epsabs=0, epsrel=1e-9)[0])
                for pair in itertools.pairwise(ends)
            )

        return single

    nodes, weights = np.polynomial.legendre.leggauss(200)
    angles, mass = (nodes + 1) * math.pi / 4, weights * math.pi / 4
    rate = 2 * (
        np.cos(angles) + np.sin(angles)
    )  # of exp(-rate v) with v = length/sqrt(2): the density is 2 exp(-sqrt(2)(s + t))

    def double(m: int, c: float) -> float:
        # the integral over v > c of (v - c)^m 4 v exp(-rate v)
        fall = np.exp(-rate * c) * math.factorial(m) / rate ** (m + 1)
        return float(mass @ (4 * fall * (c + (m + 1) / rate)))

    return double


def bounds() -> Checked:
    """Section 15 of the sharpened theorem's proof: the library's bounds on what the clip removes along directions of
    low rank (`theory.sharp.signs.removed`) are the minima that section 6 defines, with the law of products, by another
    quadrature and search: at most 2% above them, and not below."""
    worst = 0.0
    for k, rank, clips in (
        (1, 1, (0.3, 1.0, 2.0, 5.0, 9.0)),
        (1, 4, (0.5, 1.5, 3.0, 6.0)),
        (2, 2, (0.5, 1.0, 1.5, 3.0, 5.0)),
    ):
        tail = _tail_of(k, rank)
        for c in clips:
            worst = max(worst, off_the_minima(removed_along(f"low-rank:{rank}", c, k), tail, c))
    return within(
        worst, 1.0, "what clipping removes along low rank, and its minima: largest deviation over the allowed"
    )


def law_of_projections() -> Checked:
    """Section 15 of the sharpened theorem's proof: the law that bounds projections has E(v - c)_+^3 and E(v - c)_+^4 as
    sampled, for K from 2 to 1,000 directions, within 4.5 standard errors and 0.1%."""
    rng = np.random.default_rng(SEED + 42)
    worst = 0.0
    for k, rank in ((2, 1), (5, 1), (5, 4), (40, 1), (300, 2), (1000, 1), (16, 1000)):
        size = 2_000_000 // k
        x = rng.chisquare(rank, (size, k)) / rank
        v = np.sqrt(np.mean(x * rng.standard_normal((size, k)) ** 2, axis=1))
        for c, m in itertools.product((0.3, 1 - 1 / math.sqrt(k), 1.0, 1 + 1 / math.sqrt(k)), (3, 4)):
            sample = np.maximum(v - c, 0) ** m
            value = float(Products(k, rank).excess(np.array([c]), (m, 0))[0][0])
            error = float(sample.std()) / math.sqrt(size) + 1e-3 * value / STANDARD_ERRORS
            worst = max(worst, abs(float(sample.mean()) - value) / error)
    return within(worst, STANDARD_ERRORS, "law of projections on low rank against samples: largest z")
