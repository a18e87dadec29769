"""Tests of released integers, whether they can be noise of the stated law plus whatever any records add.

The tests do not look at the records. A release is S_t = c_t + Z_t, K integers. Here c_t is what the records add, of L2
norm at most `most` times `levels`, and otherwise anything, also a function of all earlier releases. Z_t is noise,
independent of the past and of c_t, with mass proportional to exp(-|x|^p/(p s^p)); p is 2 for the discrete Gaussian and
1 for the discrete Laplace law, and s is its scale. A test of such numbers may only use what holds for every c_t. The K
numbers of a release count one after the other, as noise is drawn for each of them, so below t runs over N = T K numbers
for T releases.

**Small numbers.** The mass of Z is symmetric and falls away from 0, so of all windows of 2 x + 1 integers the one about
0 has most of it (Anderson's lemma, on a line). For every c and every guess g of S_t from the past,

    P(|S_t - g| <= x | past) <= P(|Z| <= x) <= (2 x + 1) top,      top = P(Z = 0),

that is |S_t - g| is at least |Z| in law, given the past. Hence E[f(|S_t - g|) | past] <= E f(|Z|) for a function f that
falls, and multiplying over t, E prod_t f(|S_t - g_t|) <= (E f(|Z|))^N. With f(x) = exp(-lambda x^p) and r^-p = s^-p + p
lambda, E f is norm(r)/norm(s), where norm(s) is the sum of exp(-|x|^p/(p s^p)) over the integers, so by Markov's
inequality

    P(mean of |S_t - g_t|^p <= m s^p) <= (exp((m s^p/r^p - m)/p) norm(r)/norm(s))^N  for every r <= s.

The choice r^p = m s^p gives exp((1 - m)/p) norm(r)/norm(s); m = 0 gives P(Z = 0)^N. The number of t with |S_t - g_t| <=
x is at most binomial in law, with N trials of probability (2 x + 1) top, and is bounded by Chernoff's inequality. The
guesses are 0, an earlier number, its negative, the line through two earlier ones, and the mean of all earlier ones.

**Repeated numbers.** S_t is one of the t earlier numbers or their negatives with probability at most 2 t top, given the
past. So the count of such t has a moment generating function below that of the Poisson law of mean N (N - 1) top.

**Digits.** For every c and k the residue of S_t modulo k has each value with probability 1/k +- top: the masses of two
residue classes interlace, so they differ by at most the largest mass. In the same way the j-th binary digit of S_t is 1
with probability 1/2 +- 2^j top/2: sums over blocks of 2^j integers rise and fall once, and in an alternating sum of
such a sequence what is left is at most its largest term. So numbers that are all equal modulo some k >= D, k at most
twice the largest possible number, have probability at most the sum over k of (1/k + top)^(N - 1); the exponent is N - 1
because the first number is free.

**Large numbers.** ||S_t|| <= most levels + ||Z_t||, and with r > s the bound above holds for the mean of |Z|^p to be at
least m s^p (norm(r)/norm(s) <= r/s, as norm(s)/s falls for the laws here).

All tests together raise a false alarm in at most one of 10^12 runs. Each test has a share of that probability. A run
may stop when it likes, so the tests of its first N numbers have the share 1/(N (N + 1)). Numbers that pass are not
thereby noise, because what the records add may be larger than the noise, and hide it.
"""

import math
from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from dpzero_theory.bisection import halved

FALSE_ALARM = 1e-12
THOUSANDTH = 1e-3
_LAGS, _MOST_COMPARED, _COORDINATES = 64, 2**22, 64
_SLACK = 1e-9  # a relative margin for the rounding of means and norms
_INT64 = 2**63
_ROUND = (3, 5, 7, 9, *(10**power for power in range(1, 10)))
"""The divisors d for which `look` tests whether too many of the released integers are multiples of d."""

Integers = NDArray[np.int64]


class Noise(NamedTuple):
    """The law of noise on integers: the probability of x is proportional to exp(-|x|^p/(p s^p)).

    power: p, which is 1 for Laplace and 2 for Gaussian noise. scale: s > 0.
    """

    power: int
    scale: float

    def log_norm(self, scale: float) -> float:
        """The natural logarithm of the sum over all integers x of exp(-|x|^p/(p scale^p)), with p the power of this
        law."""
        if scale < 1e-3:
            return 0.0
        if self.power == 1:
            return -math.log(math.tanh(0.5 / scale))
        if scale < 1:
            return math.log1p(2 * sum(math.exp(-0.5 * (x / scale) ** 2) for x in range(1, 40)))
        # Poisson summation turns the sum over integers x into sqrt(2 pi) scale (1 + 2 waves); two waves are enough.
        waves = sum(math.exp(-2 * (math.pi * scale * j) ** 2) for j in (1, 2))
        return math.log(math.sqrt(2 * math.pi) * scale) + math.log1p(2 * waves)

    @property
    def top(self) -> float:
        """The probability of 0, which is the most likely integer."""
        return math.exp(-self.log_norm(self.scale))

    def log_chance(self, count: int, mean: float) -> float:
        """The natural logarithm of an upper bound on the probability that `count` draws Z have a mean of |Z|^p/s^p as
        far from 1 as `mean`.

        The law of Z has the power p and the scale s. Only means on the same side of 1 as `mean` are meant.
        """
        if mean > 1:
            return count * ((1 - mean) + math.log(mean)) / self.power
        radius = self.scale * mean ** (1 / self.power)
        rest = (1 - mean) / self.power if mean else 0.0
        return count * (rest + self.log_norm(radius) - self.log_norm(self.scale))


class Looked(NamedTuple):
    """The result of the tests in `look`.

    fault: what is not plausible, in words, or "" if nothing is. least: a share in [0, 1]. Numbers whose size is at most
    this share of the stated scale s would have been found not plausible. The size is the root mean square for Gaussian
    noise, and the mean absolute value for Laplace.
    """

    fault: str
    least: float


def look(sums: Integers, noise: Noise, levels: int, most: int) -> Looked:
    """Test whether released integers can be noise of the stated law plus what any records add.

    sums: the integers, shape (T, K), in the order of the T releases of K integers each. noise: the law that the noise
    is said to have. levels: a bound >= 1 on the L2 norm of what one record adds. most: a bound on the number of records
    in a batch, which may fail with an eighth of the probability of a false alarm (`Sampling.most`). If the numbers are
    such noise, a fault is reported in at most one of 10^12 runs. If there are no numbers, no fault is reported, and
    `least` is 0.
    """
    releases, numbers = len(sums), sums.size
    if not numbers:
        return Looked("", 0.0)
    log_alarm = math.log(FALSE_ALARM) - math.log(numbers * (numbers + 1.0))
    least = _turn(lambda mean: noise.log_chance(numbers, mean) - log_alarm - math.log(0.25), 0.0, 1.0)
    least **= 1 / noise.power
    log_large = log_alarm + math.log(0.125 / releases)
    mean = _turn(lambda mean: log_large - noise.log_chance(sums.shape[1], mean), 1.0, 1e9)
    reach = most * levels + noise.scale * (mean * sums.shape[1]) ** (1 / noise.power)
    norms = np.sqrt(np.square(sums.astype(np.float64)).sum(axis=1))
    if norms.max() > reach * (1 + _SLACK):
        large = f"one is {norms.max():.3g}, more than {most} records and the noise can add up to, {reach:.3g}"
        return Looked(large, least)
    for share, log_chance, said in _tests(sums, noise, reach):
        if log_chance <= log_alarm + math.log(share):
            return Looked(f"{said}, whatever the records add", least)
    return Looked("", least)


def _tests(sums: Integers, noise: Noise, reach: float) -> Iterator[tuple[float, float, str]]:
    """Yield for each test its share of the probability of a false alarm, the natural log of a bound on the probability
    of what it sees, and a sentence that says what it sees.

    sums: the integers, T releases of K integers each. noise: the law that the noise is said to have. reach: a bound on
    the norm of a release. The shares add up to 3/4 of the probability of a false alarm; `look` uses the rest.
    """
    flat = sums.reshape(-1)
    if 4 * reach >= _INT64:
        flat = flat.astype(object)
    mean = float(np.mean((np.abs(flat).astype(np.float64) / noise.scale) ** noise.power))
    yield 0.25, *_small(flat.size, mean, noise, "they are")
    guesses = list(_guesses(flat, sums.shape[1]))
    for name, rest in guesses:
        for log_chance, said in _nearness(np.sort(np.abs(rest).astype(np.float64)), noise, name):
            yield 0.25 / len(guesses) / (math.log2(noise.scale + 1) + 3), log_chance, said
    yield 0.125, *_repeated(flat, noise.top)
    digits = list(_digits(flat, noise.top, 2 * reach))
    for log_chance, said in digits:
        yield 0.125 / len(digits), log_chance, said


def _guesses(flat: Integers, coordinates: int) -> Iterator[tuple[str, Integers]]:
    """Yield for each way to guess a number from those before it a phrase for the way, and the differences of the
    numbers and their guesses.

    flat: the released integers, one release after another. coordinates: how many numbers a release has.
    """
    yield "they are", flat
    if 1 < coordinates <= _COORDINATES:
        for k in range(coordinates):
            yield f"the numbers {k + 1} of the releases are", flat[k::coordinates]
    most = min(_LAGS, max(_MOST_COMPARED // flat.size, 4), flat.size - 1)
    for lag in range(1, most + 1):
        yield f"they differ from those {lag} before by", flat[lag:] - flat[:-lag]
        yield f"they and those {lag} before add up to", flat[lag:] + flat[:-lag]
    for lag in sorted({1, coordinates}):
        if flat.size > 2 * lag:
            line = 2 * flat[lag:-lag] - flat[: -2 * lag]
            yield "they differ from the line through two before by", flat[2 * lag :] - line
    if flat.size > 1:
        means = np.cumsum(flat.astype(np.float64))[:-1] / np.arange(1, flat.size)
        yield "they differ from the mean of those before by", flat[1:] - np.rint(means).astype(flat.dtype)


def _nearness(sizes: NDArray[np.float64], noise: Noise, name: str) -> Iterator[tuple[float, str]]:
    """Yield for each test whether the numbers are too small the natural log of a bound on the probability of what it
    sees, and a sentence that says what it sees.

    sizes: the numbers' absolute values, ascending. noise: the law of the noise. name: a phrase for the numbers, with
    which the sentence begins.
    """
    count = sizes.size
    yield _small(count, float(np.mean((sizes / noise.scale) ** noise.power)), noise, name)
    for window in (0, *(math.floor(noise.scale / 2**power) for power in range(1, int(math.log2(noise.scale + 1)) + 1))):
        inside = int(np.searchsorted(sizes, window, side="right"))
        chance = (2 * window + 1) * noise.top
        yield _log_binomial(count, inside, chance), f"{name} {window} or less in {inside} of {count} cases"


def _small(count: int, mean: float, noise: Noise, name: str) -> tuple[float, str]:
    bound = noise.log_chance(count, mean * (1 + _SLACK)) if mean < 1 else 0.0
    return bound, f"{name} {mean ** (1 / noise.power):.2g} of the noise's size ({count} numbers), too little for noise"


def _repeated(flat: Integers, top: float) -> tuple[float, str]:
    again = flat.size - len(set(np.abs(flat).tolist()))
    expected = flat.size * (flat.size - 1.0) * top
    bound = again - expected + again * math.log(expected / again) if again > expected > 0 else 0.0
    return bound, f"{again} of {flat.size} are an earlier one again, or its negative"


def _digits(flat: Integers, top: float, furthest: float) -> Iterator[tuple[float, str]]:
    count, first = flat.size, int(flat[0])
    divisor = math.gcd(*(int(number) - first for number in flat))
    if divisor > 1:
        yield _log_alike(divisor, furthest, top, count - 1), f"all differ by multiples of {divisor}"
    digit = 0
    while 2**digit * top <= 2**-8:
        ones, doubt = int(np.count_nonzero(flat >> digit & 1)), 2.0**digit * top / 2
        log_chance = min(
            _log_binomial(count, ones, 0.5 + doubt), _log_binomial(count, count - ones, 0.5 + doubt)
        ) + math.log(2)
        yield log_chance, f"binary digit {digit} is 1 in {ones} of {count}"
        digit += 1
    for whole in _ROUND:
        multiples = int(np.count_nonzero(flat % whole == 0))
        yield _log_binomial(count, multiples, 1 / whole + top), f"{multiples} of {count} are multiples of {whole}"


def _log_alike(least: int, most: float, top: float, count: int) -> float:
    """The natural logarithm of an upper bound on the sum of (1/k + top)^count over k = least, ..., most.

    The first 1000 terms count as they are, and later ones, in blocks [a, 2 a), as the first of their block.
    """
    terms = [count * math.log(1 / k + top) for k in range(least, least + 1000)]
    start = least + 1000.0
    while start <= most:
        terms.append(math.log(start) + count * math.log(1 / start + top))
        start *= 2
    largest = max(terms)
    return largest + math.log(sum(math.exp(term - largest) for term in terms))


def _log_binomial(count: int, found: int, chance: float) -> float:
    """The natural logarithm of Chernoff's upper bound on the probability of `found` or more successes in independent
    trials; 0 if `found` is at most the expected number.

    count: the number of trials. chance: the probability that one of them succeeds.
    """
    part = found / count
    if part <= chance:
        return 0.0
    other = (1 - part) * math.log((1 - part) / (1 - chance)) if part < 1 else 0.0
    return -count * (part * math.log(part / chance) + other)


def _turn(rising: Callable[[float], float], low: float, high: float) -> float:
    """The point between `low` and `high` where a rising function passes 0, or `low` if it is above 0 there already."""
    return low if rising(low) > 0 else halved(lambda x: rising(x) <= 0, low, high, 100)[1]
