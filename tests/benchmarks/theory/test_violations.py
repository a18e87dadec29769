"""Tests of the benchmark that hunts for violations of the theory's inequalities.

Its integrals are compared with sampling, its sums with the theorem, and wrong constants are found.
"""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks.kit.rows import RESULTS, read_rows
from benchmarks.problems.worst_case import run
from benchmarks.theory import violations
from dpzero_theory.theory.problem import Problem
from dpzero_theory.theory.sharp import certificate as sharp
from paper_checks.outcome import draw


@pytest.mark.parametrize(
    ("law", "d", "k"),
    [("gaussian", 3, 4), ("sphere", 7, 1), ("sphere", 100, 2), ("frame", 9, 4), ("frame", 4, 4)],
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


def test_the_fourth_moments_of_several_directions_on_the_sphere() -> None:
    """Without a clip the quadrature over K directions on the sphere gives the moments in closed form.

    They follow from the fourth moment 3 d/(d + 2) of a coordinate on the sphere. Along the gradient the second moment
    of a step is (3 d K/(d + 2) + K (K - 1))/K^2, and across it (d K - 3 d K/(d + 2))/((d - 1) K^2).
    """
    for d, k in ((100, 2), (300, 16), (5000, 64)):
        one, (along, across) = violations.quadrature(np.ones(1), np.ones(1), 1e9, "sphere", d, k)
        fourth = k * 3 * d / (d + 2)
        assert float(one) == pytest.approx(1, rel=1e-11)
        assert along == pytest.approx((fourth + k * (k - 1)) / k**2, rel=1e-11)
        assert across == pytest.approx((d * k - fourth) / ((d - 1) * k**2), rel=1e-11)


def test_the_sums_of_one_sign() -> None:
    """For K = d = 1 the direction is u = +-1, so the clipped mean is the mean of the clipped gradients."""
    inner, second = violations.enumerated(np.array([[1.0], [-0.4]]), np.array([0.6, 0.4]), 0.5, 1, np.ones(1))
    mean = 0.6 * 0.5 - 0.4 * 0.4
    assert inner == pytest.approx(mean * (0.6 - 0.16))
    assert second == pytest.approx(mean**2)


@pytest.mark.parametrize("part", ["quadrature", "spheres"])
def test_no_violation_and_a_wrong_constant_is_one(part: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def largest() -> float:
        return max(violations.one_step(part, case)["ratio"] for case in range(12))

    assert 0.99 < largest() <= 1 + 1e-9
    original = sharp.certificate

    def mutated(*args: Any, **kwargs: Any) -> sharp.Certificate:
        found = original(*args, **kwargs)
        return sharp.Certificate(
            progress=found.progress, drift=0.9 * found.drift, floor=found.floor, bound=found.bound, vacuous=False
        )

    monkeypatch.setattr(violations, "certificate", mutated)
    assert largest() > 1 + 1e-6


@pytest.mark.parametrize(("law", "d", "k"), [("sphere", 2, 2), ("sphere", 3, 1), ("gaussian", 1, 2), ("frame", 2, 2)])
def test_a_step_by_a_difference_rule_by_sampling(law: str, d: int, k: int) -> None:
    """The expected change of F in a step agrees with 100,000 random draws of the directions within 4.5 standard errors,
    a threshold fixed beforehand, for losses and points written out here."""
    rng = np.random.default_rng(5)
    problem, weights = rng.uniform(-1, 1, (3, 2, d)), np.array([0.7, 0.3])
    smoothing, clip, alpha = 0.5, 0.6, 0.8
    u = draw(law, rng, 100_000, k, d)

    def losses(x: np.ndarray) -> np.ndarray:
        return np.stack([x @ g + (a * x**2 + b * x * abs(x)).sum(-1) / 2 for g, a, b in problem.swapaxes(0, 1)])

    for rule, slopes in (
        ("central", (losses(smoothing * u) - losses(-smoothing * u)) / (2 * smoothing)),
        ("forward", losses(smoothing * u) / smoothing),
        ("exact", np.stack([u @ g for g in problem[0]])),
    ):
        lengths = np.sqrt((slopes**2).sum(-1, keepdims=True))
        m = np.tensordot(weights, np.where(lengths > clip, slopes * clip / lengths, slopes), 1)
        after = weights @ losses(-alpha / k * (m[:, :, None] * u).sum(1))
        nodes, mass = violations._directions_of(law, d, k)[0]
        found = violations.one_change(problem, weights, nodes, mass, rule, smoothing, clip, alpha)
        assert abs(after.mean() - found) <= 4.5 * after.std() / np.sqrt(len(after)) + 1e-12


@pytest.mark.parametrize("rule", ["central", "forward"])
def test_no_violation_by_a_rule_and_without_its_error_there_is_one(rule: str, monkeypatch: pytest.MonkeyPatch) -> None:
    cases = [case for case in range(240) if case % 4 == 1]  # random signs, whose means are short sums

    def largest() -> float:
        return max(violations.by_rule(rule, case)["ratio"] for case in cases)

    assert 0.5 < largest() <= 1
    original = sharp.certificate
    monkeypatch.setattr(
        violations, "certificate", lambda *a, **k: original(*a, **{**k, "smoothing": 0.0, "difference": "exact"})
    )
    assert largest() > 1.01


@pytest.mark.parametrize("rule", ["central", "forward"])
def test_finite_differences_of_the_worst_loss(rule: str) -> None:
    """The differences are those of the family's own losses at the rule's points."""
    at: dict[str, Any] = {"step_size": 0.05, "steps": 100, "clip": 1.5, "noise_std": 0.1, "directions_per_step": 2}
    loss = replace(violations.member("mean", Problem(n=1000, d=64, r=5.0), at)[0], n=10, opposing=3)
    rng = np.random.default_rng(3)
    x = np.zeros((4, 1, loss.d))
    x[:, 0, 0] = loss.width * np.array([-0.3, 0.4, 1.2, 3.0])
    x[..., 1:] = 0.1 * rng.standard_normal((4, 1, loss.d - 1))
    shift = 0.2 * loss.width * rng.standard_normal((4, 3, loss.d))
    phi, psi = violations._finite(loss, x, shift, rule, 0.2)
    for run_ in range(4):
        for k in range(3):
            one, two = x[run_, 0] + shift[run_, k], x[run_, 0] - (shift[run_, k] if rule == "central" else 0)
            wanted = (loss.losses(one) - loss.losses(two)) / (0.4 if rule == "central" else 0.2)
            slopes = np.where(np.arange(loss.n) < loss.opposing, -loss.backward, loss.forward)
            np.testing.assert_allclose(np.unique(slopes * phi[run_, k] + psi[run_, k]), np.unique(wanted), rtol=1e-9)


def test_whole_runs() -> None:
    for rule in ("central", "forward", "exact"):
        assert 0 < violations.run_by_rule(rule, 6)["ratio"] < 1
    assert 0 < violations.whole_run("runs", 4)["ratio"] < 1
    assert 0 < violations.whole_run("laws", 6)["ratio"] < 1


def test_a_run_by_its_directions_is_the_reduced_run() -> None:
    """A run with explicit directions has the mean of the run that is reduced to few numbers.

    The directions are Gaussian; there are 24 runs each way, and 4.5 standard errors, fixed beforehand, are allowed.
    """
    at: dict[str, Any] = {"step_size": 0.05, "steps": 100, "clip": 1.5, "noise_std": 0.1, "directions_per_step": 2}
    loss, _ = violations.member("mean", Problem(n=1000, d=64, r=5.0), at)
    direct = violations.by_direction(loss, "gaussian", 64, **at, rng=np.random.default_rng(1))
    reduced = run(loss, **at, chains=24, rng=np.random.default_rng(2)).mean
    error = np.hypot(direct.std(), reduced.std()) / np.sqrt(24)
    assert abs(direct.mean() - reduced.mean()) <= 4.5 * error
    assert error < 0.03 * reduced.mean()


def test_the_committed_rows() -> None:
    table = read_rows(Path(RESULTS / "violations"))
    counts = table.groupby("hunt").size()
    assert counts["one step"] == 4700
    assert counts["run"] == 1344
    rules = table[table["part"].isin(["central", "forward", "exact"])]
    assert rules.groupby(["hunt", "part", "law"]).size().to_numpy().tolist() == [100] * 12 + [50] * 12
    assert (rules["ratio"] > 0).mean() > 0.7
    assert table["ratio"].max() <= 1 + 1e-9
    assert table["K"].max() == 64
    assert table["d"].min() == 1
