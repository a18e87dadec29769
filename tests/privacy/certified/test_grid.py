"""The grid engine: closed forms, independent values and the contour's brackets; the laws on the grid themselves."""

import numpy as np
import pytest
from scipy.stats import norm

from benchmarks.independent import independent_delta, lattice_delta
from dpzero_theory.privacy.accountant import direction_delta
from dpzero_theory.privacy.certified import cells as cells_module
from dpzero_theory.privacy.certified.cells import cells
from dpzero_theory.privacy.certified.contour import delta_bracket
from dpzero_theory.privacy.certified.grid import grid_delta
from dpzero_theory.privacy.certified.pairs import Pair
from tests.privacy.oracle import closed_form

POINTS = 2**16
EXTENDED = pytest.mark.skipif(np.finfo(np.longdouble).nmant < 63, reason="needs 80-bit floats")


@pytest.mark.parametrize(
    ("kind", "q", "s", "epsilon", "width"),
    [
        ("remove", 0.3, 2.0, 0.5, 1e-5),
        ("add", 0.3, 2.0, 0.2, 1e-5),
        ("replace", 0.3, 2.0, 0.5, 1e-5),
        ("fixed-size", 0.3, 2.0, 0.5, 1e-5),
        ("remove", 0.1, 0.3, 20.0, 1e-5),
        ("replace", 1e-3, 0.06, 150.0, 1e-4),
        ("remove", 1e-4, 0.5, 0.05, 1e-4),
        pytest.param("replace", 2e-5, 0.844, 0.01413, 2e-3, marks=EXTENDED),
        pytest.param("add", 1e-4, 0.9, 9e-5, 1e-4, marks=EXTENDED),
    ],
)
def test_one_release_against_its_closed_form(kind, q, s, epsilon, width):
    # for epsilon >= 0 the pair of fixed-size batches has the profile of `remove`
    exact = closed_form("remove" if kind == "fixed-size" else kind, q, s, epsilon)
    found = grid_delta(epsilon, [(Pair(kind, q, s), 1)], points=POINTS)
    assert found.lower <= exact <= found.upper
    assert found.upper - found.lower < width * exact
    assert found.method == "grid"


@EXTENDED
@pytest.mark.parametrize(
    ("kind", "q", "s", "steps", "epsilon", "width"),
    [
        ("remove", 1 / 16, 12.496428, 10_000, 2.0, 2e-2),
        ("add", 0.3, 2.0, 60, 1.0, 1e-4),
        ("replace", 0.05, 3.0, 300, 0.7, 1e-3),
    ],
)
def test_composition_against_extended_precision(kind, q, s, steps, epsilon, width):
    value, error = independent_delta(kind, q, s, steps, epsilon)
    assert error < 1e-12
    found = grid_delta(epsilon, [(Pair(kind, q, s), steps)], points=POINTS)
    assert found.lower <= value <= found.upper
    assert found.upper - found.lower < width * value


@pytest.mark.parametrize(
    ("kind", "q", "s", "steps", "epsilon"),
    [("remove", 1.150876e-5, 0.0587336, 28, 165.2811), ("replace", 5.564232e-5, 0.0538259, 3164, 180.722)],
)
def test_rare_events_against_a_tilted_lattice(kind, q, s, steps, epsilon):
    value, error = lattice_delta(kind, q, s, steps, epsilon)
    assert error < 1e-4
    found = grid_delta(epsilon, [(Pair(kind, q, s), steps)], points=2**18)
    assert found.lower <= value * (1 + error)
    assert value * (1 - error) <= found.upper
    assert found.upper / found.lower - 1 < 1e-5


@pytest.mark.parametrize("gdp", [0.0, 0.3])
@pytest.mark.parametrize("kind", ["remove", "add", "replace", "fixed-size"])
def test_both_engines_agree_on_mixed_histories(kind, gdp):
    parts = [(Pair(kind, 0.05, 1.1), 40), (Pair(kind, 0.2, 4.0), 200)]
    contour = delta_bracket(0.8, parts, gdp)
    found = grid_delta(0.8, parts, gdp, points=POINTS)
    assert max(found.lower, contour.lower) <= min(found.upper, contour.upper)
    assert found.upper / found.lower - 1 < 1e-2
    assert found.value == pytest.approx(contour.value, rel=1e-3)


def test_more_points_narrow_the_bracket_as_their_square():
    parts = [(Pair("remove", 0.05, 0.8), 30)]
    widths = []
    for points in (2**13, 2**15):
        found = grid_delta(2.0, parts, points=points)
        widths.append(found.upper - found.lower)
    assert 12 < widths[0] / widths[1] < 20


@pytest.mark.parametrize(("kind", "q", "s"), [("remove", 0.06, 3.0), ("add", 0.2, 0.8), ("replace", 0.01, 0.5)])
def test_cells_have_the_masses_of_the_normal_law_and_the_spread_law_keeps_them(kind, q, s):
    pair, tau, width, reach = Pair(kind, q, s), 1.7, 0.01, 9.0
    found = cells(pair, tau, width, reach, -100.0)
    losses = (found.first + np.arange(len(found.dominating))) * width
    under_p = found.nearest_p * np.exp(-tau * losses)
    under_q = found.nearest_q * np.exp(-(1 + tau) * losses)
    # the same events from a fine grid of x and the normal distribution function
    x = np.linspace(-s * reach, 1 + s * reach, 2_000_001)
    branch = pair.branches[0]
    loss = branch.a_slope * pair.log_mixture(x) + branch.b_slope * pair.log_mixture(-x)
    nearest = np.rint(loss / width)
    middle = (nearest[1:] == nearest[:-1]) & (np.abs(loss[1:] / width - nearest[1:]) < 0.5)
    steps = {m: np.diff(norm.cdf(x, m, s)) for m in (-1, 0, 1)}
    mixed = {sign: (1 - q) * steps[0] + q * steps[sign] for sign in (1, -1)}
    exact_p = mixed[1] if kind != "add" else steps[0]
    exact_q = {"remove": steps[0], "add": mixed[1], "replace": mixed[-1]}[kind]
    index = (nearest[1:] - found.first).astype(int)
    for law, exact in ((under_p, exact_p), (under_q, exact_q)):
        counted = np.bincount(index[middle], exact[middle], len(law))
        assert np.all(counted <= law * (1 + 1e-9) + 1e-13)
        assert float(np.sum(counted)) == pytest.approx(float(np.sum(law)), abs=1e-2)
        assert float(np.sum(law)) == pytest.approx(1.0, abs=1e-12)
    dominating = found.dominating * np.exp(-tau * losses)
    assert float(np.sum(dominating)) == pytest.approx(1.0, abs=1e-12)
    assert float(dominating @ np.exp(-losses)) == pytest.approx(1.0, abs=1e-9)


def test_tiny_gaussian_part_goes_to_the_grid():
    parts = ((Pair("remove", 1e-4, 0.07), 20),)
    alone = direction_delta(120.0, parts, 0.0)
    mixed = direction_delta(120.0, parts, 1e-5)
    assert alone.method == mixed.method == "grid"
    assert mixed.lower <= alone.upper * (1 + 1e-4)
    assert alone.lower <= mixed.upper


def test_what_is_out_of_range_is_refused():
    with pytest.raises(OverflowError):
        grid_delta(1e5, [(Pair("remove", 0.5, 1e-3), 10)])


def test_a_wrong_loss_is_paid_for(monkeypatch):
    """The slip of the cells' ends is measured: with losses wrong by 1e-4 the bracket is wide and still right."""
    original = cells_module.losses
    monkeypatch.setattr(cells_module, "losses", lambda *a: (original(*a)[0] * (1 + 1e-4), *original(*a)[1:]))
    found = grid_delta(0.5, [(Pair("remove", 0.3, 2.0), 1)], points=POINTS)
    assert found.lower <= closed_form("remove", 0.3, 2.0, 0.5) <= found.upper
    assert found.upper - found.lower > 1e-3 * found.value


def test_wrong_masses_would_be_seen(monkeypatch):
    """Teeth: masses wrong by 1e-4 move the value out of the bracket."""
    original = cells_module.losses
    monkeypatch.setattr(cells_module, "losses", lambda *a: (original(*a)[0], original(*a)[1] + 1e-4, *original(*a)[2:]))
    found = grid_delta(0.5, [(Pair("remove", 0.3, 2.0), 1)], points=POINTS)
    assert not found.lower <= closed_form("remove", 0.3, 2.0, 0.5) <= found.upper
