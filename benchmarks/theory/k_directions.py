"""Certified bounds for K directions a step at the paper's setting.  python -m benchmarks.k_directions

n = 10^4, (2, 1e-6)-DP, replace-one, full batches, r = 8.178, L = ell = gap = 1. A row for every law, K and budget
K T of evaluations of a record (0: no cap on T): the bound as lambda -> 0 and d -> infinity, and the bound at d = 2,000
with the prescribed lambda, which costs 1%, and with a quarter of it. Rows with `chosen` other than `K` are the
calculator's choice of K at d = 2,000: the best of a budget of evaluations, of 4,672 sequential steps, and with no cap
at all.
"""

from collections.abc import Iterator
from typing import Any

from benchmarks.kit.experiment import Experiment
from benchmarks.kit.remake import Remake, Row
from dpzero_theory.privacy.gaussian import gdp_from_epsilon
from dpzero_theory.theory.problem import Prescription, Problem
from dpzero_theory.theory.sharp.certificate import certificate, prescribe

N, D, R = 10_000, 2_000, 8.178
GDP = float(gdp_from_epsilon(2, 1e-6))
LAWS = ("gaussian", "sphere", "rademacher", "frame")
DIRECTIONS = (1, 4, 16, 32, 64, 256)
BUDGETS = (4_672, 46_720, 155_200, 1_552_000)
"""K T, the evaluations of a record."""
STEPS = 4_672
KEY = ("law", "chosen", "K", "budget")
FIELDS = ("steps", "c", "bound_free", "bound_quarter", "bound")


def rows() -> Iterator[dict[str, Any]]:
    """Every row; budget 0 stands for no cap."""
    for law in LAWS:
        yield from (fixed(law, k, budget) for k in DIRECTIONS for budget in (*BUDGETS, 0))
        yield from (best(law, "evaluations", budget) for budget in BUDGETS)
        yield from (best(law, "steps", STEPS), best(law, "nothing", 0))


def fixed(law: str, k: int, budget: int) -> dict[str, Any]:
    """The row of a K."""
    steps = budget // k if budget else 10**12 // k
    at: dict[str, Any] = {"max_steps": steps, "direction": law, "directions_per_step": k}
    return _row("K", budget, *(prescribe(Problem(n=N, d=d, r=R), GDP, **at) for d in (D, 10**9)))


def best(law: str, chosen: str, budget: int) -> dict[str, Any]:
    """The row of the best K of a budget of evaluations or of steps, or of none."""
    cap: dict[str, Any] = {"evaluations": {"max_evaluations": budget * N}, "steps": {"max_steps": budget}}.get(
        chosen, {}
    )
    return _row(
        chosen, budget, prescribe(Problem(n=N, d=D, r=R), GDP, direction=law, directions_per_step="best", **cap)
    )


def _again(row: Row) -> list[dict[str, Any]]:
    if row["chosen"] == "K":
        return [fixed(row["law"], row["K"], row["budget"])]
    return [best(row["law"], row["chosen"], row["budget"])]


REMAKES = {"k_directions": Remake(KEY, _again)}


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
    """The bound in d dimensions at the prescribed parameters but for lambda."""
    return certificate(
        Problem(n=N, d=d, r=R),
        step_size=p.step_size,
        steps=p.steps,
        clip=p.clip,
        smoothing=smoothing,
        noise_std=p.noise_std,
        direction=p.direction,
        directions_per_step=p.directions_per_step,
    ).bound


EXPERIMENT = Experiment(
    name="k_directions",
    about=__doc__,
    key=KEY,
    fields=FIELDS,
    figure="figures.k_directions",
    fresh=True,
    measure=lambda options, at: rows(),
)
