"""Certified bounds of the difference rules at equal evaluations of a loss.  python -m benchmarks differences

The setting is the paper's: n = 10^4, (2, 1e-6)-DP, relation replace-one, full batches, d = 2,000, r = 8.178, L = ell =
gap = 1. There is a row for every difference rule (central, forward, exact), every law of the directions, and every
number of evaluations of each record's loss in a run: 9,344 and 310,400, of 4,672 and 155,200 central differences.
`K` is the number of directions that the calculator finds best for the rule, or 1 where `chosen` is `one`. `price` is
the share by which the bound is above that of the sphere with the same rule. A derivative counts as one evaluation,
though its time is that of one to two.
"""

from collections.abc import Iterator
from typing import Any

from benchmarks.kit.experiment import Experiment
from benchmarks.kit.remake import Remake, Row
from dpzero_theory.difference import DIFFERENCES
from dpzero_theory.privacy.gaussian import gdp_from_epsilon
from dpzero_theory.theory.problem import Problem
from dpzero_theory.theory.sharp.certificate import prescribe

PROBLEM = Problem(n=10_000, d=2_000, r=8.178)
GDP = float(gdp_from_epsilon(2, 1e-6))
LAWS = ("sphere", "gaussian", "rademacher", "frame")
POINTS = (9_344, 310_400)
"""The evaluations of each record's loss in a run."""
CHOSEN: dict[str, int | str] = {"best": "best", "one": 1}
"""By the column `chosen`, what the calculator is asked for as K."""
KEY = ("difference", "law", "chosen", "points")
FIELDS = ("K", "steps", "c", "smoothing", "bound", "price")


def row(difference: str, law: str, chosen: str, points: int) -> dict[str, Any]:
    """Return the row of a difference rule and a law of directions.

    chosen: a key of CHOSEN, which says how many directions a step has. points: the most evaluations of each record's
    loss in a run.
    """
    ours, sphere = (
        prescribe(
            PROBLEM,
            GDP,
            max_points=points * PROBLEM.n,
            direction=name,
            directions_per_step=CHOSEN[chosen],
            difference=difference,
        )
        for name in (law, "sphere")
    )
    return {
        "difference": difference,
        "law": law,
        "chosen": chosen,
        "points": points,
        "K": ours.directions_per_step,
        "steps": ours.steps,
        "c": ours.clip / ours.directions_per_step**0.5,
        "smoothing": ours.smoothing,
        "bound": ours.bound,
        "price": ours.bound / sphere.bound - 1,
    }


def rows() -> Iterator[dict[str, Any]]:
    """Yield every row of the table."""
    yield from (row(rule, law, k, points) for points in POINTS for k in CHOSEN for rule in DIFFERENCES for law in LAWS)


def _again(made: Row) -> list[dict[str, Any]]:
    return [row(made["difference"], made["law"], made["chosen"], made["points"])]


REMAKES = {"differences": Remake(KEY, _again)}

EXPERIMENT = Experiment(
    name="differences",
    about=__doc__,
    key=KEY,
    fields=FIELDS,
    fresh=True,
    measure=lambda options, at: rows(),
)
