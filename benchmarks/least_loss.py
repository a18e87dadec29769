"""The least loss that there is, for the figure of losses: E min F = tr(A)/2 with samples from N(1, I).  [--out DIR]

    python -m benchmarks.least_loss

F(x) = mean_i (x - x_i)' A (x - x_i)/2 is least at the mean of the samples, where it is tr(A S)/2 with their covariance
S (normalised by n), whose expectation is (1 - 1/n) I: tr(A)/2 up to one part in n.
"""

import sys
from collections.abc import Sequence
from typing import Any

from benchmarks.kit.remake import Remake
from benchmarks.kit.rows import RESULTS, Results
from benchmarks.synthetic import PAPER
from dpzero_theory.cli import Parser, output_folder
from dpzero_theory.synthetic.problems import paper_spectrum

__all__ = ["REMAKES", "main"]

KEY = ("mode", "d")


def row(mode: str, d: int) -> dict[str, Any]:
    return {"mode": mode, "d": d, "least_loss": float(paper_spectrum(mode, d).sum()) / 2}


REMAKES = {"least_loss": Remake(KEY, lambda given: [row(str(given["mode"]), int(given["d"]))])}


def _parser() -> Parser:
    parser = Parser("benchmarks.least_loss", __doc__)
    parser.add_argument("--out", type=output_folder, default=RESULTS / "least_loss")
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """The paper's dimensions."""
    parser = _parser()
    options = parser.parse_args(argv)
    results = Results(
        options.out,
        key=KEY,
        fields=("least_loss",),
        seeds=(),
        device="cpu",
        dtype="float64",
        figure="figures.synthetic",
    )
    with parser.opened("--out", results):
        results.add(row(mode, d) for mode in "abc" for d in PAPER.dimensions if not results.done(mode=mode, d=d))
    return 0


if __name__ == "__main__":
    sys.exit(main())
