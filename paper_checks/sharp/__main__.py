"""The proof of the sharpened theorem, check by check: `python -m paper_checks.sharp`.

The proof is docs/explanation/sharpened-theorem.md, which is called proof.md here. Each check tests one statement of
it and returns a `Checked`. Seeds, sample sizes and thresholds were fixed before the first run. The library's numbers
are compared with sampling, quadrature or enumeration.
"""

import sys
from collections.abc import Callable, Sequence
from functools import partial

from dpzero_theory.cli import Parser
from paper_checks.outcome import Checked
from paper_checks.sharp import correlated, moments, one_run, promises, runs, schedules, signs, steps

CHECKS: dict[str, Callable[[], Checked]] = {
    "tail-moments": moments.tail_moments,
    "tail-moments-sampled": moments.tail_moments_sampled,
    "convex-order": moments.convex_order,
    "conditional-moments": moments.conditional_moments,
    "inner-product": moments.clipped_inner_product,
    "second-moment": moments.clipped_second_moment,
    "lost-moment": moments.lost_second_moment,
    "mixed-moment": moments.mixed_second_moment,
    "sampled-moment": moments.sampled_second_moment,
    "unbounded": moments.without_lipschitz,
    "seminorm": moments.seminorm,
    "smoothing-error": steps.smoothing_error,
    "forward-smoothing-error": steps.forward_smoothing_error,
    "difference-rules": steps.difference_rules,
    "one-step": steps.one_step_inequality,
    "final-quadratic": promises.final_quadratic,
    "poisson-variance": steps.poisson_variance,
    "privacy": promises.privacy_of_prescription,
    "minimiser": promises.minimiser,
    "reference-numbers": promises.reference_numbers,
    "dimension": promises.dimension,
    "directions-table": promises.directions_table,
    "constant-schedule": promises.constant_schedule,
    "last-steps": promises.last_steps,
    "price-of-signs": promises.price_of_signs,
    **{
        f"{name}-{part}": partial(check, kind)
        for name, kind in (("gaussian", "gaussian"), ("frame", "frame"), ("sign", "rademacher"))
        for part, check in (
            ("inner-product", moments.clipped_inner_product),
            ("second-moment", moments.clipped_second_moment),
            ("lost-moment", moments.lost_second_moment),
            ("sampled-moment", moments.sampled_second_moment),
            ("unbounded", moments.without_lipschitz),
        )
    },
    "sign-moments": signs.sign_moments,
    "sign-removed": signs.sign_removed,
    "sign-mixed-moment": signs.sign_mixed_moment,
    "sign-bounds": signs.sign_bounds,
    "other-directions": steps.one_step_other_directions,
    "vector-noise": steps.vector_noise,
    "last-iterate": runs.last_iterate,
    "shrinking-noise": promises.shrinking_noise,
    "quadratic-growth": promises.quadratic_growth,
    "lipschitz-and-pl": promises.lipschitz_and_pl,
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
    "crossed-terms": correlated.crossed_terms,
    "independent-noise": correlated.independent_noise,
    "full-batches": correlated.full_batches,
    "projected-vectors": correlated.projected_vectors,
    "run-step": one_run.run_step,
    "run-coverage": one_run.run_coverage,
}


def _parser() -> Parser:
    return Parser("paper_checks.sharp", __doc__)


def main(argv: Sequence[str] | None = None) -> int:
    """Run every check and print a line for each. The exit status is 1 if a check fails, else 0."""
    _parser().parse_args(argv)
    failed = 0
    for name, check in CHECKS.items():
        ok, measured, threshold, text = check()
        failed += not ok
        print(f"{'ok  ' if ok else 'FAIL'} {name:24} {measured:11.4g} <= {threshold:<8.4g} {text}", flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
