"""Small random problems, on which the paper's inequalities are evaluated because their constants are known exactly.

f_i(x) = c_i phi(a_i^T x - b_i) with |phi'| <= 1 and |phi''| <= 1, so f_i is c_i |a_i|-Lipschitz and c_i |a_i|^2-smooth,
and -H <= grad^2 F <= H with H = (1/n) sum c_i a_i a_i^T.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Instance:
    """A problem with the losses f_i(x) = c_i phi(a_i^T x - b_i), with `a` of shape (n, d) and `b` and `c` of shape
    (n,). If `wave` holds, phi is the sine (nonconvex, bounded); else phi(s) = sqrt(1 + s^2) - 1 (convex).
    """

    a: Array
    b: Array
    c: Array
    wave: bool

    @property
    def n(self) -> int:
        return int(self.a.shape[0])

    @property
    def d(self) -> int:
        return int(self.a.shape[1])

    @property
    def lipschitz(self) -> float:
        return float(np.max(self.c * np.linalg.norm(self.a, axis=1)))

    @property
    def smoothness(self) -> float:
        return float(np.max(self.c * np.sum(self.a**2, axis=1)))

    @property
    def curvature(self) -> Array:
        """The matrix H = (1/n) sum c_i a_i a_i^T, which bounds the Hessian of the mean loss F: -H <= grad^2 F <= H."""
        out: Array = (self.a * self.c[:, None]).T @ self.a / self.n
        return out

    @property
    def r(self) -> float:
        """The effective rank tr(H)/|H| of the matrix H (the property `curvature`)."""
        return float(np.trace(self.curvature) / np.linalg.norm(self.curvature, 2))

    @property
    def bound(self) -> float:
        """A number B with |F| <= B for the mean loss F. It is valid only if phi is the sine."""
        return float(np.mean(self.c))

    def minimum(self) -> float:
        """Return the least mean loss F*, for which the rows a_i must be linearly independent, because then every
        sample's loss is least at the same point. Raises ValueError if they are not."""
        if np.linalg.matrix_rank(self.a) < self.n:
            raise ValueError("the minimum is known only for linearly independent a_i")
        return -float(np.mean(self.c)) if self.wave else 0.0

    def losses(self, x: Array) -> Array:
        """Return the samples' losses f_i(x), shape (..., n), at points x of shape (..., d)."""
        s = x @ self.a.T - self.b
        out: Array = self.c * (np.sin(s) if self.wave else np.hypot(1, s) - 1)
        return out

    def loss(self, x: Array) -> Array:
        out: Array = self.losses(x).mean(axis=-1)
        return out

    def gradients(self, x: Array) -> Array:
        """Return the samples' gradients grad f_i(x), shape (..., n, d), at points x of shape (..., d)."""
        s = x @ self.a.T - self.b
        slope = np.cos(s) if self.wave else s / np.hypot(1, s)
        return (self.c * slope)[..., None] * self.a

    def gradient(self, x: Array) -> Array:
        s = x @ self.a.T - self.b
        slope = np.cos(s) if self.wave else s / np.hypot(1, s)
        out: Array = (self.c * slope) @ self.a / self.n
        return out

    def differences(self, x: Array, u: Array, smoothing: float) -> Array:
        """Return the samples' finite differences (f_i(x + lambda u) - f_i(x - lambda u))/(2 lambda), shape (..., n),
        where lambda is `smoothing`."""
        step = smoothing * u
        out: Array = (self.losses(x + step) - self.losses(x - step)) / (2 * smoothing)
        return out


def random_instance(rng: np.random.Generator, n: int, d: int, wave: bool) -> Instance:
    """Draw a problem with n samples in d dimensions: independent rows a_i of unequal lengths, random offsets b_i and
    random weights c_i. If `wave`, its losses are sines."""
    scales = rng.uniform(0.4, 1.3, size=n)
    a = rng.standard_normal((n, d)) * (scales / math.sqrt(d))[:, None]
    return Instance(a, rng.uniform(-1.5, 1.5, n), rng.uniform(0.5, 1.5, n), wave)


def on_sphere(z: Array) -> Array:
    """Return the vectors z, along the last axis, scaled to length sqrt(d)."""
    scaled: Array = math.sqrt(z.shape[-1]) * z / np.linalg.norm(z, axis=-1, keepdims=True)
    return scaled


def outer_moment(a: Array) -> Array:
    """Return E[(u^T a)^2 u u^T] = d/(d+2) (2 a a^T + |a|^2 I) for u uniform on the sphere of radius sqrt(d), the last
    statement of Lemma lm:sphere (iii)."""
    d = len(a)
    moment: Array = d / (d + 2) * (2 * np.outer(a, a) + (a @ a) * np.eye(d))
    return moment


def largest_change(draws: Iterable[Array], clip: float) -> float:
    """Return the largest change, over matrices of shape (n, width), of the mean of a matrix's rows, each clipped to the
    norm `clip`, when the first row is turned around: the replaced record that changes such a mean most."""
    largest = 0.0
    for rows in draws:
        clipped = rows * np.minimum(1, clip / np.linalg.norm(rows, axis=1, keepdims=True))
        largest = max(largest, float(np.linalg.norm(2 * clipped[0])) / len(rows))
    return largest


def circle(points: int) -> Array:
    """Return equally spaced directions u on the circle of radius sqrt(2) in R^2. An average over them is exact for
    polynomials of degree below `points`."""
    angle = 2 * math.pi * (np.arange(points) + 0.5) / points
    return math.sqrt(2) * np.stack([np.cos(angle), np.sin(angle)], axis=1)


_MODES = {
    "a": lambda i: np.ones_like(i),
    "b": lambda i: 1 / np.sqrt(i),
    "c": lambda i: 1 / i,
}
DIMENSIONS = (20, 50, 100, 200, 500, 1000, 2000)
"""The dimensions d of the paper's synthetic experiment."""


def spectrum(mode: str, d: int) -> Array:
    """Return the diagonal of the matrix A of the paper's synthetic quadratic loss, for mode a, b or c (trace of
    order d, sqrt(d), log d)."""
    values: Array = _MODES[mode](np.arange(1.0, d + 1))
    return values
