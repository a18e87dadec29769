"""Tests of the characteristic function chi(t) of the tilted privacy losses, summed in every way the engine has."""

import math

import numpy as np

from dpzero_theory.privacy.certified.analytic.characteristic import log_far
from dpzero_theory.privacy.certified.analytic.quadrature import Contour, build
from dpzero_theory.privacy.certified.analytic.tilting import tilt
from dpzero_theory.privacy.certified.laws.pairs import Pair


def test_both_ways_of_summing_a_far_block_agree_within_their_bounds():
    """Two ways of summing a distant part of the integral for chi(t) agree within their error bounds.

    One uses differences (for many steps) and the other none (for few); both are compared with the nodes of the real
    line.
    """
    tau, t = 2.0, np.linspace(20.0, 40.0, 50)
    law = build(Pair("remove", 1e-3, 1.5), Contour(tau, 0.0, 40.0), math.log(1e-18))
    few, many = (tilt(law, steps, tau) for steps in (10, 10**6))
    direct, direct_error = log_far(few, tau, t, math.log(1e-18))
    differences, difference_error = log_far(many, tau, t, math.log(1e-18))
    change = np.exp(1j * t[:, None] * many.centred) @ many.weights
    gap = np.abs(np.expm1(differences - direct))
    assert np.all(gap <= direct_error + difference_error)
    assert np.all(np.abs(np.exp(differences) / change - 1) < 1e-12)
    assert difference_error.max() < 0.1 * direct_error.max()
