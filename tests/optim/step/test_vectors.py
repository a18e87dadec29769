"""Tests of Algorithm 1 in integers: its sensitivity, its noise, and what the weights show of the sum."""

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy import stats
from torch import nn
from torch.utils.data import TensorDataset

from dpzero_theory.optim.private import make_from_seed_not_private
from dpzero_theory.optim.run import Run
from dpzero_theory.optim.step.algorithm import ALGORITHMS
from dpzero_theory.optim.weights.directions import Directions
from dpzero_theory.privacy.relation import Relation
from tests.optim.small import N, contributions, losses, plan

WIDTH = 4096
LEVELS = ALGORITHMS["dpgd-0th"].levels
PLAN = plan(algorithm="dpgd-0th")


@pytest.mark.parametrize("kind", ["rademacher", "sphere"])
@settings(max_examples=100, deadline=None, derandomize=True)
@given(
    st.lists(st.floats(allow_nan=True, allow_infinity=True), min_size=2, max_size=5),
    st.sampled_from([1e-3, 1.0, 1e30]),
    st.integers(1, 300),
    st.integers(0, 2**64 - 1),
)
def test_one_record_moves_the_vector_of_integers_by_at_most_the_sensitivity(
    kind: str, differences: list[float], clip: float, d: int, key: int
) -> None:
    """It is compared with the norm of the vectors themselves, in exact arithmetic."""
    directions = Directions(key, kind)
    vector = [int(entry) for entry in directions.integers(3, 0, 0, d)]
    squared_norm = directions.squared_norm(3, (d,))
    assert squared_norm == sum(entry**2 for entry in vector)
    chosen = replace(PLAN, direction=kind, clip=clip)
    rows = np.array(differences)[:, None]
    for relation, neighbour in (("add-remove", rows[1:]), ("replace-one", np.concatenate([rows[1:], -rows[:1]]))):
        sums = [contributions(chosen, some, d, squared_norm) for some in (rows, neighbour)]
        moved = [int((sums[0] - sums[1])[0]) * entry for entry in vector]
        assert sum(entry**2 for entry in moved) <= (LEVELS * Relation(relation).sensitivity) ** 2


@pytest.mark.parametrize("kind", ["rademacher", "sphere"])
def test_the_sensitivity_is_reached(kind: str) -> None:
    squared_norm = Directions(5, kind).squared_norm(0, (300, 700))
    chosen = plan(algorithm="dpgd-0th", direction=kind)
    reached = int(contributions(chosen, np.array([[math.inf]]), 1000, squared_norm)[0])
    assert reached == math.isqrt(LEVELS**2 // squared_norm)
    assert reached**2 * squared_norm <= LEVELS**2 < (reached + 1) ** 2 * squared_norm


@pytest.mark.parametrize("kind", ["rademacher", "sphere"])
def test_the_integer_vector_is_along_the_direction(kind: str) -> None:
    directions, sizes = Directions(9, kind), (300_000,)
    u = torch.zeros(sizes, dtype=torch.float64)
    directions.shift(u, 2, 0, directions.factor(2, sizes), out=u)
    v = directions.integers(2, 0, 0, sizes[0])
    np.testing.assert_allclose(v * math.sqrt(sizes[0] / directions.squared_norm(2, sizes)), u.numpy(), rtol=1e-14)
    assert np.abs(v).max() <= directions.largest
    np.testing.assert_array_equal(directions.integers(2, 0, 1237, 5000), v[1237:6237])


class Wide(nn.Module):
    def __init__(self, dtype: torch.dtype, start: float) -> None:
        super().__init__()
        self.weight = nn.Parameter((torch.randn(WIDTH, generator=torch.Generator().manual_seed(1)) * start).to(dtype))

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        return features @ self.weight.to(features)


def wide_run(dtype: torch.dtype, start: float, **changes: Any) -> Run:
    rng = np.random.default_rng(2)
    features = torch.tensor(rng.normal(size=(N, WIDTH)))
    rows = TensorDataset(features, torch.sign(features.sum(dim=1)))
    chosen = plan(**{"clip": 300.0, **changes})
    return make_from_seed_not_private(Wide(dtype, start), losses, rows, chosen, seed=4)


def seen(run: Run) -> NDArray[Any]:
    """Returns the run's weights."""
    return run.weights.parameters[0].detach().clone().numpy()


def true_sum(run: Run) -> int:
    norm = 0 if run.plan.scalars else run.weights.squared_norm(0)
    return int(contributions(run.plan, run.sums.differences(0, np.arange(N)), WIDTH, norm)[0])


def neighbours(total: int, largest: int) -> list[int]:
    return [total, total + 1, total - largest, total + 2 * largest // 3]


def impossible(before: NDArray[Any], after: NDArray[Any], step: float, shift: NDArray[Any]) -> int:
    """Returns in how many coordinates no possible release explains the move of the weight from `before` to `after`.

    A possible release is an integer multiple of `step`, shifted by `shift`, which is what the integers would be without
    noise. The integer nearest to the move is tried, and two on each side.
    """
    wide = np.float64 if before.dtype == np.float64 else np.float32
    nearest = np.rint((after.astype(np.float64) - before) / step - shift)
    found = np.zeros(before.shape, bool)
    for offset in range(-2, 3):
        found |= before + ((nearest + offset + shift) * step).astype(wide) == after
    return int((~found).sum())


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("start", [0.0, 1.0])
def test_weights_before_and_after_fit_every_sum_alike_for_vectors(dtype: torch.dtype, start: float) -> None:
    """At most 1% of the coordinates do not fit, equally many for each sum."""
    run = wide_run(dtype, start, algorithm="dpgd-0th")
    norm, total, before = run.weights.squared_norm(0), true_sum(run), seen(run)
    assert run.step().sums == ()
    after = seen(run)
    v = run.weights.directions.integers(0, 0, 0, WIDTH)
    step = run.plan.vector_factor(0, norm)
    counts = [impossible(before, after, step, s * v) for s in neighbours(total, math.isqrt(LEVELS**2 // norm))]
    assert (before != after).mean() > 0.9
    assert max(counts) - min(counts) <= 0.002 * WIDTH
    assert max(counts) <= 0.01 * WIDTH


@pytest.mark.parametrize(
    ("dtype", "directions"),
    [(torch.float32, 3), (torch.bfloat16, 3)],
)
@pytest.mark.parametrize("start", [0.0, 1.0])
def test_weights_after_are_a_function_of_what_is_released(dtype: torch.dtype, directions: int, start: float) -> None:
    """With the noise that each neighbouring sum would need for the same release, which is as likely as any, they are
    the same to the bit."""
    run = wide_run(dtype, start, directions_per_step=directions)
    rows = run.sums.differences(0, np.arange(N))
    total = contributions(run.plan, rows, WIDTH)
    record = run.step()
    for sums in (total, total + run.plan.rule.levels // 3, total + 1):
        noise = np.array(record.sums, dtype=np.int64) - sums
        assert (np.abs(noise) < 8 * run.plan.scale).all()
        other = wide_run(dtype, start, directions_per_step=directions)
        other.weights.move_(other.plan.moves(0, noise + sums))
        assert torch.equal(other.weights.parameters[0], run.weights.parameters[0])


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_the_attack_finds_the_sum_under_floating_point_noise(dtype: type) -> None:
    """That step is x_1 = (x_0 - a s u) - a z, as this package once made it, and others do."""
    rng = np.random.default_rng(3)
    u = rng.choice([-1.0, 1.0], WIDTH).astype(dtype)
    moved = {s: dtype(0.0137) * dtype(s) * u for s in (3.3, 3.4, -2.1)}
    after = moved[3.3] + (0.1 * rng.normal(size=WIDTH)).astype(dtype)
    counts = {}
    for s, middle in moved.items():
        noise, found = after - middle, np.zeros(WIDTH, bool)
        for candidate in (noise, np.nextafter(noise, dtype(9)), np.nextafter(noise, dtype(-9))):
            found |= middle + candidate == after
        counts[s] = int((~found).sum())
    assert counts[3.3] == 0
    assert min(counts[3.4], counts[-2.1]) > 0.02 * WIDTH


@pytest.mark.parametrize("kind", ["rademacher", "sphere"])
def test_every_coordinate_has_noise_of_its_own(kind: str) -> None:
    """From zero weights in float64 the released integers can be read off; less the sum they are Gaussian of the plan's
    scale."""
    run = wide_run(torch.float64, 0.0, algorithm="dpgd-0th", direction=kind)
    norm, total = run.weights.squared_norm(0), true_sum(run)
    v = run.weights.directions.integers(0, 0, 0, WIDTH)
    run.step()
    released = seen(run) / run.plan.vector_factor(0, norm)
    np.testing.assert_allclose(released, np.rint(released), rtol=1e-15, atol=0)
    noise = (np.rint(released) - total * v) / run.plan.scale
    assert stats.kstest(noise, "norm").pvalue > 1e-3
    assert abs(np.corrcoef(noise, v)[0, 1]) < 4 / math.sqrt(WIDTH)
    assert len(np.unique(np.rint(released))) == WIDTH
