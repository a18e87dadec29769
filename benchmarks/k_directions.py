"""Certified bounds with K directions a step, at the paper's setting.  python -m benchmarks k_directions

The setting is n = 10^4, (2, 1e-6)-DP, relation replace-one, full batches, effective rank r = 8.178, L = ell = gap = 1.
There is a row for every law of the directions, every K, and every budget K T of evaluations of a record, where T is the
number of steps and a budget of 0 stands for no cap on T. A row has the bound in the limit of smoothing lambda -> 0 and
d -> infinity, the bound at d = 2,000 with the prescribed lambda, which costs 1%, and the bound with a quarter of that
lambda. Rows whose column `chosen` is not `K` have the K that the calculator chooses at d = 2,000: the best for a budget
of evaluations, for 4,672 sequential steps, and without a cap.
"""

from collections.abc import Iterator
from typing import Any

from benchmarks.kit.experiment import Experiment
from dpzero_theory.privacy.gaussian import gdp_from_epsilon
from dpzero_theory.theory.problem import Prescription, Problem, Run
from dpzero_theory.theory.sharp.certificate import certificate, prescribe

N, D, R = 10_000, 2_000, 8.178
GDP = float(gdp_from_epsilon(2, 1e-6))
LAWS = ("gaussian", "sphere", "rademacher", "frame")
DIRECTIONS = (1, 4, 16, 32, 64, 256)
BUDGETS = (4_672, 46_720, 155_200, 1_552_000)
"""The budgets: the number K T of evaluations of each record, with K directions in each of T steps."""
STEPS = 4_672
KEY = ("law", "chosen", "K", "budget")
FIELDS = ("steps", "c", "bound_free", "bound_quarter", "bound")


def rows() -> Iterator[dict[str, Any]]:
    """Yield every row of the table. The budget 0 stands for no cap on the number of steps."""
    for law in LAWS:
        yield from (fixed(law, k, budget) for k in DIRECTIONS for budget in (*BUDGETS, 0))
        yield from (best(law, "evaluations", budget) for budget in BUDGETS)
        yield from (best(law, "steps", STEPS), best(law, "nothing", 0))


def fixed(law: str, k: int, budget: int) -> dict[str, Any]:
    """Return a row of certified bounds for a given number k of directions per step.

    law: the law of the directions, a name of `sphere.DIRECTIONS`. budget: the evaluations of a record's loss, of which
    a step takes k here; 0 stands for no cap."""
    steps = budget // k if budget else 10**12 // k
    at: dict[str, Any] = {"max_steps": steps, "direction": law, "directions_per_step": k}
    return _row("K", budget, *(prescribe(Problem(n=N, d=d, r=R), GDP, **at) for d in (D, 10**9)))


def best(law: str, chosen: str, budget: int) -> dict[str, Any]:
    """Return the row of a law of directions with the best number K of directions per step. `chosen` says what the
    budget limits: "evaluations" of a record, "steps", or "nothing"."""
    cap: dict[str, Any] = {"evaluations": {"max_evaluations": budget * N}, "steps": {"max_steps": budget}}.get(
        chosen, {}
    )
    return _row(
        chosen, budget, prescribe(Problem(n=N, d=D, r=R), GDP, direction=law, directions_per_step="best", **cap)
    )


def _row(chosen: str, budget: int, p: Prescription, large: Prescription | None = None) -> dict[str, Any]:
    return {
        "law": p.direction,
        "chosen": chosen,
        "K": p.directions_per_step,
        "budget": budget,
        "steps": p.steps,
        "c": p.clip / p.directions_per_step**0.5,
        "bound_free": None if large is None else _bound(large, 10**9, 1e-30),
        "bound_quarter": None if large is None else _bound(p, D, p.smoothing / 4),
        "bound": p.bound,
    }


def _bound(p: Prescription, d: int, smoothing: float) -> float:
    """Return the certified bound in d dimensions at the parameters of `p`, but with another smoothing lambda. n and r
    are those of the module's setting."""
    run: Run = {**p.run, "smoothing": smoothing}
    return certificate(Problem(n=N, d=d, r=R), **run).bound


EXPERIMENT = Experiment(
    name="k_directions",
    about=__doc__,
    key=KEY,
    fields=FIELDS,
    fresh=True,
    measure=lambda options, at: rows(),
)
