"""The checks of the sharpened theorem (`dpzero_theory/theory/sharp`), which `python -m paper_checks --full` runs.

Each tests one statement of the proof, docs/explanation/sharpened-theorem.md, and returns a `Checked`. Seeds, sample
sizes and thresholds were fixed before the first run. The library's numbers are compared with sampling, quadrature or
enumeration. They are not the paper's claims, so they are not in `claims.toml`."""

from collections.abc import Callable
from functools import partial

from paper_checks.outcome import Checked
from paper_checks.registry import Claim, Finding, check
from paper_checks.sharp import low_rank, moments, one_run, promises, runs, schedules, signs, steps

LAWS = (("gaussian", "gaussian"), ("frame", "frame"), ("sign", "rademacher"), ("low-rank", "low-rank"))
CHECKS: dict[str, Callable[[], Checked]] = {
    "convex-order": moments.convex_order,
    "inner-product": partial(moments.moment, "inner"),
    "second-moment": partial(moments.moment, "second"),
    "lost-moment": partial(moments.moment, "lost"),
    "mixed-moment": partial(moments.moment, "mixed"),
    "sampled-moment": partial(moments.moment, "one"),
    "unbounded": moments.without_lipschitz,
    "smoothing-error": partial(steps.smoothing_error, "central"),
    "forward-smoothing-error": partial(steps.smoothing_error, "forward"),
    "one-step": steps.one_step,
    "minimiser": promises.minimiser,
    "directions-table": promises.directions_table,
    "constant-schedule": promises.constant_schedule,
    "last-steps": promises.last_steps,
    "price-of-laws": promises.price_of_laws,
    **{
        f"{name}-{what}": partial(moments.moment, part, kind)
        for name, kind in LAWS
        for what, part in (
            ("inner-product", "inner"),
            ("second-moment", "second"),
            ("lost-moment", "lost"),
            ("sampled-moment", "one"),
        )
    },
    **{f"{name}-unbounded": partial(moments.without_lipschitz, kind) for name, kind in LAWS},
    "sign-moments": signs.sign_moments,
    "sign-removed": signs.sign_removed,
    "sign-mixed-moment": signs.sign_mixed_moment,
    "sign-bounds": signs.sign_bounds,
    "low-rank-moments": partial(signs.sign_moments, "low-rank"),
    "low-rank-removed": partial(signs.sign_removed, "low-rank"),
    "low-rank-mixed-moment": partial(signs.sign_mixed_moment, "low-rank"),
    "low-rank-bounds": low_rank.bounds,
    "low-rank-fourth": low_rank.fourth_moments,
    "low-rank-factored": low_rank.factored_curvature,
    "low-rank-law": low_rank.law_of_projections,
    "other-directions": steps.other_directions,
    "vector-noise": steps.vector_noise,
    "last-iterate": runs.last_iterate,
    "quadratic-growth": promises.quadratic_growth,
    "runs": runs.runs,
    "unbounded-floors": moments.unbounded_floors,
    "unbounded-runs": runs.unbounded_runs,
    "no-private-bound": promises.no_private_bound,
    "moment-nearby": promises.moment_nearby,
    "other-shapes": runs.other_shapes,
    "best-shape": promises.best_shape,
    "family": one_run.family_keeps_the_assumption,
    "lower-bound": one_run.lower_bound_attained,
    "last-iterate-without-more": one_run.last_iterate_without_more,
    "last-iterate-value": schedules.last_iterate_value,
    "any-schedule": schedules.any_schedule,
    "last-iterate-sampled": schedules.last_iterate_sampled,
    "run-step": one_run.run_step,
    "run-coverage": one_run.run_coverage,
}


def register() -> list[Claim]:
    """Register every check under the id `sharp-NAME`. Returns their claims, each with the stated status verified."""
    claims = []
    for name, function in CHECKS.items():
        check(f"sharp-{name}")(partial(_finding, function))
        claims.append(
            Claim(
                id=f"sharp-{name}",
                section="The sharpened theorem (this project's, dpzero_theory/theory/sharp/proof.md)",
                line=0,
                anchor="",
                claim=f"Step {name} of the sharpened theorem.",
                kind="remark",
                status="verified",
                method="See paper_checks/sharp.",
                tolerance="fixed in the check",
                evidence="Holds.",
            )
        )
    return claims


def _finding(function: Callable[[], Checked], full: bool) -> Finding:
    outcome = function()
    return Finding(outcome.ok, numbers={outcome.text: outcome.measured, "threshold": outcome.threshold})
