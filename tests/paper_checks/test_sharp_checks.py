"""Tests that every check of the sharpened theorem holds, and that a constant off by a factor of 2 makes one fail."""

import inspect
import math
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest

from benchmarks.problems import hardest
from dpzero_theory.theory.sharp import certificate as sharp
from dpzero_theory.theory.sharp import constants, high_probability, smallest
from dpzero_theory.theory.sharp import moments as unbounded
from dpzero_theory.theory.sharp import signs as sign_bounds
from dpzero_theory.theory.sharp.projection import Projection
from paper_checks import sharpened
from paper_checks.outcome import Checked
from paper_checks.sharp import low_rank, moments, one_run, promises, runs, schedules, signs, steps


@pytest.mark.parametrize("name", sharpened.CHECKS)
def test_check_holds(name: str) -> None:
    outcome = sharpened.CHECKS[name]()
    assert outcome.ok, outcome
    assert outcome.text


def changed(monkeypatch: pytest.MonkeyPatch, home: object, name: str, change: Callable[[Any], Any]) -> None:
    """Change what the function `name` of `home` returns."""
    original = getattr(home, name)
    monkeypatch.setattr(home, name, lambda *args, **kwargs: change(original(*args, **kwargs)))


def times(**factors: float) -> Callable[[Any], Any]:
    """Return what multiplies fields of a record by these factors."""
    return lambda k: replace(k, **{name: factor * getattr(k, name) for name, factor in factors.items()})


def half_of_a(k: constants.Constants) -> constants.Constants:
    chi = k.spread**2 - k.quadratic
    return replace(k, spread=k.spread / 2, quadratic=k.spread**2 / 4 - chi)


def more_kept_at_rank(step: Any) -> Any:
    return replace(step, at_rank=replace(step.at_rank, kept=1.2 * step.at_rank.kept))


@pytest.mark.parametrize(
    ("change", "checks_that_fail"),
    [
        (times(excess=0.5), [partial(moments.moment, "lost"), partial(moments.moment, "lost", "gaussian")]),
        (half_of_a, [partial(moments.moment, "second"), steps.one_step]),
        (times(cross=0.5), [partial(moments.moment, "mixed"), signs.sign_mixed_moment]),
        (times(bias=0.5), [partial(moments.moment, "inner")]),
        (lambda k: replace(k, kept=(1 + k.kept) / 2), [partial(moments.moment, "inner")]),
        (times(sampled=0.5), [partial(moments.moment, "one")]),
        (
            times(smooth_second=0.5),
            [partial(steps.smoothing_error, "central"), partial(steps.smoothing_error, "forward")],
        ),
        (times(excess=0.7), [signs.sign_mixed_moment]),
        (times(spread=0.7), [signs.sign_mixed_moment]),
        (times(spread=0.9), [low_rank.fourth_moments, low_rank.factored_curvature]),
        (times(excess=0.6, spread=0.6), [partial(signs.sign_mixed_moment, "low-rank")]),
    ],
    ids=["omega", "A", "chi", "bias", "theta", "sampled", "smoothing", "omega of signs", "A of signs", "A", "low rank"],
)
def test_wrong_constants_fail(
    monkeypatch: pytest.MonkeyPatch,
    change: Callable[[constants.Constants], constants.Constants],
    checks_that_fail: list[Callable[[], Checked]],
) -> None:
    changed(monkeypatch, constants, "constants", change)
    monkeypatch.setattr(smallest, "constants", constants.constants)
    assert not any(check().ok for check in checks_that_fail)


def test_a_wrong_law_of_v_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    original = Projection.excess

    def mutated(law: Projection, c: np.ndarray, *powers: tuple[int, int]) -> tuple[np.ndarray, ...]:
        return tuple(x / 4 if power[0] == 2 else x for power, x in zip(powers, original(law, c, *powers), strict=True))

    monkeypatch.setattr(Projection, "excess", mutated)
    assert not moments.convex_order().ok
    assert not moments.moment("lost").ok


def test_the_gaussian_law_below_the_sphere_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(moments, "Projection", lambda k, d: Projection(k, math.inf))
    assert not moments.convex_order().ok


@pytest.mark.parametrize("k", [4, 64])
def test_the_constants_of_other_directions_fail(monkeypatch: pytest.MonkeyPatch, k: int) -> None:
    """With the constants of 2 K directions a theorem for K directions fails: every part of it is checked at each K."""
    original = constants.constants

    def mutated(*args: Any, directions_per_step: int = 1, **kwargs: Any) -> constants.Constants:
        wrong = directions_per_step == k
        return original(*args, directions_per_step=(2 if wrong else 1) * directions_per_step, **kwargs)

    monkeypatch.setattr(constants, "constants", mutated)
    assert not moments.moment("second", "gaussian").ok


@pytest.mark.parametrize(
    "check",
    [
        partial(signs.sign_moments, "low-rank"),
        partial(signs.sign_removed, "low-rank"),
        low_rank.law_of_projections,
        low_rank.bounds,
    ],
    ids=["moments", "removed", "law", "bounds"],
)
def test_the_gaussian_law_for_products_of_signs_fails(
    monkeypatch: pytest.MonkeyPatch, check: Callable[[], Checked]
) -> None:
    for home in (signs, low_rank):
        monkeypatch.setattr(home, "Products", lambda k, rank: Projection(k, math.inf))
    assert not check().ok


def test_half_sigma_in_the_bound_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    original = smallest.Terms.of
    monkeypatch.setattr(smallest.Terms, "of", lambda k, p, e, variance, rate: original(k, p, e, variance / 4, rate))
    assert not steps.one_step().ok


@pytest.mark.parametrize(
    ("field", "factor"),
    [
        *((field, 0.5) for field in ("second", "fourth", "inner", "along", "across")),
        *((field, 0.97) for field in ("second", "inner", "along", "across")),
        ("inner", 1.03),
    ],
)
def test_a_wrong_bound_for_signs_fails(monkeypatch: pytest.MonkeyPatch, field: str, factor: float) -> None:
    """Half of a bound is below a moment of some signs; 3% more or less is not the minimum that the proof has."""
    changed(monkeypatch, sign_bounds, "removed", times(**{field: factor}))
    if factor == 0.5:
        assert not (signs.sign_moments if field in ("second", "fourth") else signs.sign_removed)().ok
    else:
        assert not signs.sign_bounds().ok


@pytest.mark.parametrize(
    ("home", "name", "change", "check"),
    [
        (high_probability, "step_moments", times(variance=0.5), one_run.run_step),
        (high_probability, "step_moments", times(rank=0.5), one_run.run_step),
        (high_probability, "step_moments", more_kept_at_rank, one_run.run_step),
        (high_probability, "_second_order", np.zeros_like, one_run.run_step),
        (high_probability, "certify_run", times(bound=0.25), one_run.run_coverage),
        # of the family of the lower bound: a slope that ends half-way, and a gap that does not pay for the slope
        (hardest, "hardest", times(start=0.4), one_run.lower_bound_attained),
        (hardest, "hardest", times(start=1.5), one_run.lower_bound_attained),
    ],
    ids=["noise", "rank", "kept", "no second order", "coverage", "short slope", "small gap"],
)
def test_a_wrong_statement_about_one_run_fails(
    monkeypatch: pytest.MonkeyPatch, home: object, name: str, change: Callable[[Any], Any], check: Callable[[], Checked]
) -> None:
    changed(monkeypatch, home, name, change)
    assert not check().ok


@pytest.mark.parametrize(("bias", "excess"), [(0.8, 1.0), (1.0, 0.8)])
def test_a_smaller_supremum_for_a_moment_fails(monkeypatch: pytest.MonkeyPatch, bias: float, excess: float) -> None:
    monkeypatch.setattr(moments, "TRIED", (1, 4))
    changed(monkeypatch, unbounded, "_suprema", lambda found: (bias * found[0], excess * found[1]))
    assert not moments.without_lipschitz().ok
    assert moments.unbounded_floors().ok == (bias == 1)


def test_half_a_mean_excess_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    original = unbounded._by_excess
    monkeypatch.setattr(moments, "TRIED", (1, 4))
    monkeypatch.setattr(unbounded, "_by_excess", lambda k, c, r, share: original(k, c, r, share / 2))
    assert not moments.without_lipschitz().ok


def test_half_a_certificate_without_lipschitz_is_below_the_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runs, "KINDS", ("frame",))
    changed(monkeypatch, sharp, "prescribe", times(bound=0.5))
    assert not runs.unbounded_runs().ok


@pytest.mark.parametrize(
    ("check", "stated", "wrong"),
    [
        (promises.no_private_bound, "1 - delta - grown * beta", "1 - grown * beta"),
        (promises.no_private_bound, "(1 - beta - delta) / grown", "1 - beta"),
        (promises.quadratic_growth, "stated = growth / 4", "stated = growth / 8"),
        (promises.quadratic_growth, "stated = growth / 4", "stated = growth / 2"),
        (promises.moment_nearby, "** (1 / m)", "** (1.1 / m)"),
        (schedules.last_iterate_value, "curvature_share(x)", "curvature_share(x) * 1.001"),
        (schedules.last_iterate_value, "d=10**6, r=8.178", "d=10**6, r=8.3"),
        (schedules.any_schedule, "** 2 / h**2", "** 2 * 1.01 / h**2"),
        (schedules.last_iterate_sampled, "stated = k / directions", "stated = 1.1 * k / directions"),
        (schedules.last_iterate_sampled, "stated = k / directions", "stated = 0.9 * k / directions"),
        (promises.best_shape, "metric + rng.lognormal(sigma=3)", "0.99 * metric + 0 * rng.lognormal(sigma=3)"),
        (runs.other_shapes, "r=float((shape * h).sum()) / largest", "r=1.0"),
    ],
)
def test_a_wrong_statement_of_sections_11_to_14_fails(check: Callable[[], Checked], stated: str, wrong: str) -> None:
    """A check fails whose source has a false statement in place of the one it tests."""
    assert not _with_source(check, stated, wrong)().ok


def _with_source(check: Callable[[], Checked], old: str, new: str) -> Callable[[], Checked]:
    """Return the check with a piece of its source replaced, which must occur in it once."""
    source = inspect.getsource(check)
    assert source.count(old) == 1, old
    names = dict(vars(inspect.getmodule(check)))
    exec(source.replace(old, new), names)
    changed: Callable[[], Checked] = names[check.__name__]
    return changed
