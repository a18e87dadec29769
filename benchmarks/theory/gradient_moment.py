"""What it costs to release a moment of gradient norms in place of a Lipschitz constant.

    python -m benchmarks.gradient_moment

At the paper's synthetic setting (epsilon 2, delta 1e-6, replace-one, d = 2,000, r = 8.178, smoothness and gap 1) the
m-th moment of the records' gradient norms is 1, and all that is known beforehand is that no gradient is longer than
`cap`. A share of mu^2, the budget in Gaussian differential privacy, pays for one release of the moment with an upper
bound that fails with probability 0.01 (`dpzero_theory.privacy.gradient_moment`), and the rest for the run. Columns:

    upper     the released upper bound, where its noise is 0
    released  the certificate for a moment of `upper`, with the rest of the budget
    known     the certificate if the moment 1 were known, with the whole budget
    capped    the certificate for the Lipschitz constant L = cap, with the whole budget

All are for sphere directions, K = 32 and 155,200 central differences of each record. The share is the best of SHARES.
"""

import math
from argparse import Namespace
from collections.abc import Iterator
from typing import Any

from scipy.special import ndtri

from benchmarks.kit.experiment import Cell, Experiment
from benchmarks.kit.remake import Remake
from dpzero_theory.privacy.gaussian import gdp_from_epsilon
from dpzero_theory.theory.problem import Problem
from dpzero_theory.theory.sharp.certificate import prescribe

EPSILON, DELTA, FAILURE = 2.0, 1e-6, 0.01
SHARES = (0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.3, 0.5)
KEY = ("n", "power", "cap")


def row(n: int, power: float, cap: float) -> dict[str, Any]:
    """Return the row for n records, the moment's power m and the known bound `cap` on gradient norms."""
    gdp = float(gdp_from_epsilon(EPSILON, DELTA))

    def bound(share: float, **gradients: Any) -> float:
        problem = Problem(n=n, d=2_000, r=8.178, **gradients)
        left = gdp * math.sqrt(1 - share)
        return prescribe(problem, left, max_evaluations=155_200 * n, directions_per_step=32).bound

    def released(share: float) -> tuple[float, float, float]:
        # The standard deviation of the released moment's noise, on the sum over records of ||gradient||^m/cap^m, each
        # in [0, 1].
        noise = 1 / (gdp * math.sqrt(share))
        upper = 1 - float(ndtri(FAILURE)) * noise * cap**power / n
        return bound(share, gradient_moment=(power, upper)), share, upper

    certified, share, upper = min(map(released, SHARES))
    known, capped = bound(0.0, gradient_moment=(power, 1.0)), bound(0.0, lipschitz=cap)
    return {"share": share, "upper": upper, "released": certified, "known": known, "capped": capped}


def _cells(options: Namespace) -> Iterator[Cell]:
    for n in (10_000, 100_000):
        for power in (2.0, 4.0):
            yield from ({"n": n, "power": power, "cap": cap} for cap in (2.0, 5.0, 10.0, 20.0, 50.0))


REMAKES = {
    "gradient_moment": Remake(
        KEY,
        lambda found: [{**{name: found[name] for name in KEY}, **row(*(found[name] for name in KEY))}],
        tolerance=1e-6,
        why="parameters are minimised to about 1e-8",
    )
}

EXPERIMENT = Experiment(
    name="gradient_moment",
    about=__doc__,
    key=KEY,
    fields=("share", "upper", "released", "known", "capped"),
    settings={"epsilon": EPSILON, "delta": DELTA, "failure": FAILURE},
    cells=_cells,
    measure=lambda options, at: row(**at),
    told=lambda at, rows: f"n = {at['n']:,}, m = {at['power']:g}, cap {at['cap']:g}: {rows[0]['released']:.4g}",
)
