"""Tests of the noise laws: they are drawn as stated, at least as wide as calibrated, and composed at the right cost."""

import math
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest

from dpzero_theory.privacy.accountant import epsilon_of_history
from dpzero_theory.privacy.mechanism import MECHANISMS, noise_law
from dpzero_theory.privacy.noise import SeededNoise
from dpzero_theory.privacy.relation import Relation
from dpzero_theory.privacy.sampling import FullBatch, Poisson
from dpzero_theory.privacy.step import Step, step_of
from tests.privacy import oracle
from tests.privacy.oracle import noise_for


def test_the_words_that_runs_take() -> None:
    assert noise_law("gaussian", lattice=True) is MECHANISMS["discrete-gaussian"]
    assert noise_law("laplace", lattice=True) is MECHANISMS["laplace"]
    assert noise_law("gaussian", lattice=False) is MECHANISMS["gaussian"]
    for bad, lattice in (("laplace", False), ("none", True), (None, True)):
        with pytest.raises(ValueError, match=r"^noise must be one of gaussian"):
            noise_law(bad, lattice=lattice)


@pytest.mark.parametrize("name", MECHANISMS)
@pytest.mark.parametrize(("multiplier", "levels"), [(0.3, 1), (2.5, 7), (1e-6, 2**30), (0.1 + 0.2, 10)])
def test_the_parameter_is_never_too_small(name: str, multiplier: float, levels: int) -> None:
    """In exact arithmetic; on a lattice it is an integer, at most three above what is asked for."""
    law, asked = MECHANISMS[name], Fraction(multiplier) * levels
    scale = law.scale(multiplier, levels)
    if law.lattice:
        assert isinstance(scale, int)
        assert asked <= scale <= asked + 3
    else:
        assert scale == pytest.approx(float(asked), rel=1e-15)


@pytest.mark.parametrize(("name", "variance"), [("gaussian", 49.0), ("discrete-gaussian", 49.0), ("laplace", None)])
def test_a_draw_has_the_parameter_and_the_shape(name: str, variance: float | None) -> None:
    """20,000 draws from one seed; the variance of the discrete Laplace law is 2 r/(1 - r)^2, r = e^(-1/b)."""
    law = MECHANISMS[name]
    drawn = law.draw(SeededNoise(5), 7, (20_000,))
    assert drawn.dtype == (np.int64 if law.lattice else np.float64)
    r = math.exp(-1 / 7)
    expected = 2 * r / (1 - r) ** 2 if variance is None else variance
    assert np.mean(drawn.astype(float) ** 2) == pytest.approx(expected, rel=0.06)
    assert law.draw(SeededNoise(5), 7, (2, 3)).shape == (2, 3)
    assert law.exactness


@pytest.mark.parametrize("relation", Relation)
@pytest.mark.parametrize("q", [1.0, 0.2])
def test_costs(relation: Relation, q: float) -> None:
    step = {name: Step(2.0, FullBatch() if q == 1 else Poisson(q), relation, name, steps=5) for name in MECHANISMS}
    gaussian, discrete, laplace = (
        MECHANISMS[name].cost(step[name]) for name in ("gaussian", "discrete-gaussian", "laplace")
    )
    assert gaussian.closed == (q == 1)
    assert 5 * 2e-34 < discrete.ratio < 5 * 2.1e-34
    assert replace(discrete, ratio=0.0) == gaussian
    assert laplace.ratio == pytest.approx(5 * 2.0**-31 / 2.0, rel=1e-6)
    largest = max(float(np.max(np.log(p / r))) for p, r in oracle.laplace(4, 2.0, q, relation))
    assert laplace.pure[0] == pytest.approx(5 * largest, rel=1e-10)
    assert MECHANISMS["discrete-laplace:4"].cost(step["laplace"], 5).ratio == 0


@pytest.mark.parametrize("relation", Relation)
@pytest.mark.parametrize(("name", "sampling", "q"), [
    ("gaussian", "full", 1.0), ("discrete-gaussian", "full", 1.0), ("discrete-gaussian", "poisson", 0.1),
    ("laplace", "full", 1.0), ("laplace", "poisson", 0.1),
])  # fmt: skip
def test_calibrated_noise_meets_its_target_and_a_little_less_does_not(
    name: str, sampling: str, q: float, relation: Relation
) -> None:
    delta = 0.0 if name == "laplace" else 1e-5
    found = noise_for(
        target_epsilon=1.3, target_delta=delta, steps=100, sampling=sampling, relation=relation, sample_rate=q,
        mechanism=name,
    )  # fmt: skip
    unit = step_of(found.upper, 100, sampling=sampling, relation=relation, sample_rate=q, mechanism=name)
    # Sampled Gaussian noise is calibrated on a grid that resolves epsilon to 1e-4; closed forms are met.
    room = 1e-4 if sampling == "poisson" and name != "laplace" else 1e-8
    assert 1.3 * (1 - room) < epsilon_of_history([unit], delta).upper <= 1.3
    assert epsilon_of_history([unit.with_noise(found.lower * (1 - room))], delta).lower > 1.3
    if name == "laplace":
        couples = oracle.laplace(3, found.upper, q, relation)
        assert 100 * max(float(np.max(np.log(p / r))) for p, r in couples) == pytest.approx(1.3, rel=1e-9)
