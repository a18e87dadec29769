"""Dominating pairs of one subsampled Gaussian release, for each neighbouring relation and sampling.

One release is the sum of the clipped contributions of a batch plus Gaussian noise. Lengths are in units of the
per-record clip C, so the noise has standard deviation s = `noise_multiplier`, and q = `sample_rate` is the
probability that a given record is in the batch. A pair of laws (P, Q) on the line dominates a mechanism if for every
two neighbouring data sets and every alpha > 0 the divergence sup over E of P(E) - alpha Q(E) is at least that of the
mechanism's two output laws; dominating pairs compose adaptively (Zhu, Dong and Wang 2022, Theorem 10). The privacy
loss L(x) of an output x is the log of the density ratio of P to Q. With A(x) = 1 - q + q exp((2x - 1)/(2 s^2)), the
density ratio of (1-q) N(0, s^2) + q N(1, s^2) to N(0, s^2), and B(x) = A(-x):

    kind         P                           loss L(x)          source
    remove       (1-q) N(0,s^2) + q N(1,s^2)   log A              Zhu, Dong and Wang, Theorem 11; here Q = N(0,s^2)
    add          N(0,s^2)                      -log A             the same pair reversed
    replace      (1-q) N(0,s^2) + q N(1,s^2)   log A - log B      below; here Q = (1-q) N(0,s^2) + q N(-1,s^2)
    fixed-size   two half-lines, see below                      Balle, Barthe and Gaboardi 2018; below

Replace-one, Poisson. Given the rest of the batch the two laws are (1-q) N(0) + q N(v) and (1-q) N(0) + q N(v')
with |v|, |v'| <= 1. Among all sets E of a given N(0)-probability the half-space {x > c} maximises N(1)(E) over
all N(v)(E) and minimises N(-1)(E) over all N(v')(E) (Neyman and Pearson, twice), so it is optimal for
P(E) - alpha Q(E) at every alpha >= 0: the pair dominates, and it is attained.

Fixed size B of n, without replacement, q = B/n. Exchange the record with a uniformly random one outside the batch:
given the rest, the batch holds the record (probability q) or another one in its place, at distance up to 2.

  - add-remove (B fixed, n changes by one): exactly the Poisson pairs remove and add at s/2.
  - replace-one: for alpha >= 1 the divergence is at most that of `remove` at s/2 (advanced joint convexity), and
    for alpha < 1 that of `add` at s/2. One step attains both, but one pair with this whole profile has the loss
    of `remove` where it is positive, that of `add` where it is negative, and an atom at 0 (kind `fixed-size`).
    Its T-fold composition is an upper bound; the compositions of `remove` and of `add` at s/2 are lower bounds
    (they are attained by data), and the truth is in between.
  - zero-out: the pairs of the module `zeroed`.
"""

import math
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray
from scipy.special import log_ndtr

from dpzero_theory.check import Array
from dpzero_theory.privacy.certified.laws.arithmetic import UNIT


@dataclass(frozen=True)
class Branch:
    """A part of the line of outputs, start < x < stop, on which P and the privacy loss L each have one formula.

    The formulas use the density ratio A(x) = 1 - q + q exp((2x - 1)/(2 s^2)) and B(x) = A(-x), with q the sample rate
    and s the noise. There P(dx) = N(0, s^2)(dx) A(x)^a and L = a_slope log A + b_slope log B, so that the integrand of
    the moment E_P e^{zL} is N(0, s^2)(dx) A^{a + z a_slope} B^{z b_slope}.
    """

    a: float
    a_slope: float
    b_slope: float
    start: float
    stop: float = math.inf


_BRANCHES = {
    "remove": (Branch(1.0, 1.0, 0.0, -math.inf),),
    "add": (Branch(0.0, -1.0, 0.0, -math.inf),),
    "replace": (Branch(1.0, 1.0, -1.0, -math.inf),),
    "fixed-size": (Branch(1.0, 1.0, 0.0, 0.5), Branch(0.0, -1.0, 0.0, 0.5)),
}


@dataclass(frozen=True)
class Pair:
    """A dominating pair (P, Q) of one release, of one of four kinds.

    Attributes:
        kind: `remove`, if the record is there under P and missing under Q; `add`, the other way round; `replace`, if it
            has another value under Q; `fixed-size`, for replace-one with batches of fixed size.
        sample_rate: q in (0, 1].
        noise: s, the standard deviation of the noise over the pair's own unit of length.
        start, stop: if one of them is finite, the pair has only the outputs between the two, and the masses of P and Q
            are less than 1. For these bounds the outputs of the kind `fixed-size` are put on one line: the second
            branch, mirrored, then the atom at loss 0, then the first branch.
    """

    kind: str
    sample_rate: float
    noise: float
    start: float = -math.inf
    stop: float = math.inf

    @property
    def branches(self) -> tuple[Branch, ...]:
        """The parts of the line of outputs with one formula each, cut to `start` and `stop`."""
        first, *others = _BRANCHES[self.kind]
        if not self.partial:
            return (first, *others)
        cut = replace(first, start=max(first.start, self.start), stop=self.stop)
        return (cut, *(replace(other, stop=-self.start) for other in others if self.start < 0))

    listed: ClassVar[tuple[None]] = (None,)
    """The field of this name of `parts.OneOf`, for releases of one kind."""

    @property
    def kinds(self) -> "tuple[tuple[float, Pair], ...]":
        """The field of this name of `parts.OneOf`, for releases of one kind: this pair, with the chance 1."""
        return ((1.0, self),)

    @property
    def shift(self) -> float:
        """The distance of the outputs' means under P and under Q if the batch holds every record, in units of s."""
        return (2 if self.kind == "replace" else 1) / self.noise

    @property
    def partial(self) -> bool:
        """Whether `start` or `stop` leaves some outputs out."""
        return self.start > -math.inf or self.stop < math.inf

    @property
    def missing(self) -> float:
        """The probability under P of the outputs beyond `stop`, which are left out."""
        return math.exp(self.beyond(self.stop)[0]) if self.stop < math.inf else 0.0

    def beyond(self, x: float) -> tuple[float, float]:
        """The logs of the probabilities that an output is above x under P and under Q, the first and the second law;
        `start` and `stop` are ignored.

        It must not be used for the kind `add`, whose large losses are at the other end of the line.
        """
        s, q = self.noise, self.sample_rate
        keep = math.log1p(-q) + float(log_ndtr(-x / s)) if q < 1 else -math.inf
        log_p = np.logaddexp(keep, math.log(q) + log_ndtr((1 - x) / s))
        replaced = self.kind == "replace"
        log_q = np.logaddexp(keep, math.log(q) + log_ndtr(-(x + 1) / s)) if replaced else log_ndtr(-x / s)
        return float(log_p), float(log_q)

    @property
    def largest_loss(self) -> float:
        """The largest privacy loss L, which is finite for the kind `add` alone, where L <= -log(1 - q) with q the
        sample rate."""
        return -math.log1p(-self.sample_rate) if self.kind == "add" else math.inf

    @property
    def atom(self) -> float:
        """The probability under P, the first law, that the loss is exactly 0, which only the kind `fixed-size`
        allows."""
        if self.kind != "fixed-size" or self.start > 0:
            return 0.0
        return (1 - self.sample_rate) * math.erf(0.5 / (math.sqrt(2) * self.noise))

    def log_mixture(self, x: Array) -> Array:
        """The log of the density ratio A(x) = 1 - q + q exp((2x - 1)/(2 s^2)), with q the sample rate and s the noise.

        A is the density of the output with a sampled record over that without it. The relative error of the returned
        log is small where the log is near 0, and its absolute error is small elsewhere; `rounding` bounds them.
        """
        q = self.sample_rate
        u = (2 * x - 1) / (2 * self.noise**2)
        if q == 1:
            return np.asarray(u)
        y = q * np.expm1(np.minimum(u, 700.0))
        far = np.abs(y) >= 0.5
        result = np.asarray(np.log1p(np.clip(y, -0.5, 0.5)))
        result[far] = np.logaddexp(math.log1p(-q), math.log(q) + u[far])
        return result

    def posterior(self, x: Array, log_mixture: Array) -> Array:
        """The probability that the batch holds the record given the output x. log_mixture: log A(x), from
        `Pair.log_mixture`.

        It is q N(1, s^2)(x) / ((1-q) N(0, s^2)(x) + q N(1, s^2)(x)), with q the sample rate and s the noise, and it is
        s^2 times the derivative of log A.
        """
        return np.exp(self.log_posterior(x, log_mixture))

    def log_posterior(self, x: Array, log_mixture: Array) -> Array:
        """The log of `posterior`, which stays finite where `posterior` underflows to 0. log_mixture: log A(x)."""
        u = (2 * x - 1) / (2 * self.noise**2)
        return np.asarray(np.minimum(math.log(self.sample_rate) + u - log_mixture, 0.0))

    def log_mixture_shifted(self, x: Array, angle: float) -> NDArray[np.complex128]:
        """The log of the density ratio A(x) = 1 - q + q exp((2x - 1)/(2 s^2)) at the complex output x + i s^2 angle.

        q is the sample rate and s the noise; |angle| < pi. It is the branch of the logarithm that is real at angle 0.
        """
        q = self.sample_rate
        u = (2 * x - 1) / (2 * self.noise**2)
        small = np.minimum(u, -math.log(q))
        y = q * (np.expm1(small) * math.cos(angle) - 2 * math.sin(angle / 2) ** 2) + 1j * q * np.exp(small) * math.sin(
            angle
        )
        mixture = 1 - q + q * np.exp(small + 1j * angle)
        close = np.abs(y) < 0.5
        square = np.where(close, 2 * y.real + np.abs(y) ** 2, 0.0)
        near = np.where(close, 0.5 * np.log1p(square), np.log(np.abs(mixture))) + 1j * np.angle(
            np.where(close, 1 + y, mixture)
        )
        rest = (1 - q) / q * np.exp(-np.maximum(u, -math.log(q)) - 1j * angle)
        return np.where(u <= -math.log(q), near, math.log(q) + u + 1j * angle + np.log(1 + rest))


def losses(pair: Pair, branch: Branch, x: Array, log_width: Array) -> tuple[Array, Array]:
    """The privacy losses of a pair at the outputs x, and the logs of P's masses of short intervals there.

    branch: the part of the line of outputs with its formulas. The length of an interval is sqrt(2 pi) s e^{log_width},
    where s is the noise.
    """
    log_a = pair.log_mixture(x)
    loss = branch.a_slope * log_a
    if branch.b_slope:
        loss = loss + branch.b_slope * pair.log_mixture(-x)
    return loss, -x * x / (2 * pair.noise**2) + log_width + branch.a * log_a


def loss_at(pair: Pair, branch: Branch, x: Array) -> Array:
    """The privacy loss at the outputs x on one branch of the pair."""
    return losses(pair, branch, x, np.zeros(len(x)))[0]


def rounding(pair: Pair, branch: Branch, x: Array, log_width: Array) -> tuple[Array, Array]:
    """Bounds on the absolute rounding errors of the privacy losses, and on the relative ones of the masses, that
    `losses` returns.

    pair, branch, x, log_width: the arguments of `losses`: a pair, a part of its line of outputs, outputs on it, and the
    logs of the lengths of short intervals there, in units of sqrt(2 pi) times the noise.
    """
    s, q = pair.noise, pair.sample_rate
    keep = math.log1p(-q) if q < 1 else 0.0

    def error(y: Array, log_mixture: Array) -> Array:
        post = pair.posterior(y, log_mixture)
        coarse = np.where(np.abs(log_mixture) > 0.4, -keep * (1 - post) - math.log(q) * post, 0.0)
        size: Array = 16 * UNIT * (np.abs(log_mixture) + (1 + np.abs(2 * y - 1) / (2 * s * s)) * post + coarse)
        return size

    log_a = pair.log_mixture(x)
    loss_error = error(x, log_a)
    if branch.b_slope:
        loss_error = loss_error + error(-x, pair.log_mixture(-x))
    mass_error = UNIT * (24 + 3 * (x / s) ** 2 + 4 * np.abs(log_width) + 4 * np.abs(branch.a * log_a))
    return loss_error, mass_error + branch.a * loss_error


def inverse(pair: Pair, branch: Branch, level: Array) -> Array:
    """For each `level` the output x of a pair at which the log of a density ratio is about that level.

    branch: the part of the line of outputs with its formulas. With A(x) the density ratio of `Pair.log_mixture`, the
    log ratio is log A(x), or log A(x) - log A(-x) for the kind `replace`. Both rise in x. The error of x is not bounded
    here: callers evaluate the loss at x and bound its distance from `level`.
    """
    q, square = pair.sample_rate, pair.noise**2
    if not branch.b_slope:
        with np.errstate(divide="ignore"):
            near = np.log(np.maximum(q + np.expm1(np.minimum(level, 1.0)), 0.0))
        far = level + np.log1p(-(1 - q) * np.exp(-np.maximum(level, 1.0)))
        return np.asarray(square * (np.where(level > 1, far, near) - math.log(q)) + 0.5)
    if q == 1:
        return np.asarray(square * level / 2)
    size = np.abs(level)
    with np.errstate(divide="ignore"):
        log_sinh = size / 2 + np.log(-np.expm1(-size) / 2)
    log_w = math.log1p(-q) + log_sinh - math.log(q) + 1 / (2 * square)
    found = np.where(log_w > 18, log_w + math.log(2), np.arcsinh(np.exp(np.minimum(log_w, 18.0))))
    return np.asarray(square * (level / 2 + np.sign(level) * found))
