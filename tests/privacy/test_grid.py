"""Compositions on a grid, against closed forms and independent sums; a wrong constant in each law is seen."""

import itertools
import math
from dataclasses import replace

import mpmath
import numpy as np
import pytest

from benchmarks.independent import independent_delta, lattice_delta
from dpzero_theory.privacy import grid
from dpzero_theory.privacy.grid import delta_bounds, epsilon_bounds
from dpzero_theory.privacy.laws import concentrated, epoch, shifts
from dpzero_theory.privacy.laws.fourier import composed as sum_of
from dpzero_theory.privacy.laws.gaussian import Gaussian
from tests.privacy import oracle
from tests.privacy.oracle import closed_form, pair_delta

EXTENDED = pytest.mark.skipif(np.finfo(np.longdouble).nmant < 63, reason="needs 80-bit floats")


def delta(epsilon, *parts):
    return delta_bounds([parts], epsilon)


@pytest.mark.parametrize(
    ("kind", "q", "s", "epsilon"),
    [
        ("remove", 0.3, 2.0, 0.5),
        ("add", 0.3, 2.0, 0.2),
        ("replace", 0.3, 2.0, 0.5),
        ("fixed-size", 0.3, 2.0, 0.5),
        ("remove", 0.1, 0.3, 20.0),
        ("replace", 1e-3, 0.06, 150.0),
        ("remove", 1e-4, 0.5, 0.05),
        ("replace", 2e-5, 0.844, 0.01413),
        ("remove", 1.106e-6, 1.01344, 0.009332),
    ],
)
def test_one_release_against_its_closed_form(kind, q, s, epsilon):
    # For epsilon >= 0 the law of fixed-size batches has the same deltas as "remove"
    exact = closed_form("remove" if kind == "fixed-size" else kind, q, s, epsilon)
    found = delta(epsilon, (Gaussian(kind, q, s), 1))
    assert found.lower <= exact <= found.upper
    assert found.upper - found.lower < 3e-3 * exact


@EXTENDED
@pytest.mark.parametrize(
    ("kind", "q", "s", "steps", "epsilon"),
    [("remove", 1 / 16, 12.496428, 10_000, 2.0), ("add", 0.3, 2.0, 60, 1.0), ("replace", 0.05, 3.0, 300, 0.7)],
)
def test_composition_against_extended_precision(kind, q, s, steps, epsilon):
    value, error = independent_delta(kind, q, s, steps, epsilon)
    assert error < 1e-12
    parts = ((Gaussian(kind, q, s), steps),)
    found = delta(epsilon, *parts)
    assert found.lower <= value <= found.upper
    assert found.upper - found.lower < 2e-3 * value
    at = epsilon_bounds([parts], value)
    assert at.lower <= epsilon <= at.upper < (1 + 2e-4) * at.lower


@pytest.mark.parametrize(
    ("kind", "q", "s", "steps", "epsilon"),
    [("remove", 1.150876e-5, 0.0587336, 28, 165.2811), ("replace", 5.564232e-5, 0.0538259, 3164, 180.722)],
)
def test_rare_events_against_a_tilted_lattice(kind, q, s, steps, epsilon):
    value, error = lattice_delta(kind, q, s, steps, epsilon)
    assert error < 1e-4
    found = delta(epsilon, (Gaussian(kind, q, s), steps))
    assert found.lower <= value * (1 + error)
    assert value * (1 - error) <= found.upper
    assert found.upper / found.lower - 1 < 3e-3


@pytest.mark.parametrize(
    ("kind", "q", "s", "steps", "epsilon"), [("remove", 1e-5, 0.35, 3000, 0.3), ("replace", 2e-5, 0.5, 2000, 0.2)]
)
def test_large_losses_apart_against_a_tilted_lattice(kind, q, s, steps, epsilon, monkeypatch):
    value, error = lattice_delta(kind, q, s, steps, epsilon)
    assert error < 1e-3
    parts = ((Gaussian(kind, q, s), steps),)
    found = grid._Apart(parts, epsilon, value, 2**15)
    assert found.lower(epsilon) <= value * (1 + error)
    assert value * (1 - error) <= found.upper(epsilon) < (1 + 4e-3) * found.lower(epsilon)
    # Half a percent of the large losses too few is seen, and so is a loss beside them that is lost.
    whole, total = grid._large, grid._total
    monkeypatch.setattr(grid, "_large", lambda *words: (thinner(whole(*words)[0], 0.995), whole(*words)[1]))
    assert grid._Apart(parts, epsilon, value, 2**15).upper(epsilon) < value * (1 - error)
    monkeypatch.setattr(grid, "_large", whole)
    monkeypatch.setattr(grid, "_total", lambda *words, **more: thinner(total(*words, **more), 0.995))
    assert grid._Apart(parts, epsilon, value, 2**15).upper(epsilon) < value * (1 - error)


@pytest.mark.parametrize("made", [grid._Curve, grid._Apart])
def test_an_end_alone_is_the_same_as_with_the_other_one(made):
    parts, epsilon = ((Gaussian("remove", 1e-5, 0.35), 3000),), 0.3
    both, upper, lower = (made(parts, epsilon, 2e-3, 2**15, ends) for ends in ("both", "upper", "lower"))
    assert both.lower(epsilon) > 0.9 * both.upper(epsilon) > 0
    assert (upper.upper(epsilon), lower.lower(epsilon)) == (both.upper(epsilon), both.lower(epsilon))
    assert (upper.lower(epsilon), lower.upper(epsilon)) == (0, 1)


def thinner(pair, share):
    return replace(pair, mass=pair.mass * share)


@pytest.mark.parametrize(
    ("kind", "q", "s", "steps", "epsilon", "value"),
    [
        ("remove", 6.56544844611452e-05, 0.5194460217996825, 46_929, 0.5467287457270745, 6.156119661518018e-05),
        ("replace", 6.289172098777592e-05, 1.0106685564286124, 20_994, 0.38734211535136626, 1.1953071668745421e-18),
    ],
)
def test_large_losses_apart_against_an_integral(kind, q, s, steps, epsilon, value):
    """The values are those of an accountant by contour integrals (commit 451aefee), which knew them to 1e-6."""
    found = delta(epsilon, (Gaussian(kind, q, s), steps))
    assert found.lower <= value * (1 + 1e-6)
    assert value * (1 - 1e-6) <= found.upper < (1 + 1.5e-3) * found.lower


def two_removals(q, s, epsilon):
    """Returns delta_2(epsilon) of two releases as E_P delta_1(epsilon - L), with the closed form of delta_1 inside.

    L is the loss of the first release. The integral is over panels that end at the integrand's kink.
    """
    rate, noise, points = mpmath.mpf(q), mpmath.mpf(s), np.polynomial.legendre.leggauss(16)
    kink = float(0.5 + noise**2 * mpmath.log((mpmath.exp(epsilon) / (1 - rate) - 1 + rate) / rate))
    edges = np.sort(np.append(np.arange(-12 * s, 1 + 22 * s, s / 2), kink))
    total = mpmath.mpf(0)
    for low, high in itertools.pairwise(edges):
        for node, weight in zip(*points, strict=True):
            x = mpmath.mpf((low + high) / 2 + (high - low) / 2 * node)
            ratio = 1 - rate + rate * mpmath.exp((2 * x - 1) / (2 * noise**2))
            left = mpmath.mpf(epsilon) - mpmath.log(ratio)
            one = 1 - mpmath.exp(left) if mpmath.exp(left) <= 1 - rate else closed_form("remove", q, s, left)
            density = ratio * mpmath.exp(-(x**2) / (2 * noise**2)) / (noise * mpmath.sqrt(2 * mpmath.pi))
            total += (high - low) / 2 * weight * density * one
    return float(total)


@pytest.mark.parametrize(("q", "s", "epsilon"), [(3e-3, 2.5, 0.05), (1e-6, 0.8, 0.3)])
def test_two_releases_whose_delta_is_one_large_loss(q, s, epsilon):
    """Their deltas are 3e-16 and 1e-28; the second one is far below what one tilt for small and large losses
    resolves."""
    with mpmath.workdps(40):
        value = two_removals(q, s, epsilon)
    found = delta(epsilon, (Gaussian("remove", q, s), 2))
    assert found.lower <= value * (1 + 1e-9)
    assert value * (1 - 1e-9) <= found.upper < max(1.01 * found.lower, 1e-18)


@pytest.mark.parametrize("kind", ["remove", "add", "replace", "fixed-size"])
def test_ends_agree_across_grids_and_order(kind):
    """The same history as one kind twice as often, and as two kinds that are equal but for rounding."""
    one, other = Gaussian(kind, 0.05, 1.1), Gaussian(kind, 0.05, 1.1 * (1 + 1e-12))
    whole, halves = delta(0.8, (one, 80)), delta(0.8, (one, 40), (other, 40))
    assert max(whole.lower, halves.lower) <= min(whole.upper, halves.upper) * (1 + 1e-9)


@pytest.mark.parametrize(("kind", "q", "s"), [("remove", 0.06, 3.0), ("add", 0.2, 0.8), ("replace", 0.01, 0.5)])
def test_cells_keep_the_masses_of_both_laws(kind, q, s):
    tau, width = 1.7, 0.01
    found = Gaussian(kind, q, s).cells(9.0, tau, width, -100.0)
    losses = (found.first + np.arange(len(found.upper))) * width
    upper = found.upper * np.exp(found.log_scale - tau * losses)
    assert float(np.sum(upper)) == pytest.approx(1.0, abs=1e-12)
    assert float(upper @ np.exp(-losses)) == pytest.approx(1.0, abs=1e-9)
    assert float(np.sum(found.p * np.exp(found.log_scale - tau * losses))) == pytest.approx(1.0, abs=1e-12)
    assert float(np.sum(found.q * np.exp(found.log_scale - (1 + tau) * losses))) == pytest.approx(1.0, abs=1e-12)


def test_a_rare_jump_is_exact_to_rounding_of_the_jump():
    """The law of 10^9 variables that are 1 with probability 10^-9 is the Poisson law."""
    law, wrong, _ = sum_of([(0, np.array([1 - 1e-9, 1e-9]), 10**9)], 1.0, 0, 64, 3.0, 1.0)
    poisson = np.exp([-1 - math.lgamma(k + 1) for k in range(20)])
    assert np.abs(law[:20] - poisson).max() < 1e-8
    assert wrong < 1e-3


def line(first, second, s, epsilon):
    """Returns delta of mixtures of normal laws: their means with their chances, by a sum over 700,001 outputs."""
    x = np.linspace(-15 * s, 20 * s, 700_001)
    p, q = (
        sum(c * np.exp(-(((x - m) / s) ** 2) / 2) for m, c in law.items())
        * (x[1] - x[0])
        / (s * math.sqrt(2 * math.pi))
        for law in (first, second)
    )
    return float(np.maximum(p - math.exp(epsilon) * q, 0).sum())


def two_steps_of_an_epoch(epsilon, replaced=False):
    x = np.linspace(-9, 10, 4001)
    ratio, base = np.exp((2 * x - 1) / 2), np.exp(-(x**2) / 2) * (x[1] - x[0]) / math.sqrt(2 * math.pi)
    other = np.exp((-2 * x - 1) / 2) if replaced else np.ones(len(x))
    gain = np.add.outer(ratio, ratio) - math.exp(epsilon) * np.add.outer(other, other)
    return float((np.outer(base, base) * np.maximum(gain, 0)).sum()) / 2


def two_of_three_steps(epsilon):
    """Returns delta of an epoch of three steps, two of them with the record, with noise 2."""
    x = np.arange(-15, 15, 0.25)
    ratio, base = np.exp((2 * x - 1) / 8), np.exp(-(x**2) / 8) * 0.25 / (2 * math.sqrt(2 * math.pi))
    a, b, c = np.meshgrid(ratio, ratio, ratio, indexing="ij", sparse=True)
    weight = base[:, None, None] * base[:, None] * base
    return float((weight * np.maximum((a * b + b * c + a * c) / 3 - math.exp(epsilon), 0)).sum())


def scaled(module, name):
    """Returns a plant: the probabilities that a helper of a law returns, times a factor."""

    def plant(monkeypatch, factor):
        original = getattr(module, name)

        def moved(*given, **named):
            found = original(*given, **named)
            return (found[0] * factor, *found[1:]) if isinstance(found, tuple) else found * factor

        monkeypatch.setattr(module, name, moved)
        return 1.0

    return plant


def ratio(monkeypatch, factor):
    original = Gaussian.losses

    def moved(self, branch, x):
        loss, log_a = original(self, branch, x)
        return loss, log_a + math.log(factor)

    monkeypatch.setattr(Gaussian, "losses", moved)
    return 1.0


def one_step(monkeypatch, factor):
    """Scales the masses of one step of an epoch; the noise differs a little, as sums of steps are kept by it."""
    original = epoch._one_step

    def moved(*given):
        levels, wrong = original(*given)
        return {k: (first, masses * factor) for k, (first, masses) in levels.items()}, wrong

    monkeypatch.setattr(epoch, "_one_step", moved)
    return 1 + 1e-9 * (factor - 1)


def noise(monkeypatch, factor):
    """Returns the factor as that of the law's noise."""
    return factor


def pair(make):
    return lambda s, epsilon: pair_delta(make(s), epsilon)


def shifted(noise, rate, size=1):
    made = shifts.shifted_pairs.__wrapped__
    return pair(lambda s: made(noise(s), shifts.binomial_shifts(rate, size), replaced=False)[0])


def two_steps(s, epsilon, replaced=False):
    above = epoch.dominating_pairs.__wrapped__(s, 2, 2, replaced=replaced, reach=9.0, near=9.0, ratio=0.03)
    return allocated(s, 2, 1, epsilon, replaced)[0], pair_delta(above[0], epsilon)[1]


def allocated(s, t, k, epsilon, replaced=False):
    """Returns the bound from below of a whole epoch, and 1."""
    below = epoch.dominated_pairs.__wrapped__(s, t, t, k, replaced=replaced, points=2**15)
    return pair_delta(below[0], epsilon)[0], 1.0


def composed(s, epsilon):
    found = delta(epsilon, (Gaussian("remove", 0.3, 2.0 * s), 1))
    return found.lower, found.upper


PLANTED = {
    "gaussian": (ratio, composed, 0.5, lambda e: closed_form("remove", 0.3, 2.0, e)),
    "shifts": (
        scaled(shifts, "normal_mass"),
        shifted(lambda s: shifts.NormalNoise(2.0 * s), 0.1, 2),
        0.2,
        lambda e: line({0: 0.81, 1: 0.18, 2: 0.01}, {0: 1.0}, 2.0, e),
    ),
    "laplace": (
        scaled(shifts.LaplaceNoise, "masses"),
        shifted(lambda s: shifts.LaplaceNoise(s, 4), 0.3),
        0.2,
        lambda e: oracle.exact_delta(e, [[oracle.laplace(4, 1.0, 0.3, "add-remove")[0]]]),
    ),
    "zeroed": (
        scaled(shifts, "normal_mass"),
        pair(lambda s: shifts.zeroed_pairs.__wrapped__(1.5 * s, 0.2)[0]),
        0.1,
        lambda e: line({0: 0.8, 2: 0.2}, {0: 0.8, 1: 0.2}, 1.5, e),
    ),
    "epoch": (
        one_step,
        two_steps,
        0.5,
        two_steps_of_an_epoch,
    ),
    "replaced": (
        scaled(epoch, "normal_mass"),
        lambda s, e: two_steps(s, e, replaced=True),
        0.5,
        lambda e: two_steps_of_an_epoch(e, replaced=True),
    ),
    "integers": (
        noise,
        shifted(lambda s: shifts.IntegerNoise(s, 4), 0.3),
        0.2,
        lambda e: oracle.exact_delta(e, [[oracle.discrete_gaussian(4, 4.0, 0.3, "add-remove")[0]]]),
    ),
    "subset": (
        noise,
        lambda s, e: allocated(2.0 * s, 3, 2, e),
        0.3,
        two_of_three_steps,
    ),
    "concentrated": (
        noise,
        # Bounds of statements have no truth but that of Gaussian noise, which they exceed: a tenth of rho does not.
        pair(lambda s: concentrated.concentrated_pair(0.5 if s < 1.01 else 0.05, 0.0)),
        1.0,
        lambda e: closed_form("remove", 1.0, 1.0, e),
    ),
}


@pytest.mark.parametrize("law", PLANTED)
def test_a_wrong_constant_in_a_law_is_seen(law, monkeypatch):
    """Masses, or noise, wrong by a share of 0.02 move the bracket away from the truth, and right ones hold it."""
    plant, ask, epsilon, exact = PLANTED[law]
    truth, held = exact(epsilon), []
    for factor in (1.0, 0.98, 1.02):
        with monkeypatch.context() as changed:
            lower, upper = ask(plant(changed, factor), epsilon)
        held.append(lower * (1 - 1e-4) <= truth <= upper * (1 + 1e-4))
    assert held[0]
    assert not all(held[1:])
