"""Tests of the privacy losses of one release on a grid: exact masses, and what a wrong loss or mass would do."""

import numpy as np
import pytest
from scipy.stats import norm

from dpzero_theory.privacy.grid import grid_delta
from dpzero_theory.privacy.laws import cells as cells_module
from dpzero_theory.privacy.laws.cells import Span, cells
from dpzero_theory.privacy.laws.gaussian import Pair
from tests.privacy.oracle import closed_form

POINTS = 2**16


@pytest.mark.parametrize(("kind", "q", "s"), [("remove", 0.06, 3.0), ("add", 0.2, 0.8), ("replace", 0.01, 0.5)])
def test_cells_have_the_masses_of_the_normal_law_and_the_spread_law_keeps_them(kind, q, s):
    pair, tau, width, reach = Pair(kind, q, s), 1.7, 0.01, 9.0
    found = cells(pair, tau, width, Span(reach, reach), -100.0)
    losses = (found.first + np.arange(len(found.dominating))) * width
    under_p = found.nearest_p * np.exp(found.log_scale - tau * losses)
    under_q = found.nearest_q * np.exp(found.log_scale - (1 + tau) * losses)
    # The probabilities of the same events are computed on a fine grid of outputs x, and by the normal distribution
    # function
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
    dominating = found.dominating * np.exp(found.log_scale - tau * losses)
    assert float(np.sum(dominating)) == pytest.approx(1.0, abs=1e-12)
    assert float(dominating @ np.exp(-losses)) == pytest.approx(1.0, abs=1e-9)


def test_a_wrong_loss_is_paid_for(monkeypatch):
    """Losses wrong by 1e-4 make the bracket wide, and it is still right, because the ends of the cells are checked."""
    original = cells_module.losses
    monkeypatch.setattr(cells_module, "losses", lambda *a: (original(*a)[0] * (1 + 1e-4), *original(*a)[1:]))
    found = grid_delta(0.5, [(Pair("remove", 0.3, 2.0), 1)], points=POINTS)
    assert found.lower <= closed_form("remove", 0.3, 2.0, 0.5) <= found.upper
    assert found.upper - found.lower > 1e-3 * found.value


def test_wrong_masses_would_be_seen(monkeypatch):
    """Masses wrong by 1e-4 would move the value out of the bracket, so the tests here can fail."""
    original = cells_module.losses
    monkeypatch.setattr(cells_module, "losses", lambda *a: (original(*a)[0], original(*a)[1] + 1e-4, *original(*a)[2:]))
    found = grid_delta(0.5, [(Pair("remove", 0.3, 2.0), 1)], points=POINTS)
    assert not found.lower <= closed_form("remove", 0.3, 2.0, 0.5) <= found.upper
