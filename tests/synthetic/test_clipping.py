"""Tests that the clipped mean for many settings at once is that of each sample's clipped vector."""

import numpy as np
import pytest
import torch

from dpzero_theory.optim.step.algorithm import clip_vectors
from dpzero_theory.synthetic import clipping


@pytest.mark.parametrize("width", [1, 3, 64])
def test_the_mean_of_clipped_vectors(width: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clipping, "SAMPLES", 7)
    rng = np.random.default_rng(width)
    rows = rng.standard_normal((40, width))
    rows -= rows.mean(axis=0)
    h, clip = rng.standard_normal((width, 6)), np.array([0.01, 0.5, 2.0, 5.0, 10.0, 1e3])
    clipped_mean = clipping.ClippedMean(torch.as_tensor(rows), torch.float64)
    mean, nearest = clipped_mean(torch.as_tensor(h), torch.as_tensor(clip))
    for lane, bound in enumerate(clip):
        vectors = h[:, lane] - rows
        np.testing.assert_allclose(mean[:, lane], clip_vectors(vectors, bound).mean(axis=0), rtol=1e-12, atol=1e-13)
        norms = np.linalg.norm(vectors, axis=1)
        if bound < norms.max():
            assert nearest[lane] == pytest.approx(norms.min())
    assert nearest[-1] == 0
