"""Noise for a privacy target, or the privacy of a noise: `python -m dpzero_theory.privacy`.

    --epsilon 2 --delta 1e-5 --steps 10000 --n 1024 --batch 64 --sampling poisson --relation add-remove
    --noise-multiplier 12.5 --delta 1e-5 --steps 10000 --n 1024 --batch 64 --sampling poisson

The noise multiplier is the standard deviation of the noise on the sum of a batch over the per-record clip. Without
--batch every step uses all n records; with it --sampling must say how batches are drawn.
"""

import argparse
import json
import math
import sys
import time
from collections.abc import Sequence
from typing import Any

from dpzero_theory import check
from dpzero_theory.cli import Parser, integer, number, output_file
from dpzero_theory.privacy.accountant import epsilon_of_history
from dpzero_theory.privacy.calibration import calibrate_noise_multiplier
from dpzero_theory.privacy.comparison import ACCOUNTANTS, compare
from dpzero_theory.privacy.gaussian import epsilon_from_gdp, paper_gdp
from dpzero_theory.privacy.relation import Relation
from dpzero_theory.privacy.release import Release
from dpzero_theory.privacy.sampling import SAMPLINGS

LARGEST_EPSILON = 1e4
LEAST_NOISE, MOST_NOISE = 1e-6, 1e12
SUBSAMPLED, LEAST_SUBSAMPLED = ("poisson", "fixed-size"), 0.03
"""The certified accounting of a noise much smaller than the clip needs a grid of 1/noise cells."""


def _parser() -> Parser:
    parser = Parser(
        "dpzero_theory.privacy", __doc__, aliases={"target_epsilon": "--epsilon", "target_delta": "--delta"}
    )
    question = parser.add_mutually_exclusive_group(required=True)
    question.add_argument(
        "--epsilon", type=number(above=0, at_most=LARGEST_EPSILON), help="find the noise for this epsilon, > 0"
    )
    question.add_argument(
        "--noise-multiplier",
        type=number(at_least=LEAST_NOISE, at_most=MOST_NOISE),
        help="find the epsilon of this noise, > 0",
    )
    parser.add_argument("--delta", type=number(above=0, below=1), required=True, help="in (0, 1)")
    parser.add_argument("--steps", type=integer(at_most=10**12), required=True, help="number of releases, >= 1")
    parser.add_argument("--n", type=integer(at_most=10**18), required=True, help="number of records")
    parser.add_argument("--batch", type=integer(at_most=10**18), help="(expected) records in a batch, 1 <= batch <= n")
    parser.add_argument("--sampling", choices=tuple(SAMPLINGS), help="how batches are drawn; needed with --batch")
    parser.add_argument(
        "--relation", choices=tuple(Relation), default="replace-one", help="default: replace-one, the paper's"
    )
    parser.add_argument("--format", choices=("table", "json"), default="table")
    parser.add_argument("--compare", action="store_true", help="ask other installed accountants too (minutes)")
    parser.add_argument(
        "--plot",
        type=output_file(".pdf", ".png", ".svg"),
        metavar="FILE",
        help="draw epsilon against steps and the trade-off curve",
    )
    return parser


def _inputs(options: argparse.Namespace) -> dict[str, Any]:
    """The question with its batch; raises ValueError naming the flag."""
    n, batch, sampling = options.n, options.batch, options.sampling
    if batch is None:
        if sampling not in (None, "full"):
            raise ValueError(f"--batch must be given with --sampling {sampling}")
        batch, sampling = n, "full"
    else:
        check.integer("--batch", batch, at_most=n)
        if sampling is None:
            raise ValueError(f"--sampling must be given with --batch: one of {', '.join(SAMPLINGS)}")
        if sampling == "full" and batch != n:
            raise ValueError(f"--batch must be n = {n} with --sampling full; got {batch}")
    if sampling in SUBSAMPLED and options.noise_multiplier is not None:
        check.real(
            f"--noise-multiplier with --sampling {sampling}", options.noise_multiplier, at_least=LEAST_SUBSAMPLED
        )
    if options.plot is not None:
        check.installed("--plot", "matplotlib", extra="plot")
    return {
        "epsilon": None if options.epsilon is None else float(options.epsilon),
        "noise_multiplier": None if options.noise_multiplier is None else float(options.noise_multiplier),
        "delta": options.delta,
        "steps": options.steps,
        **{"n": n, "batch": batch, "sampling": sampling, "sample_rate": batch / n, "relation": options.relation},
    }


def _answer(inputs: dict[str, Any]) -> dict[str, Any]:
    where = {k: inputs[k] for k in ("sampling", "sample_rate")} | {"relation": inputs["relation"]}
    steps, delta = inputs["steps"], inputs["delta"]
    started = time.perf_counter()
    if inputs["epsilon"] is not None:
        name = "noise_multiplier"
        found = calibrate_noise_multiplier(target_epsilon=inputs["epsilon"], target_delta=delta, steps=steps, **where)
        noise = found.value
    else:
        name = "epsilon"
        noise = inputs["noise_multiplier"]
        found = epsilon_of_history([Release(noise, steps, **where)], delta)
    seconds = time.perf_counter() - started
    unit = Release(noise, steps, **where)
    answer = {
        "inputs": inputs,
        "answer": name,
        name: found.value,
        "bracket": {"lower": found.lower, "value": found.value, "upper": found.upper},
        "method": found.method,
        "sensitivity": unit.sensitivity,
        "noise_over_sensitivity": noise / unit.sensitivity,
        "gdp": unit.terms.gdp or None,
        "notes": list(found.notes),
        "seconds": seconds,
    }
    if inputs["sampling"] == "full" and inputs["epsilon"] is not None:
        answer["paper_lemma"] = _paper_lemma(inputs, unit.sensitivity)
    return answer


def _paper_lemma(inputs: dict[str, Any], sensitivity: int) -> dict[str, Any]:
    """The paper's composition lemma for the same target: its multiplier, and the epsilon that noise really has."""
    gdp = float(paper_gdp(inputs["epsilon"], inputs["delta"]))
    real = float(epsilon_from_gdp(gdp, inputs["delta"]))
    return {
        "noise_multiplier": math.sqrt(inputs["steps"]) * sensitivity / gdp,
        "claimed_epsilon": inputs["epsilon"],
        "epsilon": real,
        "holds": real <= inputs["epsilon"],
    }


def _comparisons(inputs: dict[str, Any]) -> list[dict[str, Any]]:
    if inputs["relation"] != "add-remove" or inputs["sampling"] not in ("full", "poisson"):
        return []
    rows = []
    for name in ACCOUNTANTS:
        print(f"asking {name} ...", file=sys.stderr)
        row = compare(
            name,
            epsilon=inputs["epsilon"],
            noise=inputs["noise_multiplier"],
            delta=inputs["delta"],
            sample_rate=inputs["sample_rate"],
            steps=inputs["steps"],
        )
        rows.append({"accountant": name, "value": row.value, "seconds": row.seconds, "status": row.status})
    return rows


def _table(answer: dict[str, Any]) -> str:
    inputs, bracket = answer["inputs"], answer["bracket"]
    name = answer["answer"]
    asked = "epsilon" if name == "noise_multiplier" else "noise_multiplier"
    lines = [
        f"{asked} {inputs[asked]:g}, delta {inputs['delta']:g}, steps {inputs['steps']}, n {inputs['n']},"
        f" batch {inputs['batch']}, sampling {inputs['sampling']}, relation {inputs['relation']}",
        f"{name} = {bracket['value']:.10g}   (exact value in [{bracket['lower']:.10g}, {bracket['upper']:.10g}];"
        f" {answer['method']}, {1e3 * answer['seconds']:.0f} ms)",
    ]
    if name == "noise_multiplier":
        lines.append(
            f"noise of standard deviation {bracket['value']:.10g} x clip on the sum of a batch"
            f" ({answer['noise_over_sensitivity']:.10g} x the sensitivity of {answer['sensitivity']} clip)"
        )
    lemma = answer.get("paper_lemma")
    if lemma:
        lines.append(
            f"the paper's lemma would take {lemma['noise_multiplier']:.10g}, which really gives epsilon ="
            f" {lemma['epsilon']:.4f}" + ("" if lemma["holds"] else " (the lemma does not hold here)")
        )
    lines += [f"note: {note}" for note in answer["notes"]]
    for row in answer.get("compare", []):
        value = "-" if row["value"] is None else f"{row['value']:.7g}"
        lines.append(f"{row['accountant']:<20} {value:>12} {row['seconds']:10.3f} s  {row['status']}")
    if "compare" in answer and not answer["compare"]:
        lines.append("compare: the other accountants cover add-remove with full batch or Poisson sampling only")
    return "\n".join(lines)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; returns 0, exits with 2 and one line on standard error for a bad input."""
    parser = _parser()
    options = parser.parse_args(argv)
    with parser.refusals():
        inputs = _inputs(options)
        answer = _answer(inputs)
    if options.compare:
        answer["compare"] = _comparisons(inputs)
    if options.plot is not None:
        from dpzero_theory.privacy.plot import draw

        draw(options.plot, answer)
    print(json.dumps(answer, indent=2) if options.format == "json" else _table(answer))
    return 0


if __name__ == "__main__":
    sys.exit(main())
