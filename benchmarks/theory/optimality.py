"""How far from optimal can the sharpened certificate be?  python -m benchmarks.optimality

On the convex family of losses in `problems.worst_case`, runs come close to the certificate at their own parameters.
Such a loss is a slope that ends, plus a curved part. A row is for one member of the family, chosen by
`lower_bound.hardest`, and 64 runs on it with Gaussian directions. The budget of evaluations of a record is K T, for K
directions in each of T steps; L = ell = gap = 1, delta = 1e-6, relation replace-one. The members are:

- mean: its slope ends when a run does, which is the worst for the mean over the run;
- long: the slope is longer by three standard deviations, so that a run is still on it when it ends. This is the worst
for the last iterate, for the mean over any last part of the run, and for the best iterate of one run. long-spread is
the same with the curvature spread over ten times as many coordinates;
- burst: the slope is L, and a run leaves it after few steps. On this loss a single run's mean deviates most from its
expectation.

Rows with factors other than 1 have other step sizes and clips than the prescribed ones, each with its own worst member;
the noise follows the clip, and the privacy parameter mu stays the same. They show what no other choice of parameters
can avoid on this family.
"""

import itertools
import time
from argparse import Namespace
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import Any

import numpy as np

from benchmarks.kit.experiment import Cell, Experiment, flag
from benchmarks.kit.remake import Remake
from benchmarks.kit.rows import read_rows
from benchmarks.problems.hardest import hardest
from benchmarks.problems.worst_case import WorstCase, run
from dpzero_theory.check import PreconditionError
from dpzero_theory.cli import integer
from dpzero_theory.privacy.gaussian import gdp_from_epsilon, noise_std
from dpzero_theory.theory.problem import Problem
from dpzero_theory.theory.sharp.certificate import certificate, prescribe
from dpzero_theory.theory.sharp.high_probability import RunParameters, certify_run

D, DELTA, FAILURE, CHAINS = 2000, 1e-6, 0.05, 64
RECORDS = 10**9
"""The number of records of a loss of the family. The share of records whose gradients oppose the others' is rounded to
a multiple of 1/RECORDS, so it is exact to 1e-9."""
MEMBERS = ("mean", "long", "long-spread", "burst")
FACTORS: tuple[Sequence[float], ...] = ((0.5, 0.7, 1.0, 1.4, 2.0), (0.6, 0.8, 1.0, 1.25, 1.6))
LONG = 155_200
"""From this number of evaluations of a record on, runs with K = 1 take long, so that of the factors for step size and
clip only those next to 1 are tried."""
SHARES = (0.02, 0.1, 0.5)
KEY = ("n", "epsilon", "r", "chosen", "evaluations", "member", "step_factor", "clip_factor")
FIELDS = (
    *("K", "steps", "c", "step_size", "clip", "noise_std", "prescribed", "certified", "limit", "one_run"),
    *("measured", "standard_error", "deviation", "highest", "last"),
    *(f"suffix_{share:g}" for share in SHARES),
    *(f"least_{share:g}" for share in SHARES),
    "seconds",
)
SETTINGS = [
    *((10_000, 2.0, 8.178, evaluations) for evaluations in (4_672, 20_000, LONG)),
    *((n, 2.0, 8.178, 20_000) for n in (1_000, 100_000, 1_000_000)),
    *((10_000, epsilon, 8.178, 20_000) for epsilon in (0.5, 8.0)),
    *((10_000, 2.0, r, 20_000) for r in (2.0, 50.0, 200.0)),
]


def cases() -> Iterator[dict[str, Any]]:
    """Yield the key columns of each row of the experiment."""
    for n, epsilon, r, evaluations in SETTINGS:
        base = (n, epsilon, r) == (10_000, 2.0, 8.178)
        for chosen in ("1", "best"):
            where = {"n": n, "epsilon": epsilon, "r": r, "chosen": chosen, "evaluations": evaluations}
            for member in MEMBERS if base else MEMBERS[:2]:
                yield {**where, "member": member, "step_factor": 1.0, "clip_factor": 1.0}
            near = slice(1, 4) if (chosen, evaluations) == ("1", LONG) else slice(0, 5)
            for step, clip in itertools.product(FACTORS[0][near], FACTORS[1][near]) if base else ():
                if (step, clip) != (1.0, 1.0):
                    yield {**where, "member": "mean", "step_factor": step, "clip_factor": clip}


def measure(key: dict[str, Any], chains: int) -> dict[str, Any]:
    """Make the runs of a row, `chains` of them, and return their measurements. `key` has the key columns of the row."""
    started = time.perf_counter()
    problem = Problem(n=key["n"], d=D, r=key["r"])
    gdp = float(gdp_from_epsilon(key["epsilon"], DELTA))
    cap = key["evaluations"] * key["n"]
    k = 1 if key["chosen"] == "1" else "best"
    prescribed = prescribe(problem, gdp, max_evaluations=cap, direction="gaussian", directions_per_step=k)
    at: dict[str, Any] = {
        "step_size": prescribed.step_size * key["step_factor"],
        "steps": prescribed.steps,
        "clip": prescribed.clip * key["clip_factor"],
        "directions_per_step": prescribed.directions_per_step,
    }
    at["noise_std"] = noise_std(gdp, prescribed.steps, at["clip"], problem.n, "replace-one")
    theorem = {**at, "smoothing": prescribed.smoothing, "direction": "gaussian"}
    row = {
        **key,
        **{name: at[name] for name in ("steps", "step_size", "clip", "noise_std")},
        "K": prescribed.directions_per_step,
        "c": at["clip"] / prescribed.directions_per_step**0.5,
        "prescribed": prescribed.bound,
        "certified": certificate(problem, **theorem).bound,
        "one_run": certify_run(problem, RunParameters(**theorem), failure=FAILURE).bound,
    }
    loss, row["limit"] = member(key["member"], problem, at)
    rng = np.random.default_rng([key["n"], key["evaluations"], MEMBERS.index(key["member"])])
    found = run(loss, **at, chains=chains, rng=rng, shares=SHARES)
    mean = float(found.mean.mean())
    row |= {
        "measured": mean,
        "standard_error": float(found.mean.std()) / chains**0.5,
        "deviation": float(found.mean.std()) / mean,
        "highest": float(found.mean.max()),
        "last": float(found.last.mean()),
    }
    for j, share in enumerate(SHARES):
        row[f"suffix_{share:g}"] = float(found.suffix[j].mean())
        row[f"least_{share:g}"] = float(found.least[j].mean())
    return {**row, "certified": _finite(row["certified"]), "seconds": round(time.perf_counter() - started, 1)}


def _finite(value: float) -> float | None:
    return value if value < np.inf else None


def member(name: str, problem: Problem, at: dict[str, Any]) -> tuple[WorstCase, float | None]:
    """Return the loss of the family of `problems.worst_case` with the given name ("mean", "long", "long-spread" or
    "burst") that is worst for a run with the parameters `at` (step size, steps, clip, noise and directions per step)
    among problems with the constants of `problem`. The second value is the proved lower bound on a run's mean squared
    gradient for this loss, in the limit of many steps; it is None but for "mean"."""
    h = hardest(problem, **at, lengthened=0.0 if name in ("mean", "burst") else 3.0)
    if name == "long-spread":
        h = hardest(problem, **at, lengthened=3.0, coordinates=10 * h.curved)
    given = {key: value for key, value in asdict(h).items() if key not in ("share", "slope", "drift", "bound")}
    opposing = round((1 - h.share) * RECORDS)
    if name == "burst":
        start = problem.gap / h.forward + h.width / 2
        given |= {"backward": 0.0, "start": start, "curvature": (problem.r - 1) / h.curved}
        opposing = 0
    loss = WorstCase(n=RECORDS, d=max(D, h.curved + 1), opposing=opposing, **given)
    return loss, h.bound if name == "mean" else None


def summary(rows: Any) -> Iterator[str]:
    """Yield a line for each setting in the rows: the measured mean over the certified bound, and how much smaller the
    measured mean gets with other step sizes and clips."""
    rows = rows[rows["status"] == "ok"]
    yield "n epsilon r K KT: mean/certified | long: last, least of 2%, 50%, spread | parameters | deviation, burst"
    for where, group in rows.groupby(["n", "epsilon", "r", "evaluations", "chosen"], sort=False):
        own = group[(group["step_factor"] == 1) & (group["clip_factor"] == 1)].set_index("member")
        least = float(group[group["member"] == "mean"]["measured"].min())
        spread = own.loc["long-spread"] if "long-spread" in own.index else None
        mean, long = own.loc["mean"], own.loc["long"]
        certified = float(mean["prescribed"])
        yield (
            f"{where[0]:,} {where[1]:g} {where[2]:g} {int(mean['K'])} {where[3]:,}: "
            f"{float(mean['measured']) / certified:.3f} | "
            f"{float(long['last']) / certified:.2f} {float(long['least_0.02']) / certified:.2f} "
            f"{float(long['least_0.5']) / certified:.2f}"
            + (
                ""
                if spread is None
                else f" {float(spread['last']) / certified:.2f} {float(spread['least_0.02']) / certified:.2f}"
            )
            + (f" | {certified / least:.2f}" if len(group) > len(own) else " | -")
            + f" | {float(mean['deviation']):.4f}"
            + (f" {float(own.loc['burst']['deviation']):.3f}" if "burst" in own.index else "")
        )


REMAKES = {
    "optimality": Remake(
        KEY,
        lambda row: [measure({name: row[name] for name in KEY}, CHAINS)],
        varies=("seconds",),
        tolerance=1e-12,
        why="standard errors by another library since: last digits",
    )
}


def _measure(options: Namespace, key: Cell) -> Cell:
    try:
        return measure(key, options.chains)
    except PreconditionError as error:
        return {"status": str(error)}


EXPERIMENT = Experiment(
    name="optimality",
    about=__doc__,
    flags=[flag("--chains", type=integer(2, 10_000), default=CHAINS)],
    key=KEY,
    fields=FIELDS,
    seeds=[0],
    settings=lambda options: {"chains": options.chains, "delta": DELTA, "failure": FAILURE, "d": D},
    cells=lambda options: cases(),
    measure=_measure,
    told=lambda key, rows: " ".join(str(value) for value in key.values()),
    report=lambda options: print("\n".join(summary(read_rows(options.out)))),
)
