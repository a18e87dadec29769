"""The least loss that there is, for the figure of losses: E min F = tr(A)/2 with samples from N(1, I).

    python -m benchmarks.least_loss [--out DIR]

F(x) = mean_i (x - x_i)' A (x - x_i)/2 is least if x is the mean of the samples x_i. Its value is then tr(A S)/2, where
S is the samples' covariance (normalised by n), whose expectation is (1 - 1/n) I. So E min F is tr(A)/2 up to one part
in n.
"""

from typing import Any

from benchmarks.kit.experiment import Experiment
from benchmarks.kit.remake import Remake
from benchmarks.sweeps.synthetic import PAPER
from dpzero_theory.synthetic.problems import paper_spectrum

KEY = ("mode", "d")


def row(mode: str, d: int) -> dict[str, Any]:
    return {"mode": mode, "d": d, "least_loss": float(paper_spectrum(mode, d).sum()) / 2}


REMAKES = {"least_loss": Remake(KEY, lambda given: [row(str(given["mode"]), int(given["d"]))])}


EXPERIMENT = Experiment(
    name="least_loss",
    about=__doc__,
    key=KEY,
    fields=("least_loss",),
    figure="figures.synthetic",
    cells=lambda options: ({"mode": mode, "d": d} for mode in "abc" for d in PAPER.dimensions),
    measure=lambda options, at: row(**at),
)
