"""Tests of the engine that treats large privacy losses apart.

It is compared with closed forms, independent values and the grid's brackets; the bounds that its bracket adds are
tested.
"""

import math
from dataclasses import replace

import numpy as np
import pytest

from benchmarks.independent import independent_delta, lattice_delta
from dpzero_theory.privacy.accountant import delta_of_history
from dpzero_theory.privacy.certified.analytic import rare
from dpzero_theory.privacy.certified.analytic.contour import delta_bracket
from dpzero_theory.privacy.certified.analytic.quadrature import Contour, build
from dpzero_theory.privacy.certified.analytic.rare import bracket_of, rare_delta, split
from dpzero_theory.privacy.certified.grids.grid import grid_delta
from dpzero_theory.privacy.certified.laws.pairs import Pair
from dpzero_theory.privacy.certified.laws.sketch import rough_cut
from dpzero_theory.privacy.step import Release

EXTENDED = pytest.mark.skipif(np.finfo(np.longdouble).nmant < 63, reason="needs 80-bit floats")


@EXTENDED
@pytest.mark.parametrize(
    ("kind", "q", "s", "steps", "epsilon"),
    [("remove", 5e-3, 2.0, 2_000, 0.5), ("add", 1e-3, 1.0, 1_000, 0.01)],
)
def test_against_extended_precision(kind, q, s, steps, epsilon):
    value, error = independent_delta(kind, q, s, steps, epsilon)
    assert error < 1e-5
    found = rare_delta(epsilon, [(Pair(kind, q, s), steps)])
    assert found.lower <= value * (1 + error)
    assert found.upper >= value * (1 - error)
    assert found.upper < found.lower * (1 + 1e-5)


def test_against_a_lattice():
    question = ("replace", 2e-3, 0.6, 200, 3.0)
    value, error = lattice_delta(*question)
    assert error < 1e-6
    found = rare_delta(3.0, [(Pair(*question[:3]), 200)])
    assert found.lower <= value * (1 + 2 * error)
    assert found.upper >= value * (1 - 2 * error)
    assert found.upper < found.lower * (1 + 1e-5)


@pytest.mark.parametrize(("kind", "q", "s", "steps", "epsilon"), [("remove", 1e-4, 1.8, 30, 0.01)])
def test_against_importance_sampling(kind, q, s, steps, epsilon):
    """The bracket agrees with importance sampling, up to about 1%.

    In half of the draws one step is drawn from N(m, s^2), with m where the loss is epsilon; the weights are exact.
    """
    rng = np.random.default_rng(11)
    draws, m = 40_000, 0.5 + s * s * math.log1p(epsilon / q)
    x = rng.normal(0, s, (draws, steps)) + (rng.random((draws, steps)) < q)
    half = draws // 2
    x[np.arange(half), rng.integers(steps, size=half)] = rng.normal(m, s, half)
    ratio = 1 - q + q * np.exp((2 * x - 1) / (2 * s * s))
    moved = np.exp((2 * m * x - m * m) / (2 * s * s)) / ratio
    weight = 1 / (0.5 + 0.5 * moved.mean(axis=1))
    gain = weight * np.maximum(-np.expm1(epsilon - np.log(ratio).sum(axis=1)), 0.0)
    found = rare_delta(epsilon, [(Pair(kind, q, s), steps)])
    spread = gain.std() / math.sqrt(draws)
    assert spread < 0.02 * gain.mean()
    assert abs(found.value - gain.mean()) < 5 * spread


@pytest.mark.parametrize(
    ("kind", "q", "s", "steps", "epsilon"),
    [
        ("remove", 4.7e-7, 1.204, 20_195, 0.001544),
        ("replace", 2.25e-5, 31.6, 85_864, 0.00406),
        ("fixed-size", 3e-7, 0.948, 95_273, 0.0325),
        ("fixed-size", 4.6e-6, 0.82, 801_634, 0.0694),
    ],
)
def test_inside_the_bracket_of_the_grid_and_far_narrower(kind, q, s, steps, epsilon):
    parts = [(Pair(kind, q, s), steps)]
    coarse, found = grid_delta(epsilon, parts, points=2**16), rare_delta(epsilon, parts)
    assert coarse.lower <= found.upper
    assert found.lower <= coarse.upper
    assert 0 < found.upper - found.lower < 1e-4 * found.lower


def test_low_losses_that_are_rarer_than_any_that_is_left_out():
    """Where low losses are rarer than every chance that the search tries, the search still returns a right cut."""
    assert rare._cut_below([(Pair("replace", 2e-7, 0.1, stop=2.0), 36)], math.log(1e-5))[1] == pytest.approx(
        36 * math.exp(Pair("replace", 2e-7, 0.1).beyond(1.0)[0])
    )


def test_beside_plain_gaussian_releases_and_another_pair():
    parts = [(Pair("remove", 1e-4, 1.5), 2_000), (Pair("remove", 1e-3, 3.0), 500)]
    for gdp in (0.0, 0.3):
        coarse, found = grid_delta(0.9, parts, gdp, points=2**17), rare_delta(0.9, parts, gdp)
        assert coarse.lower <= found.upper
        assert found.lower <= coarse.upper
        assert found.upper < found.lower * (1 + 1e-5)


def test_any_cut_gives_a_bracket_that_overlaps_every_other():
    parts = [(Pair("remove", 5e-3, 2.0), 2_000)]
    plain = delta_bracket(0.5, parts)
    log_cut, rough = rough_cut(0.5, parts, 0.0)
    for shift in (-8.0, 0.0, 4.0):
        parted = split(parts, log_cut + shift, rough)
        found = bracket_of(0.5, parted, 0.0, budget=1e9, log_error=rough - 16)
        assert parted.two <= 1e-7 * math.exp(rough)
        assert plain.lower <= found.upper
        assert found.lower <= plain.upper


def test_the_parts_of_a_pair_are_the_pair():
    """A pair of laws that is cut in two parts has the moments E_P[e^{tau L}] and probabilities of its parts.

    L is the privacy loss; one part has the outputs below the cut and the other those above.
    """
    for kind in ("remove", "replace", "fixed-size"):
        pair, cut = Pair(kind, 0.01, 0.8), 2.9
        below, above = replace(pair, stop=cut), replace(pair, start=cut)
        for tau in (0.0, 1.5):
            whole, *parts = (
                math.fsum(np.exp(law.log_mass + tau * law.loss))
                for law in (build(p, Contour(tau), -35.0) for p in (pair, below, above))
            )
            assert math.fsum(parts) == pytest.approx(whole, rel=1e-12)
            if tau == 0:
                assert parts[1] == pytest.approx(math.exp(pair.beyond(cut)[0]), rel=1e-10)
                assert 1 - parts[0] == pytest.approx(below.missing, abs=1e-13)
        law = build(above, Contour(0.0), -35.0)
        q_mass = math.fsum(np.exp(law.log_mass - law.loss))
        assert q_mass == pytest.approx(math.exp(pair.beyond(cut)[1]), rel=1e-9)


def test_the_left_tail_bound_holds_in_simulations():
    rng = np.random.default_rng(5)
    q, s, steps, draws = 0.02, 1.0, 40, 20_000
    there = rng.random((draws, steps)) < q
    x = rng.normal(0, s, (draws, steps)) + there
    loss = np.log1p(q * np.expm1((2 * x - 1) / (2 * s * s))).sum(axis=1)
    for margin in (0.3, 0.4):
        excess = np.maximum(np.expm1(-margin - loss), 0.0)
        bound = math.exp(rare._log_left_tail([(Pair("remove", q, s), steps)], 0.0, margin))
        assert excess.mean() + 5 * excess.std() / math.sqrt(draws) < bound < 1


@pytest.mark.parametrize("noise", [1.5, 2.3])
def test_groups_of_other_kinds_cost_together_what_each_does_where_events_are_rare(noise):
    """Releases of two kinds cost together what each costs alone, where large losses are rare.

    One step in 8,340 has a batch of fixed size; its losses are not cut, and those of the others are.
    """
    rate, epsilon = 1.66e-5, 0.26
    one = Release(noise, 1, sampling="fixed-size", relation="replace-one", sample_rate=rate)
    rest = Release(noise, 8339, sampling="poisson", relation="replace-one", sample_rate=rate)
    both, alone, others = (delta_of_history(history, epsilon) for history in ([one, rest], [one], [rest]))
    assert alone.lower + others.lower <= both.upper
    assert both.lower <= 1.01 * (alone.upper + others.upper)
    assert both.upper <= 1.001 * both.lower
