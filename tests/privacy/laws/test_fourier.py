"""Powers of laws by the Fourier transform, against direct convolutions and the stated bound on their errors."""

import numpy as np
import pytest

from dpzero_theory.privacy.laws.fourier import composed

SMOOTH = np.exp(-(np.linspace(-6, 6, 61) ** 2) / 2)
LAWS = {
    "smooth, so that its transform is nearly 0 at most frequencies": SMOOTH / SMOOTH.sum(),
    "random": np.random.default_rng(1).dirichlet(np.ones(9)),
    "of one rare jump": np.array([1 - 1e-9, 0.0, 1e-9]),
    "of two values, whose transform has a root": np.array([0.5, 0.5]),
}


@pytest.mark.parametrize("law", LAWS)
@pytest.mark.parametrize("count", [1, 2, 3, 7])
def test_a_power_is_the_convolution_up_to_the_stated_error(law, count):
    one, other = LAWS[law], np.random.default_rng(2).dirichlet(np.ones(5))
    for second in (None, other):
        exact = np.ones(1)
        for factor in [one] * count + ([] if second is None else [second]):
            exact = np.convolve(exact, factor)
        laws = [(-3, one, count)] + ([] if second is None else [(2, other, 1)])
        found, wrong, _ = composed(laws, 1.0, -3 * count + 2 * (second is not None), 512, 1.0, 1.0)
        whole = np.zeros(512)
        whole[: len(exact)] = exact
        assert np.linalg.norm(found - whole) <= wrong < 2e-13
