"""Tests of bounds on |chi(t')| for all t' >= t, against sums over many nodes; chi is the characteristic function."""

import math

import numpy as np
import pytest

from dpzero_theory.privacy.certified.analytic.decay import Decay
from dpzero_theory.privacy.certified.analytic.quadrature import Contour, build
from dpzero_theory.privacy.certified.analytic.tilting import blend, tilt, tilt_all
from dpzero_theory.privacy.certified.laws.pairs import Pair
from dpzero_theory.privacy.certified.laws.parts import OneOf


def at(decay, t, *, fine):
    """Returns the bound on log |chi(t')| for all t' >= t.

    `decay` has the bounds at some points; if `fine`, its finer one is returned.
    """
    index = np.searchsorted(decay.t, t * (1 + 1e-15), side="right") - 1
    return (decay.fine if fine else decay.coarse)[index] if index >= 0 else 0.0


@pytest.mark.parametrize(
    ("pair", "steps", "tau"),
    [
        (Pair("remove", 1e-3, 1.5), 5_000, 6.0),
        (Pair("remove", 1e-4, 0.8, stop=3.5), 5_000, 80.0),
        (Pair("replace", 1e-3, 0.5, stop=2.0), 2_000, 5.0),
        (Pair("fixed-size", 1e-3, 1.0, stop=4.0), 3_000, 20.0),
        (Pair("add", 0.05, 2.0), 400, 9.0),
        (Pair("remove", 1e-3, 0.3, start=1.5, stop=2.0), 1, 2.0),
    ],
)
def test_no_later_value_is_above_the_bound(pair, steps, tau):
    law = build(pair, Contour(tau), -45.0)
    part = tilt(law, steps, tau)
    decay = Decay([blend([(1.0, part)])], tau, 0.0)
    scale = 1 / math.sqrt(steps * part.variance)
    t = np.geomspace(0.3 * scale, 3e2 * scale, 400)
    near = Contour(tau, 0.0, float(t[-1]))
    fine = build(pair, near, -40.0)
    node = tilt(fine, steps, tau)
    chi = np.abs(np.exp(1j * t[:, None] * node.centred) @ node.weights)
    with np.errstate(divide="ignore"):
        log_chi = steps * np.log(np.maximum(chi - 1e-12, 1e-300))
    later = np.maximum.accumulate(log_chi[::-1])[::-1]
    for fine_bound in (False, True):
        bound = np.array([at(decay, point, fine=fine_bound) for point in t])
        assert np.all(bound[1:] <= bound[:-1])
        assert np.all(bound >= later)
    assert decay.fine.min() < -5
    # The bound on |chi| is near its actual decay: it falls to e^-30 within a small factor of the right t
    if steps > 100:
        stop = t[np.argmax(later < -30)]
        assert at(decay, 20 * stop, fine=True) < -30


@pytest.mark.parametrize("name", ["remove", "add", "replace"])
def test_no_later_value_is_above_the_bound_of_several_kinds(name):
    kinds, steps, tau = ((0.7, Pair(name, 0.02, 1.0)), (0.3, Pair(name, 0.1, 3.0))), 400, 4.0
    (whole,) = tilt_all(((OneOf(kinds, (None, None)), steps),), tau, -45.0)
    decay = Decay([whole], tau, 0.0)
    scale = 1 / math.sqrt(steps * whole.variance)
    t = np.geomspace(0.3 * scale, 3e2 * scale, 400)
    chi = np.zeros(len(t), dtype=complex)
    for chance, pair in kinds:
        law = build(pair, Contour(tau, 0.0, float(t[-1])), -40.0)
        mass = chance * np.exp(law.log_mass + tau * law.loss - whole.cumulant)
        chi += np.exp(1j * t[:, None] * (law.loss - whole.mean)) @ mass
    with np.errstate(divide="ignore"):
        log_chi = steps * np.log(np.maximum(np.abs(chi) - 1e-12, 1e-300))
    later = np.maximum.accumulate(log_chi[::-1])[::-1]
    for fine in (False, True):
        assert np.all(np.array([at(decay, point, fine=fine) for point in t]) >= later)
    assert np.all(decay.shifted(t) >= later - 1e-9)
    assert decay.fine.min() < -5


def test_doubling_holds_on_the_grid():
    part = tilt(build(Pair("remove", 0.01, 2.0), Contour(3.0), -40.0), 1_000, 3.0)
    decay = Decay([blend([(1.0, part)])], 3.0, 0.2)
    assert np.all(decay.coarse[1:] <= decay.coarse[:-1])
    assert np.all(decay.fine <= decay.coarse)
