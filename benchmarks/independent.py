"""delta(epsilon) evaluated a second time, in extended precision and by other rules, to check the certified evaluation.

Nothing here shares code with dpzero_theory.privacy, and nothing is certified.

- `independent_delta` inverts the characteristic function of the privacy loss. Both of its integrals (over the output x,
with respect to the exponentially tilted Gaussian, and over the frequency t) are plain trapezoid sums in 80-bit floats.
Each is compared with the same sum at double the step.
- `lattice_delta`, for few steps and rare events, rounds the privacy loss to a lattice, tilts its distribution
exponentially, and composes it by a Fourier transform. The result is compared with that at half the spacing. Without the
tilt, as in other packages, rounding in the transform hides a delta below about 1e-15 times the number of steps.
"""

import math
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import brentq, minimize_scalar

Long = NDArray[np.longdouble]

_LARGEST = 6_000_000


def _log_mixture(x: Long, q: np.longdouble, s: np.longdouble) -> Long:
    u = (2 * x - 1) / (2 * s * s)
    tilted = np.log(q) + u
    plain = np.log1p(-q)
    top = np.maximum(plain, tilted)
    far = top + np.log1p(np.exp(-np.abs(tilted - plain)))
    near = np.log1p(q * np.expm1(np.minimum(u, 10)))
    result: Long = np.where(np.abs(u) < 10, near, far)
    return result


def _law(kind: str, rate: float, noise: float, tau: float, parts: int) -> tuple[Long, Long, Long]:
    """Return three arrays: nodes x on the line of outputs of a step; the nodes' weights, with which a sum is an
    integral under the first of the two laws that are compared (normal, or a mixture of two normals); and the privacy
    losses at the nodes.

    kind is "remove", "add" or "replace", rate the sample rate, and noise the noise multiplier. The nodes reach far
    enough to integrate e^{tau * loss}; they are noise/parts apart, or 8 noise^2/parts where that is smaller. Raises
    OverflowError for more than three million nodes.
    """
    q, s = np.longdouble(rate), np.longdouble(noise)
    centre = (1 + tau) if kind != "add" else 1.0
    if kind == "replace":
        centre = 1 + 2 * tau
    step = min(s / parts, s * s * 8 / parts)
    low, high = -18 * s - (tau if kind != "remove" else 0), centre + 18 * s
    count = int((high - low) / step)
    if count > 3_000_000:
        raise OverflowError("too many nodes")
    x = low + step * np.arange(count, dtype=np.longdouble)
    weight = step * np.exp(-x * x / (2 * s * s)) / (s * np.sqrt(2 * np.longdouble(np.pi)))
    # The Gaussian weights are divided by their own sum, because np.pi has the precision of a double only.
    weight /= weight.sum()
    log_a = _log_mixture(x, q, s)
    if kind == "add":
        return x, weight, -log_a
    mass = weight * np.exp(log_a)
    return x, mass, log_a if kind == "remove" else log_a - _log_mixture(-x, q, s)


def independent_delta(
    kind: str, sample_rate: float, noise: float, steps: int, epsilon: float, *, parts: int = 12
) -> tuple[float, float]:
    """Return delta(epsilon) and its observed relative error, for `steps` releases of the subsampled Gaussian mechanism.

    kind: "remove", "add" or "replace", for what happens to a record. sample_rate: the probability that a record is in a
    batch. noise: the noise multiplier. parts: the number of nodes per standard deviation of the noise. The error is the
    largest relative change when the step in the output x, or the step in the frequency t, is doubled. It is an estimate
    and no bound.

    Raises:
        OverflowError: more than six million exponentials would be needed.
    """

    def height(log_tau: float) -> float:
        tau = math.exp(log_tau)
        try:
            _, mass, loss = _law(kind, sample_rate, noise, tau, 4)
        except OverflowError:
            return 1e300
        exponent = np.log(np.maximum(mass, np.longdouble("1e-4000"))) + tau * loss
        top = exponent.max()
        moment = top + np.log(np.exp(exponent - top).sum())
        if abs(moment) < 1:
            moment = np.log1p((mass * np.expm1(np.minimum(tau * loss, 10000))).sum())
        value = float(steps * moment - tau * epsilon - np.log(tau) - np.log1p(tau))
        return min(value, 1e300) if math.isfinite(value) else 1e300

    with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
        return _evaluate(kind, sample_rate, noise, steps, epsilon, parts, height)


def _evaluate(
    kind: str, rate: float, noise: float, steps: int, epsilon: float, parts: int, height: Callable[[float], float]
) -> tuple[float, float]:
    grid, heights = np.linspace(math.log(1e-3), math.log(1e5), 40), list[float]()
    for place in grid:
        heights.append(height(place))
        if len(heights) > 2 and heights[-1] > heights[-2] > heights[-3]:
            break  # two rises in a row: the minimum of `height` has been passed, and sums for larger tau would be long
    best = grid[int(np.argmin(heights))]
    found = minimize_scalar(height, bounds=(best - 0.5, best + 0.5), method="bounded", options={"xatol": 1e-3})
    # tau is 0.9 times the saddle point, so that this contour of integration is not the one of the certified evaluation
    tau = 0.9 * math.exp(float(found.x))
    fine = _invert(kind, rate, noise, steps, epsilon, tau, parts)
    coarse = _invert(kind, rate, noise, steps, epsilon, tau, parts // 2)
    error = max(abs(fine[0] - coarse[0]), abs(fine[0] - fine[1]))
    return float(fine[0]), float(error / abs(fine[0]))


def _invert(
    kind: str, sample_rate: float, noise: float, steps: int, epsilon: float, tau: float, parts: int
) -> tuple[np.longdouble, np.longdouble]:
    """Return delta(epsilon) as the trapezoid sum over the frequency t, and the same sum at double the step in t.

    tau: the exponential tilt of the privacy losses, which is the real part of the line on which the characteristic
    function is inverted. The other arguments are those of `independent_delta`.
    """
    _, mass, loss = _law(kind, sample_rate, noise, tau, parts)
    big = float(np.max(tau * loss))
    log_scale_one = np.log((mass * np.exp(tau * loss)).sum()) if big > 1 else None
    if log_scale_one is None or abs(log_scale_one) < 1:
        log_scale_one = np.log1p((mass * np.expm1(tau * loss)).sum())
    tilted = mass * np.exp(tau * loss - log_scale_one)
    keep = tilted > 1e-24 / steps
    tilted, loss = tilted[keep], loss[keep]
    mean = (tilted * loss).sum() / tilted.sum()
    variance = float(steps * (tilted * (loss - mean) ** 2).sum())
    drift = steps * mean - epsilon
    log_scale = steps * log_scale_one - tau * epsilon
    period = 2.2 * max((40 - min(float(log_scale), 0.0)) / tau, 20 * math.sqrt(variance))
    h = 2 * np.arctan2(np.longdouble(0), np.longdouble(-1)) / np.longdouble(period)
    block = 64
    total = even = np.longdouble(0)
    start, largest = 0, 0.0
    while True:
        index = np.arange(start, start + block)  # `start` is even, so that every second entry has an even index
        t = h * index.astype(np.longdouble)
        phase = t[:, None] * (loss - mean)
        change = (-2 * np.sin(phase / 2) ** 2) @ tilted + 1j * (np.sin(phase) @ tilted)
        log_chi = np.where(
            np.abs(change) < 0.5,
            0.5 * np.log1p(2 * change.real + np.abs(change) ** 2) + 1j * np.arctan2(change.imag, 1 + change.real),
            np.log(np.abs(1 + change)) + 1j * np.arctan2(change.imag, 1 + change.real),
        )
        z = tau + 1j * t
        term = (np.exp(steps * log_chi + 1j * t * drift) / (z * (z + 1))).real
        size = float(np.max(np.exp(steps * log_chi.real) / np.abs(z * (z + 1))))
        term[index == 0] /= 2
        total += term.sum()
        even += 2 * term[index % 2 == 0].sum()
        largest = max(largest, size)
        start += block
        block = min(2 * block, max(2 * (1_000_000 // len(loss)), 2))
        if float(size) * start < 1e-13 * abs(float(total)):
            break
        if start * len(loss) > _LARGEST:
            raise OverflowError("too many exponentials")
    scale = np.exp(log_scale) * h / (np.arctan2(np.longdouble(0), np.longdouble(-1)))
    return scale * total, scale * even


def lattice_delta(kind: str, sample_rate: float, noise: float, steps: int, epsilon: float) -> tuple[float, float]:
    """Return delta(epsilon) for `steps` releases of the subsampled Gaussian mechanism, computed on a lattice of privacy
    losses, and an estimate of its relative error, which is twice the relative change when the lattice's spacing is
    halved. The arguments are those of `independent_delta`."""
    q, s = sample_rate, noise
    x = _grid(kind, s)

    def loss_and_mass(points: NDArray[np.float64]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        a, b = (_log_mixture_64(v, q, s) for v in (points, -points))
        log_p = (
            -(points**2) / (2 * s * s) - math.log(s * math.sqrt(2 * math.pi)) + math.log((x[-1] - x[0]) / (len(x) - 1))
        )
        if kind == "add":
            return -a, log_p
        return (a if kind == "remove" else a - b), log_p + a

    loss, log_mass = loss_and_mass(x)

    def tilted_mean(tau: float) -> float:
        weight = np.exp(log_mass + tau * loss - np.max(log_mass + tau * loss))
        return float(steps * (weight @ loss) / weight.sum())

    def excess(log_tau: float) -> float:
        return tilted_mean(math.exp(log_tau)) - epsilon

    lowest, highest = math.log(1e-4), math.log(1e4)
    log_tau = lowest if excess(lowest) > 0 else highest if excess(highest) < 0 else brentq(excess, lowest, highest)
    tau = math.exp(log_tau)
    top = float(np.max(log_mass + tau * loss))
    weight = np.exp(log_mass + tau * loss - top)
    mean = float(weight @ loss) / weight.sum()
    spread = math.sqrt(steps * float(weight @ (loss - mean) ** 2) / weight.sum())
    relevant = loss[weight > 1e-18 * weight.max() / steps]
    reach = 3 * max(spread * 10, float(relevant.max() - relevant.min()), epsilon + 40 / tau)
    fine, coarse = (_lattice(loss, weight, top, steps, epsilon, tau, reach, 2**k) for k in (21, 20))
    return fine, 2 * abs(fine - coarse) / fine


def _grid(kind: str, s: float) -> NDArray[np.float64]:
    width = 14 * s + (3 if kind == "remove" else 0) + 30 * s * s
    return np.linspace(-width - 1, 1 + width + 4 * s, 2_000_001)


def _log_mixture_64(x: NDArray[np.float64], q: float, s: float) -> NDArray[np.float64]:
    u = (2 * x - 1) / (2 * s * s)
    near = np.log1p(q * np.expm1(np.minimum(u, 30.0)))
    result: NDArray[np.float64] = np.where(u < 30, near, np.logaddexp(math.log1p(-q), math.log(q) + u))
    return result


def _lattice(
    loss: NDArray[np.float64],
    weight: NDArray[np.float64],
    top: float,
    steps: int,
    epsilon: float,
    tau: float,
    reach: float,
    count: int,
) -> float:
    spacing = 2 * reach / count
    position = loss / spacing
    cell = np.floor(position).astype(np.int64)
    share = position - cell
    law = np.bincount(cell % count, weights=weight * (1 - share), minlength=count)
    law += np.bincount((cell + 1) % count, weights=weight * share, minlength=count)
    total = law.sum()
    composed = np.fft.irfft(np.fft.rfft(law / total) ** steps, count)
    sums = spacing * np.arange(count)
    sums = np.where(sums > 1.5 * reach, sums - 2 * reach, sums)
    above = sums > epsilon
    scale = np.exp(steps * (math.log(total) + top) - tau * sums[above])
    return float(np.sum(composed[above] * scale * -np.expm1(epsilon - sums[above])))
