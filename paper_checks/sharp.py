"""The sharpened theorem's proof, check by check: `python -m paper_checks.sharp`.

sharp_theorem.md names the check of each step. Each check returns (ok, measured, threshold, text) with seeds, sizes
and thresholds fixed beforehand. The oracles are sampling, quadrature and enumeration; the library enters only as
the thing that is checked.
"""

import sys
from collections.abc import Callable
from functools import partial

from paper_checks import sharp_moments, sharp_promises, sharp_runs, sharp_steps
from paper_checks.outcome import Outcome

__all__ = ["CHECKS", "main"]

CHECKS: dict[str, Callable[[], Outcome]] = {
    "tail-moments": sharp_moments.tail_moments,
    "tail-moments-sampled": sharp_moments.tail_moments_sampled,
    "inner-product": sharp_moments.clipped_inner_product,
    "second-moment": sharp_moments.clipped_second_moment,
    "lost-moment": sharp_moments.lost_second_moment,
    "sampled-moment": sharp_moments.sampled_second_moment,
    "seminorm": sharp_moments.seminorm,
    "smoothing-error": sharp_steps.smoothing_error,
    "one-step": sharp_steps.one_step_inequality,
    "final-quadratic": sharp_promises.final_quadratic,
    "poisson-variance": sharp_steps.poisson_variance,
    "privacy": sharp_promises.privacy_of_prescription,
    "minimiser": sharp_promises.minimiser,
    "reference-numbers": sharp_promises.reference_numbers,
    "dimension": sharp_promises.dimension,
    "constant-schedule": sharp_promises.constant_schedule,
    "gaussian-inner-product": partial(sharp_moments.clipped_inner_product, "gaussian"),
    "gaussian-second-moment": partial(sharp_moments.clipped_second_moment, "gaussian"),
    "sign-inner-product": partial(sharp_moments.clipped_inner_product, "rademacher"),
    "sign-second-moment": partial(sharp_moments.clipped_second_moment, "rademacher"),
    "sign-moments": sharp_moments.sign_moments,
    "other-directions": sharp_steps.one_step_other_directions,
    "vector-noise": sharp_steps.vector_noise,
    "last-iterate": sharp_runs.last_iterate,
    "shrinking-noise": sharp_promises.shrinking_noise,
    "lipschitz-and-pl": sharp_promises.lipschitz_and_pl,
    "runs": sharp_runs.runs,
}


def main() -> int:
    """Run every check, print one line each, return 1 if one fails."""
    failed = 0
    for name, check in CHECKS.items():
        ok, measured, threshold, text = check()
        failed += not ok
        print(f"{'ok  ' if ok else 'FAIL'} {name:24} {measured:11.4g} <= {threshold:<8.4g} {text}", flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
