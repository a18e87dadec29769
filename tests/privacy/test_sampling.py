"""Samplings: exact laws of the batches drawn, what they add to a composition, and which of them can run."""

import math

import numpy as np
import pytest

from dpzero_theory.privacy.release import Release
from dpzero_theory.privacy.sampling import passes


@pytest.mark.parametrize(("n", "batch", "steps"), [(10, 4, 5), (12, 4, 7), (7, 7, 3), (9, 1, 20), (10, 3, 1)])
@pytest.mark.parametrize("keep_last", [False, True])
def test_passes_is_enough_for_any_shuffled_epochs(n, batch, steps, keep_last):
    rng = np.random.default_rng(5)
    most = 0
    for _ in range(300):
        batches = []
        while len(batches) < steps:
            order = rng.permutation(n)
            cuts = [order[i : i + batch] for i in range(0, n, batch)]
            batches += [c for c in cuts if keep_last or len(c) == batch]
        counts = np.bincount(np.concatenate(batches[:steps]), minlength=n)
        most = max(most, int(counts.max()))
    assert most <= passes(steps, batch / n)
    if not keep_last:
        assert most == passes(steps, batch / n)


def test_passes_counts_an_integer_ratio_exactly():
    for m in range(1, 2000):
        assert passes(3 * m + 1, 1 / m) == 4


def test_fixed_order_and_whole_batches_are_closed_form():
    unit = Release(3.0, 100, sampling="fixed-order", relation="replace-one", sample_rate=0.25)
    assert unit.terms.gdp == pytest.approx(math.sqrt(25) * 2 / 3)
    for sampling in ("poisson", "fixed-size", "random-allocation", "fixed-order"):
        whole = Release(3.0, 100, sampling=sampling, relation="add-remove", sample_rate=1.0)
        assert whole.terms.gdp == pytest.approx(10 / 3)
        assert whole.terms.pairs == ()
