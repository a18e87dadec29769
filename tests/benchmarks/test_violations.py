"""Tests of the benchmark that hunts for violations of the theory's inequalities.

Its integrals are compared with sampling, its sums with the theorem, and wrong constants are found.
"""

from typing import Any

import numpy as np
import pytest

from benchmarks import violations
from benchmarks.kit.rows import RESULTS, read_rows
from dpzero_theory.theory.sharp import certificate as sharp
from paper_checks.outcome import draw


@pytest.mark.parametrize(
    ("law", "d", "k"),
    [("gaussian", 3, 4), ("sphere", 7, 1), ("frame", 9, 4), ("frame", 4, 4)],
)
def test_the_integrals_by_sampling(law: str, d: int, k: int) -> None:
    """The integrals agree with 200,000 random draws within 4.5 standard errors, a threshold fixed beforehand."""
    rng = np.random.default_rng(0)
    gradients, weights, clip = np.array([1.0, -0.8]), np.array([0.7, 0.3]), 1.1
    u = draw(law, rng, 200_000, k, d)
    s = u[:, :, :1] * gradients
    limit = clip * np.sqrt(k)
    m = (s * np.minimum(1, limit / np.linalg.norm(s, axis=1, keepdims=True))) @ weights
    moved = np.einsum("sk,skd->sd", m, u) / k
    inner, (along, across) = violations.quadrature(gradients, weights, clip, law, d, k)
    for sample, stated in (
        (moved[:, 0], float(inner)),
        (moved[:, 0] ** 2, along),
        (np.sum(moved[:, 1:] ** 2, axis=1), (d - 1) * across),
    ):
        assert abs(sample.mean() - stated) <= 4.5 * sample.std() / np.sqrt(len(sample)) + 1e-12


def test_the_sums_of_one_sign() -> None:
    """For K = d = 1 the direction is u = +-1, so the clipped mean is the mean of the clipped gradients."""
    inner, second = violations.enumerated(np.array([[1.0], [-0.4]]), np.array([0.6, 0.4]), 0.5, 1, np.ones(1))
    mean = 0.6 * 0.5 - 0.4 * 0.4
    assert inner == pytest.approx(mean * (0.6 - 0.16))
    assert second == pytest.approx(mean**2)


def test_no_violation_and_a_wrong_constant_is_one(monkeypatch: pytest.MonkeyPatch) -> None:
    def largest() -> float:
        return max(violations.one_step("quadrature", case)["ratio"] for case in range(12))

    assert 0.99 < largest() <= 1 + 1e-9
    original = sharp.certificate

    def mutated(*args: Any, **kwargs: Any) -> sharp.Certificate:
        found = original(*args, **kwargs)
        return sharp.Certificate(
            progress=found.progress, drift=0.9 * found.drift, floor=found.floor, bound=found.bound, vacuous=False
        )

    monkeypatch.setattr(violations, "certificate", mutated)
    assert largest() > 1 + 1e-6


def test_whole_runs_and_the_committed_rows() -> None:
    assert 0 < violations.whole_run(4)["ratio"] < 1
    table = read_rows(RESULTS / "violations")
    assert table.groupby("hunt").size().to_dict() == {"one step": 3000, "run": 504}
    assert table["ratio"].max() <= 1 + 1e-9
