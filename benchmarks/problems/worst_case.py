"""A convex loss on which runs come close to the sharpened certificate, and its runs by a reduction to two numbers.

    f(x; i) = a_i phi(x_1) + psi(x_2, ..., x_(k+1)),     F_S = slope phi + psi,

with phi(t) = 0 for t <= 0, t^2/(2 w) up to t = w, then t - w/2, and psi(y) = (rho^2/h) (sqrt(1 + h^2 ||y||^2/rho^2) -
1). The slopes a_i are `forward` > 0 for some records and -`backward` < 0 for the others, and `slope` is their mean.
Clipping keeps the smallest part of the mean gradient if gradients oppose each other like this. A run starts at x_1 =
start and goes down the slope at a constant gradient until the slope ends. Meanwhile the noise keeps the coordinates of
psi, whose curvature is h, as large as the certificate says. No other coordinate matters, so d is free.

The loss and the gradient depend on x only through x_1 and ||y||, where y = (x_2, ..., x_(k+1)). With Gaussian
directions and as the smoothing lambda -> 0 these two numbers are a Markov chain. The clipped means and the step depend
on the K directions through the inner products of three Gaussian vectors in R^K, which six numbers determine, and on the
directions orthogonal to both gradients through one chi-square number. `run` draws those, so a step costs the same for
every n, d, k and K.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from dpzero_theory.check import Array

_BLOCK = 256


@dataclass(frozen=True, kw_only=True)
class WorstCase:
    """The convex problem f(x; i) = a_i phi(x_1) + psi(x_2, ..., x_(k+1)) that is defined at the top of the module.

    Attributes:
        n: the number of samples.
        d: the dimension, at least curved + 1.
        opposing: how many samples slope backward, less than n.
        forward: the slope a_i > 0 of the other samples.
        backward: minus the slope a_i of the opposing samples, >= 0.
        width: w > 0, the length over which the slope ends.
        start: x_1 of the start, larger than the width.
        curved: k >= 1, the number of coordinates in psi.
        curvature: h > 0, that of psi.
        saturation: rho > 0, which ||grad psi|| stays below.
    """

    n: int
    d: int
    opposing: int
    forward: float
    backward: float
    width: float
    start: float
    curved: int
    curvature: float
    saturation: float

    @property
    def share(self) -> float:
        """The share of the samples that slope forward."""
        return 1 - self.opposing / self.n

    @property
    def slope(self) -> float:
        """The mean of the slopes a_i, which is ||grad F_S|| wherever x_1 >= w and psi is at its minimum."""
        return self.share * self.forward - (1 - self.share) * self.backward

    @property
    def lipschitz(self) -> float:
        """The Lipschitz constant L of every f(x; i)."""
        return math.hypot(max(self.forward, self.backward), self.saturation)

    @property
    def smoothness(self) -> float:
        """The smoothness constant ell of every f(x; i).

        It is that of the slope's rounded end (phi) for the steepest sample, or the curvature h of the curved
        coordinates if that is larger.
        """
        return max(max(self.forward, self.backward) / self.width, self.curvature)

    @property
    def r(self) -> float:
        """The effective rank tr(H)/ell with H = diag(slope/w, h, ..., h), or 1 if that is larger."""
        return max(1.0, (self.slope / self.width + self.curved * self.curvature) / self.smoothness)

    def gap(self, x0: Array) -> float:
        """Return F_S(x0) - F_S^*, where the minimum F_S^* is 0."""
        return self.loss(x0)

    @property
    def x0(self) -> Array:
        """The start of every run: x_1 = start, and zero in all other coordinates."""
        x: Array = np.zeros(self.d)
        x[0] = self.start
        return x

    def losses(self, x: Array) -> Array:
        """Return f(x; i) for every sample i, shape (n,)."""
        phi, psi = self._parts(x)
        values: Array = self._slopes() * phi + psi
        return values

    def gradients(self, x: Array) -> Array:
        """Return the gradients of f(x; i) for every sample i, shape (n, d)."""
        found = np.tile(self._gradient(x, 0.0), (self.n, 1))
        found[:, 0] = self._slopes() * min(max(x[0] / self.width, 0.0), 1.0)
        return found

    def loss(self, x: Array) -> float:
        """Return F_S(x), the mean loss."""
        phi, psi = self._parts(x)
        return self.slope * phi + psi

    def gradient(self, x: Array) -> Array:
        """Return grad F_S(x), the gradient of the mean loss, shape (d,)."""
        return self._gradient(x, self.slope)

    def _slopes(self) -> Array:
        return np.where(np.arange(self.n) < self.opposing, -self.backward, self.forward)

    def _root(self, y: Array) -> float:
        return math.sqrt(1 + (self.curvature / self.saturation) ** 2 * float(y @ y))

    def _parts(self, x: Array) -> tuple[float, float]:
        """Return phi(x_1) and psi(x_2, ..., x_(k+1)), the two parts of the loss at x."""
        y = x[1 : self.curved + 1]
        end = min(max(x[0], 0.0), self.width)
        phi = end * end / (2 * self.width) + max(x[0] - self.width, 0.0)
        return phi, self.curvature * float(y @ y) / (1 + self._root(y))

    def _gradient(self, x: Array, slope: float) -> Array:
        found: Array = np.zeros(self.d)
        y = x[1 : self.curved + 1]
        found[0] = slope * min(max(x[0] / self.width, 0.0), 1.0)
        found[1 : self.curved + 1] = self.curvature / self._root(y) * y
        return found


@dataclass(frozen=True, eq=False)
class WorstCaseRuns:
    """Values of ||grad F_S||^2 in independent runs of T steps. `mean`, `last` and `left` have one entry for each run,
    shape (runs,); `suffix` and `least` have shape (shares, runs), with a row for each share of the steps that was asked
    for.

    Attributes:
        mean: the mean over the iterates x_0, ..., x_(T-1).
        last: the value at x_T.
        suffix: the mean over the last part of the steps, of the given share.
        least: the smallest value over the same last part.
        left: the share of the steps at which a run was where the slope is constant (x_1 >= w).
    """

    mean: Array
    last: Array
    suffix: Array
    least: Array
    left: Array


def run(
    problem: WorstCase,
    *,
    step_size: float,
    steps: int,
    clip: float,
    noise_std: float,
    directions_per_step: int,
    chains: int,
    rng: np.random.Generator,
    shares: Sequence[float] = (),
) -> WorstCaseRuns:
    """Run Algorithm 2 with Gaussian directions and full batches, in the limit of smoothing lambda -> 0, in independent
    runs ("chains").

    Args:
        problem: the convex problem.
        step_size, steps: alpha > 0 and T >= 1.
        clip: C > 0, for the norm of a record's K scalars.
        noise_std: sigma >= 0, of the noise of each of the K means.
        directions_per_step: K >= 1.
        chains: how many runs are made.
        rng: draws everything.
        shares: the shares of the last steps for `WorstCaseRuns.suffix` and `WorstCaseRuns.least`, each in (0, 1].
    """
    k, alpha = directions_per_step, step_size / directions_per_step
    x, s = np.full(chains, problem.start), np.zeros(chains)
    starts = [steps - max(1, round(share * steps)) for share in shares]
    total, left = np.zeros(chains), np.zeros(chains)
    suffix, least = np.zeros((len(starts), chains)), np.full((len(starts), chains), math.inf)
    h, ratio = problem.curvature, problem.curvature / problem.saturation
    # the shares of the samples whose losses slope forward and backward
    weights = np.array([[problem.share], [1 - problem.share]])
    slopes = np.array([[problem.forward], [-problem.backward]])
    slope = problem.slope

    def pull(x: Array, s: Array) -> tuple[Array, Array]:
        """Return phi'(x_1) and ||grad psi||, given x_1 (`x`) and ||y|| (`s`)."""
        return np.clip(x / problem.width, 0.0, 1.0), h * s / np.sqrt(1 + np.square(ratio * s))

    for t, (first, mixed, second, noise_first, noise_second, noise_square, across) in enumerate(
        _draws(rng, steps, chains, k, problem.curved, noise_std)
    ):
        phi, psi = pull(x, s)
        squared = np.square(slope * phi) + np.square(psi)
        total += squared
        left += phi == 1.0
        for j, begin in enumerate(starts):
            if t >= begin:
                suffix[j] += squared
                np.minimum(least[j], squared, out=least[j])
        sloped = slopes * phi
        norm = np.sqrt(np.maximum(sloped * sloped * first + (2 * sloped * mixed + psi * second) * psi, 1e-300))
        kept = weights * np.minimum(1.0, clip / norm)
        along, inward = (kept * sloped).sum(axis=0), kept.sum(axis=0) * psi
        forward = along * first + inward * mixed
        back = along * mixed + inward * second
        size = along * (forward + 2 * noise_first) + inward * (back + 2 * noise_second) + noise_square
        x = x - alpha * (forward + noise_first)
        s = np.sqrt(np.square(s - alpha * (back + noise_second)) + alpha * alpha * np.maximum(size, 0.0) * across)
    phi, psi = pull(x, s)
    lengths = np.array([[steps - begin] for begin in starts], dtype=np.float64).reshape(-1, 1)
    return WorstCaseRuns(total / steps, np.square(slope * phi) + np.square(psi), suffix / lengths, least, left / steps)


def _draws(
    rng: np.random.Generator, steps: int, chains: int, k: int, curved: int, noise_std: float
) -> Iterator[tuple[Array, ...]]:
    """Yield for each step seven arrays of shape (chains,), an entry for each run: |u|^2, u'v, |v|^2, u'z, v'z, |z|^2
    and a chi-square number of `curved` - 1 degrees of freedom.

    Here u, v ~ N(0, I_K) and z ~ N(0, sigma^2 I_K) are independent, K is `k` and sigma is `noise_std`. In the basis of
    u and the part of v orthogonal to it, u = (l, 0, ..) and v = (a, b, 0, ..).
    """

    def square(degrees: int, size: tuple[int, int]) -> Array:
        return 2 * rng.standard_gamma(degrees / 2, size) if degrees > 0 else np.zeros(size)

    for begin in range(0, steps, _BLOCK):
        size = (min(_BLOCK, steps - begin), chains)
        length = np.sqrt(square(k, size))
        over = np.sqrt(square(k - 1, size))
        mixed, z_first, z_second = (rng.standard_normal(size) for _ in range(3))
        z_second *= k > 1
        z_first, z_second = noise_std * z_first, noise_std * z_second
        rest = noise_std * noise_std * square(k - 2, size)
        yield from zip(
            np.square(length),
            length * mixed,
            np.square(mixed) + np.square(over),
            length * z_first,
            mixed * z_first + over * z_second,
            np.square(z_first) + np.square(z_second) + rest,
            square(curved - 1, size),
            strict=True,
        )
