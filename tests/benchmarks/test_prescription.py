"""Tests of effective ranks, of training with what the theory prescribes for them, and of the hunt for violations."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks import curvature, prescription, violations
from benchmarks.kit.rows import RESULTS, read_rows
from dpzero_theory.curvature.spectrum import Effort
from dpzero_theory.privacy.gaussian import gdp_from_epsilon
from dpzero_theory.problem_file import ProblemFile
from dpzero_theory.theory.sharp import certificate as sharp
from dpzero_theory.theory.sharp.certificate import prescribe
from paper_checks.outcome import draw

pytestmark = pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated:DeprecationWarning")
"""Ignores a warning of torch's own, from its rules for forward differentiation."""


def test_rows_of_a_small_network(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    quick = curvature.Study(60, 1e-2, {"before": 0, "after": 40}, Effort(search=20, probes=8, steps=6), 2, "digits")
    monkeypatch.setitem(curvature.STUDIES, "mlp-digits", quick)
    words = ["--preset", "smoke", "--models", "mlp-digits:2", "--seeds", "1", "--out", str(tmp_path)]
    curvature.EXPERIMENT.main(words)
    rows = read_rows(tmp_path)
    assert list(rows["moment"]) == ["before", "after"]
    assert (rows["rank_low"] <= rows["exact_rank"]).all()
    assert (rows["exact_rank"] <= rows["rank_high"]).all()
    assert rows["loss"].is_monotonic_decreasing
    assert (rows["sample_trace_high"] >= rows["sample_trace_low"]).all()
    assert (rows["sample_trace_high"] <= 160 * rows["sample_norm"]).all()


FILE = RESULTS / "curvature_problems" / "mlp-digits-16.json"


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Three steps and two points of the grid."""
    for name, value in {"STEPS": 3, "STEP_SIZES": (0.01, 0.1), "CLIPS": (1.0,)}.items():
        monkeypatch.setattr(prescription, name, value)


@pytest.mark.usefixtures("quick")
def test_choices_are_the_theorys_and_the_grid() -> None:
    file = ProblemFile.read(FILE)
    found = prescription.choices(file, 1200)
    moments = ["theory-moment", "theory-estimates-moment"]
    assert [choice.name for choice in found] == ["theory", "theory-estimates", *moments, "grid", "grid"]
    upper = prescription.problems(file, 1200)["theory"]
    assert upper.sample_rank == file.constants["sample_rank"]
    wanted = prescribe(upper, float(gdp_from_epsilon(6.0, 1e-5)), max_steps=3)
    assert (found[0].step_size, found[0].clip, found[0].smoothing) == (wanted.step_size, wanted.clip, wanted.smoothing)
    estimates = prescription.problems(file, 1200)["theory-estimates"]
    assert estimates.smoothness < upper.smoothness
    assert 1 <= estimates.r <= estimates.d
    median = file.measurements["points"][0]["gradient_norms"]["0.5"]
    assert found[4].clip == pytest.approx(median, rel=1e-3)


def test_the_fourth_moment_is_at_least_that_of_norms_with_the_quantiles() -> None:
    """1,000 norms have a fourth moment that is at most the bound from their quantiles. The file's own bound is that of
    its worst point."""
    file = ProblemFile.read(FILE)
    points = file.measurements["points"]
    tight = []
    for point in points:
        ends = [point["gradient_norms"][share] for share in ("0.5", "0.9", "0.99", "1")]
        tight.append(0.5 * ends[0] ** 4 + 0.4 * ends[1] ** 4 + 0.09 * ends[2] ** 4 + 0.01 * ends[3] ** 4)
    assert prescription.fourth_moment(file) == pytest.approx(max(tight))
    norms = np.sort(np.random.default_rng(0).gamma(2.0, size=1000))
    quantiles = {str(share): float(norms[int(share * 1000) - 1]) for share in (0.5, 0.9, 0.99, 1.0)}
    made = replace(file, measurements={"points": [{"gradient_norms": quantiles}]})
    assert np.mean(norms**4) <= prescription.fourth_moment(made) <= 4 * np.mean(norms**4)


def test_the_best_k_has_as_many_evaluations() -> None:
    several = [3, 2]
    found = {choice.name: choice for choice in prescription.choices(ProblemFile.read(FILE), 1200)}
    best = {name: choice for name, choice in found.items() if name.endswith("-best-k")}
    assert [choice.directions_per_step for choice in best.values()] == several
    for name, choice in best.items():
        one = found[name.removesuffix("-best-k")]
        k = choice.directions_per_step
        assert one.bound is not None
        assert choice.bound is not None
        assert choice.bound < one.bound
        assert prescription.STEPS - k < k * choice.steps <= prescription.STEPS == one.steps


@pytest.mark.usefixtures("quick")
def test_a_run_of_several_directions() -> None:
    choice = prescription.Choice("x", 0.01, 1.0, 2, 1e-6, 1.0, directions_per_step=5)
    work = prescription.digits()
    row = prescription.run(work, choice, 0, (1.0, 0.5))
    assert (row["steps"], row["directions_per_step"]) == (2, 5)
    assert row["gradient_squared"] > 0


@pytest.mark.usefixtures("quick")
def test_a_run_has_a_row_for_each_choice(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--problem", str(FILE), "--seeds", "1", "--out", str(tmp_path)]
    prescription.EXPERIMENT.main(words)
    rows = read_rows(tmp_path)
    assert len(rows) == 6
    assert (rows["smoothing"] > 0).all()
    assert rows["bound"].notna().sum() == 4
    assert rows["gradient_squared"].notna().all()
    assert rows["loss_before"].nunique() == 1
    capsys.readouterr()
    prescription.EXPERIMENT.main([*words, "--summary"])
    assert capsys.readouterr().out.count("+-") == 3 * 6


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
