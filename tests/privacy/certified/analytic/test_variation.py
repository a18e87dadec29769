"""Tests of the total variation of a density whose values differ by any factor."""

import math

import numpy as np

from dpzero_theory.privacy.certified.analytic.decay import Decay
from dpzero_theory.privacy.certified.analytic.quadrature import Contour, build
from dpzero_theory.privacy.certified.analytic.tilting import blend, tilt
from dpzero_theory.privacy.certified.analytic.variation import variations
from dpzero_theory.privacy.certified.laws.pairs import Pair


def log_variation(law, tau):
    """Returns the log of the bound on the total variation of the density of the loss L under P e^{tau L}.

    `law` is the law of L on a contour.
    """
    found = variations(law, tau)
    return np.logaddexp.reduce([v.top + math.log(float(np.sum(v.cells)) + v.f[0] + v.f[-1]) for v in found])


def test_what_is_far_below_the_peak_does_not_vanish():
    """A part of the density far below its peak still counts.

    At noise multiplier 0.03 the density is e^400 times higher where the loss is constant, and no other part may look
    smooth beside it.
    """
    law = build(Pair("remove", 1e-3, 0.03), Contour(1.0), -40.0)
    (found,) = variations(law, 1.0)
    assert found.top > 400
    assert np.all(found.f > 0)
    assert np.all(found.cells > 0)
    assert log_variation(law, 1.0) > 400
    # Without the outputs of large losses the loss is one value, so |chi| is 1 for every t that can be written down
    part = tilt(build(Pair("remove", 1e-3, 0.03, stop=0.4), Contour(1.0), -40.0), 10, 1.0)
    decay = Decay([blend([(1.0, part)])], 1.0, 0.0)
    assert decay.fine.min() > -1e-9
