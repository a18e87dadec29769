"""Checks a privacy certificate by means that share nothing with the accountant that wrote it.

    python -m dpzero_theory.privacy.checker certificate.json

This file needs python-flint and nothing else of this package, so that it can be copied and read alone. A certificate
lists the steps of a run and states an (epsilon, delta) for all of them. The calculation below can only err upwards:

1. **One step.** Two neighbouring data sets give the output of a step two laws P and Q (`divergences` names the
   theorems). Their hockey-stick divergence h(a) = max over events E of P(E) - a Q(E) is convex in a, so the polygon
   through its values at a = e^(i H), i = low, ..., high, lies above it. That polygon is the divergence of two discrete
   laws whose privacy losses log(dP/dQ) are multiples of H, or infinite; they take the place of P and Q (Doroshenko,
   Ghazi, Kamath, Kumar and Manurangsi, "Connect the dots", 2022). Values of h are enclosed by interval arithmetic.
2. **All steps.** Privacy losses add, also if a step's function depends on earlier releases (Zhu, Dong and Wang 2022,
   Theorem 10). The law of their sum is a product of polynomials whose coefficients are the masses of 0, H, 2 H, ...,
   integers in units of 2^-bits, rounded up. Small masses at the low end move up; at the high end they become infinite.
3. **The sum:** delta(epsilon) <= P(infinite) + sum over losses v > epsilon of P(v) (1 - e^(epsilon - v)).

In units of the clip s is the noise's standard deviation (Laplace: scale). A batch holds a record with probability q.
"""

import json
import math
import re
import sys
from collections.abc import Callable
from dataclasses import dataclass

try:
    from flint import arb, ctx, fmpz_poly
except ModuleNotFoundError:
    sys.exit("the checker needs python-flint: pip install 'dpzero-theory[certificate]'")

_FORMAT = "dpzero privacy certificate 1"
_NAMES = {"format", "version", "history", "statement", "bracket", "method"}
_PART = {"steps", "noise_multiplier", "mechanism", "sampling", "sample_rate", "relation", "coordinates"}
_COARSEST, _MOST_LOSSES = 256, 2**21  # points of the first grid from 0 to epsilon, and the most points of a law
_Divergence = Callable[[arb], arb]  # a -> h(a) = max over events of P - a Q, P and Q the laws of a step's output


class Refused(Exception):
    """Raised if a certificate is not confirmed; the message says why."""


@dataclass(frozen=True)
class _Gaussian:  # noise of standard deviation s
    s: arb

    def upper_tail(self, c: arb, centre: int) -> arb:
        return ((c - centre) / (self.s * arb(2).sqrt())).erfc() / 2

    def with_ratio(self, ratio: arb) -> arb:
        # The output at which noise of mean 1 has `ratio` times the density of noise of mean 0
        return self.s**2 * ratio.log() + 0.5 if ratio > 0 else arb("-inf")

    def with_ratio_replaced(self, a: arb, q: arb) -> arb:
        # The ratio here is of (1-q) N(0) + q N(1) to (1-q) N(0) + q N(-1), N(m) being the density of noise of mean m
        k, b = q * (-1 / (2 * self.s**2)).exp(), (a - 1) * (1 - q)
        return self.s**2 * ((b + (b * b + 4 * a * k * k).sqrt()) / (2 * k)).log()


@dataclass(frozen=True)
class _Laplace:  # noise with density exp(-|x|/s)/(2 s); two shifted densities have a constant ratio beyond both means
    s: arb

    def upper_tail(self, c: arb, centre: int) -> arb:
        x = (c - centre) / self.s
        return (-x).exp() / 2 if x >= 0 else 1 - x.exp() / 2

    def with_ratio(self, ratio: arb) -> arb:
        # The density ratio of noise of mean 1 to mean 0 is e^(-1/s) at outputs <= 0, e^(1/s) from 1 on, else between.
        if not ratio > (-1 / self.s).exp():
            return arb("-inf")
        if not ratio < (1 / self.s).exp():
            return arb("inf")
        return ((self.s * ratio.log() + 1) / 2).max(arb(0)).min(arb(1))

    def with_ratio_replaced(self, a: arb, q: arb) -> arb:
        # Noise N(m) has mean m. (1-q) N(0) + q N(-1) is `least` N(0) at x >= 0; so is (1-q) N(0) + q N(1) at x <= 0.
        least = 1 - q + q * (-1 / self.s).exp()
        distance = self.with_ratio(((a if a >= 1 else 1 / a) * least - 1 + q) / q).max(arb(0))
        return distance if a >= 1 else -distance


def _divergences(noise: _Gaussian | _Laplace, q: arb, relation: str) -> list[_Divergence]:
    """Returns functions a -> h(a) = max over events E of P(E) - a Q(E), for one step with this noise in whose batch a
    record is with probability q. P and Q are the distributions of its output on two neighbouring data sets. For
    "replace-one" there is one function, as both orders (P, Q) cost the same, else one for each order."""
    # N(m) is the law of outputs with mean m clips. If the record is there or not (or adds nothing), P = (1-q) N(0) + q
    # N(1), Q = N(0) (Zhu, Dong and Wang 2022, Theorem 11); with replace-one Q = (1-q) N(0) + q N(-1). The best event is
    # a half-line x > c: of all events as likely under N(0) it is the likeliest under N(1), the least under N(-1).

    def beyond(c: arb, centre: int) -> arb:
        return noise.upper_tail(c, centre) if c.is_finite() else arb(int(c < 0))

    def removed(a: arb) -> arb:
        c = noise.with_ratio((a - 1 + q) / q)
        return (1 - q - a) * beyond(c, 0) + q * beyond(c, 1)

    def added(a: arb) -> arb:
        c = noise.with_ratio((1 / a - 1 + q) / q)
        below, moved = 1 - beyond(c, 0), 1 - beyond(c, 1)
        return below - a * ((1 - q) * below + q * moved)

    def replaced(a: arb) -> arb:
        c = noise.with_ratio_replaced(a, q)
        return (1 - q) * (1 - a) * beyond(c, 0) + q * (beyond(c, 1) - a * beyond(c, -1))

    return [replaced] if relation == "replace-one" else [removed, added]


def _number(source: dict[str, object], name: str, least: float, most: float) -> float:
    value = source[name]
    if isinstance(value, bool) or not isinstance(value, int | float) or not least < value <= most:
        raise Refused(f"{name} must be a number above {least:g}, at most {most:g}; got {str(value)[:40]}")
    return float(value)


def _read_part(part: object) -> tuple[int, list[_Divergence], arb]:
    """Checks an entry of a certificate's history; raises Refused if it is not of a known kind. Returns the number of
    its steps that may use one record; a list of functions a -> max over events of P - a Q of one step with continuous
    noise, one for each order of P and Q, or one for both; and g >= 0, 0 for continuous noise, such that all these steps
    have delta(epsilon) <= e^g delta'(epsilon - 2 g), with delta' for continuous noise."""
    if not isinstance(part, dict) or set(part) != _PART:
        raise Refused(f"each part of the history must have {', '.join(sorted(_PART))}, and nothing else")
    steps, coordinates = (int(_number(part, name, 0, 1e12)) for name in ("steps", "coordinates"))
    if (steps, coordinates) != (part["steps"], part["coordinates"]):
        raise Refused("steps and coordinates must be whole numbers")
    s, rate = arb(_number(part, "noise_multiplier", 1 / 16, 1e6)), _number(part, "sample_rate", 0, 1)
    mechanism, sampling, relation = part["mechanism"], str(part["sampling"]), part["relation"]
    if relation not in ("replace-one", "add-remove", "zero-out"):
        raise Refused(f"relation must be replace-one, add-remove or zero-out; got {str(relation)[:40]}")
    count, q = steps, arb(rate)
    if groups := re.fullmatch(r"cyclic-poisson:([1-9]\d{0,11})", sampling):
        turn = int(groups[1])  # the number of groups of records, which are drawn from in turn
        if not q * turn <= 1 + 1e-12:
            raise Refused(f"sample_rate must be at most 1/{turn} with {sampling}; got {rate!r}")
        count, q = -(-steps // turn), (q * turn).min(arb(1))
    elif sampling != "poisson" and not (sampling == "full" and rate == 1):
        raise Refused("sampling must be full with sample_rate 1, poisson or cyclic-poisson:GROUPS")
    if mechanism == "laplace" and coordinates == 1:  # a clip of >= 2^30 lattice units: g = 1/(2 b) a step, b = 2^30 s
        return (count, _divergences(_Laplace(s), q, relation), arb(steps) / (s * 2**31) * 1.01)
    if mechanism == "gaussian":
        return (count, _divergences(_Gaussian(s), q, relation), arb(0))
    if mechanism != "discrete-gaussian":
        raise Refused("mechanism must be gaussian, discrete-gaussian or, with one coordinate, laplace")
    # With a clip of >= 2^28 lattice units, discrete noise is Gaussian noise of variance s^2 - (2/2^28)^2, rounded at
    # random by a kernel 2 units wide, whose normaliser is constant up to 1 +- 2 e^(-8 pi^2), by Poisson summation.
    less, gap = s * (1 - arb(2) ** -40), (-8 * arb.pi() ** 2).exp() * 4.1 * steps * coordinates
    return (count, _divergences(_Gaussian(less), q, relation), gap)


@dataclass(frozen=True)
class _Law:
    # A law of privacy losses, multiples of the width H of a grid, that costs at least what the true law does
    first: int  # the least loss is first H; `bits` below is that of the function that made the law
    masses: fmpz_poly  # the loss (first + k) H has the probability masses[k]/2^bits
    lost: int  # an infinite loss has the probability lost/2^bits


def _integer_above(x: arb) -> int:
    found = x.upper().ceil().unique_fmpz() if x.is_finite() else None
    if found is None:
        raise Refused("a number is beyond this checker's arithmetic")
    return max(int(found), 0) + 1


def _one_step(h: _Divergence, width: arb, bits: int, small: float) -> _Law:
    """Returns a law of privacy losses that costs at least what one step does, on multiples of `width`, with
    probabilities in units of 2^-bits. Its divergence is the polygon with corners on the step's convex divergence h(a)
    at a = e^(i width), i whole. The grid ends where h(a) is within `small` of its limits, 0 and 1 - a."""

    def reach(sign: int, negligible: Callable[[int], bool]) -> int:
        cells = 1
        while not negligible(sign * cells):
            cells *= 2
            if cells > _MOST_LOSSES:
                raise Refused("the losses of one step are spread too widely for this checker")
        return sign * cells

    high = reach(1, lambda i: bool(h((width * i).exp()) < small))
    low = reach(-1, lambda i: bool(h((width * i).exp()) - 1 + (width * i).exp() < small))
    unit, masses = arb(2) ** bits, []
    at, value = (width * low).exp(), h((width * low).exp())
    slope = (value - 1) / at  # the slope of the first edge of the polygon above h, which begins at h(0) = 1
    for i in range(low + 1, high + 2):
        after = (width * i).exp()
        beyond = h(after) if i <= high else value  # the polygon's last edge is level
        steeper, slope = slope, (beyond - value) / (after - at)
        masses.append(_integer_above((slope - steeper) * at * unit))
        at, value = after, beyond
    return _Law(low, fmpz_poly(masses), _integer_above(value * unit))


def _product(one: _Law, other: _Law, bits: int, small: int) -> _Law:
    # The law of the sum of independent losses. At the low end up to `small` units of probability move to a larger loss,
    # and at the high end as many to an infinite one, which can only raise delta.
    masses = [-(-int(mass) >> bits) for mass in (one.masses * other.masses).coeffs()]
    first, last, low, high = 0, len(masses), 0, 0
    while last > first + 1 and high + masses[last - 1] <= small:
        last -= 1
        high += masses[last]
    while last > first + 1 and low + masses[first] <= small:
        low += masses[first]
        first += 1
    masses[first] += low
    if last - first > _MOST_LOSSES:
        raise Refused(f"more than {_MOST_LOSSES} cells would be needed")
    return _Law(one.first + other.first + first, fmpz_poly(masses[first:last]), one.lost + other.lost + high)


def _bound(parts: list[tuple[int, _Divergence]], epsilon: arb, delta: float, width: arb) -> arb:
    """Returns an upper bound on delta(epsilon) of `parts`, pairs (number of equal steps, divergence of one of them), by
    losses raised to multiples of `width`. The stated `delta` sets the precision."""
    steps = sum(count for count, _ in parts)
    bits = 64 + math.ceil(-math.log2(delta)) + steps.bit_length()
    total, share = _Law(0, fmpz_poly([2**bits]), 0), 1e-7 * delta / steps  # share: probability cut off at each end
    for count, h in parts:
        power, made = _one_step(h, width, bits, share), 1
        while True:  # the law of `count` steps, by repeated squaring
            if count & made:
                total = _product(total, power, bits, int(share * made * 2.0**bits))
            if 2 * made > count:
                break
            made *= 2
            power = _product(power, power, bits, int(share * made * 2.0**bits))
    over = arb(total.lost)
    for k, mass in enumerate(total.masses.coeffs()):
        over += arb(mass) * (-(epsilon - width * (total.first + k)).expm1()).max(arb(0))
    return over / arb(2) ** bits


def _confirmed(parts: list[tuple[int, _Divergence]], epsilon: arb, most: arb, delta: float) -> arb:
    # An upper bound on delta(epsilon) of `parts`, pairs (number of equal steps, divergence of one): grids get finer
    # until the bound is at most `most`
    width, before = arb(2.0) ** math.floor(math.log2(float(epsilon.mid()) / _COARSEST)), None
    while not (delta_bound := _bound(parts, epsilon, delta, width)) <= most:
        # Halving the grid's spacing divides the error by four. So the remaining error is less than the last change.
        if before is not None and delta_bound - (before - delta_bound) > most:
            raise Refused(f"delta at the stated epsilon is about {float(delta_bound.mid()):.6g}, more than {delta:g}")
        before, width = delta_bound, width / 2
    return delta_bound


def confirm(text: str) -> tuple[float, float, float]:
    """Verifies the certificate `text` (JSON). Returns the epsilon and the delta that it states, and the upper bound on
    delta at this epsilon that proves them. Raises Refused if they are not confirmed."""
    ctx.prec = 256  # with so many bits, intervals hardly widen
    certificate = _parse(text)
    history, statement = certificate["history"], certificate["statement"]
    if not isinstance(history, list) or not 1 <= len(history) <= 100:
        raise Refused("history must be a list of 1 to 100 parts")
    parts = [_read_part(part) for part in history]
    if len({part["relation"] for part in history}) > 1:
        raise Refused("all parts of the history must have one relation")
    if not isinstance(statement, dict) or set(statement) != {"epsilon", "delta"}:
        raise Refused("statement must have epsilon and delta, and nothing else")
    epsilon, delta = _number(statement, "epsilon", 0, 1000), _number(statement, "delta", 1e-30, 0.5)
    gap = sum((part_gap for _, _, part_gap in parts), arb(0))
    if not 2 * gap < epsilon / 2:
        raise Refused("noise on a lattice costs more than this statement says")
    largest = arb(0)
    for order in range(len(parts[0][1])):
        each = [(count, divergences[order]) for count, divergences, _ in parts]
        largest = largest.max(_confirmed(each, epsilon - 2 * gap, arb(delta) * (-gap).exp(), delta))
    return epsilon, delta, float((largest * gap.exp()).upper())


def _parse(text: str) -> dict[str, object]:
    def once(pairs: list[tuple[str, object]]) -> dict[str, object]:
        if len(dict(pairs)) != len(pairs):
            raise Refused("a name stands twice")
        return dict(pairs)

    try:
        content = json.loads(text, object_pairs_hook=once)
    except (RecursionError, ValueError):
        raise Refused("this is not JSON") from None
    if not isinstance(content, dict) or set(content) != _NAMES or content["format"] != _FORMAT:
        raise Refused(f"a certificate has {', '.join(sorted(_NAMES))}, and its format is {_FORMAT!r}")
    return content


def main(paths: list[str]) -> int:
    """Verifies the privacy certificates (JSON files) at `paths`, and prints for each an upper bound on delta or why it
    is refused. Returns 0 if there is at least one and none is refused, else 1. ["--help"] only prints the usage."""
    good = bool(paths)
    for path in paths if paths != ["--help"] else []:
        try:
            with open(path, encoding="utf-8") as file:
                epsilon, delta, largest = confirm(file.read())
            print(f"{path}: confirmed, delta({epsilon:g}) <= {largest:.6g} <= {delta:g}")
        except (OSError, UnicodeError, Refused) as error:
            good = False
            print(f"{path}: NOT confirmed: {error}")
    print(end="" if paths and paths != ["--help"] else __doc__)
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
