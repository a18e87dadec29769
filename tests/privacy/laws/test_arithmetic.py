"""Tests of the bounds on rounding errors of normal probabilities, against mpmath."""

import mpmath
import numpy as np

from dpzero_theory.privacy.laws.arithmetic import normal_mass


def test_the_error_of_a_normal_mass_is_within_its_bound_far_out():
    """At -37 standard deviations `ndtr` errs by 2.4e-13 of the probability."""
    low = -np.linspace(0.5, 37.0, 400)
    mass, error = normal_mass(low - 0.25, low)
    with mpmath.workdps(40):
        exact = [mpmath.ncdf(high) - mpmath.ncdf(mpmath.mpf(high) - 0.25) for high in low.tolist()]
        wrong = [abs(found - true) for found, true in zip(mass.tolist(), exact, strict=True)]
    assert max(float(one / true) for one, true in zip(wrong, exact, strict=True)) > 4e-15
    assert all(one <= most for one, most in zip(wrong, error.tolist(), strict=True))
    assert (error < 2e-12 * mass).all()
