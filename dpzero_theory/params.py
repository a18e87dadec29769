"""Convergence theorems as a calculator: `python -m dpzero_theory.params --n 10000 --epsilon 2 --delta 1e-6 --d 2000`.

For each theorem that applies it prints the parameters of a private run (step size, steps, smoothing, clip and noise)
and the proved bound on its error. --full adds the formulas, the assumptions, and the noise by the paper's composition
lemma beside the exact one. docs/glossary.md explains the symbols.
"""

import argparse
import dataclasses
import itertools
import math
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from dpzero_theory import check, render
from dpzero_theory.bisection import largest, smallest
from dpzero_theory.cli import Parser, Several, command, input_file, integer, number
from dpzero_theory.difference import DIFFERENCES
from dpzero_theory.problem_file import CONSTANTS, ProblemFile
from dpzero_theory.theory.problem import Problem
from dpzero_theory.theory.results import CALIBRATIONS, RESULTS, Calculated, Unmet, calculate
from dpzero_theory.theory.sharp.constants import known_direction
from dpzero_theory.theory.sharp.high_probability import certify_run
from dpzero_theory.theory.sharp.smallest import MOST_DIRECTIONS, SearchOptions

_MOST = 10**15  # --solve-for looks for n and d up to this value
_SMALLEST_EPSILON, _LARGEST_EPSILON = 1e-9, 1e9  # --solve-for looks for epsilon in this range
_HARDEST = {"d": _MOST, "epsilon": _SMALLEST_EPSILON}  # The hardest values tried; a note says if they meet the target
_EASIEST = {"n": _MOST, "epsilon": _LARGEST_EPSILON}  # The easiest values; if one misses the target, none meets it
_SOLVABLE = ("n", "epsilon", "d")  # --solve-for can find the values of these flags
_TAILS = ("gradient_moment", "mean_excess")  # `Problem` may have one of these in place of `lipschitz`
# The inputs of the calculator, in the order in which they are shown; a flag --max-steps is called max_steps here
_GIVEN = (
    *("n", "epsilon", "delta", *CONSTANTS, "pl", "directions_per_step", "max_steps", "max_evaluations", "max_points"),
    *("direction", "difference", *_TAILS),
)
# The values of inputs that neither the command line nor a problem file gives
_DEFAULTS = {"lipschitz": 1.0, "smoothness": 1.0, "gap": 1.0, "loss_bound": 1.0, "directions_per_step": 1}


def _directions(text: str) -> int | str:
    return text if text == "best" else integer(at_most=MOST_DIRECTIONS)(text)


def _pair(text: str) -> tuple[float, float]:
    left, _, right = text.partition("=")
    try:
        return float(left), float(right)
    except ValueError:
        raise argparse.ArgumentTypeError(f"must be two numbers, as in 2=1.5; got {text!r}") from None


def _parser() -> Parser:
    parser = Parser("dpzero_theory.params", __doc__)
    # Formulas have products of several of these numbers and their squares, which must stay in the range of float64
    positive, count = number(at_least=1e-50, at_most=1e50), integer(at_most=10**18)
    need, what = parser.add_argument_group("the problem"), parser.add_argument_group("what to calculate")
    rank = number(at_least=1)
    for group, flag, kind, words in (
        (need, "--n", count, "number of samples"),
        (need, "--epsilon", positive, "privacy parameter, > 0"),
        (need, "--delta", number(above=0, below=1), "privacy parameter, in (0, 1)"),
        (need, "--d", count, "dimension"),
        (need, "--r", rank, "effective rank, 1 <= r <= d (default: d)"),
        (need, "--lipschitz", positive, "L (default 1)"),
        (need, "--smoothness", positive, "ell (default 1)"),
        (need, "--gap", positive, "F(x0) - F* (default 1)"),
        (need, "--loss-bound", positive, "B with |F(x_t)| <= B (default 1)"),
        (need, "--pl", positive, "mu of the PL inequality; adds the corollaries"),
        (need, "--sample-rank", rank, "r_s, root mean square of tr(H_i)/ell over samples; frees lambda from d (sharp)"),
        (need, "--layer-rank", number(at_least=2), "largest r_A + r_B of a layer, if factored as by K-FAC (low-rank)"),
        (what, "--max-steps", count, "cap on the steps T of everything that is minimised"),
        (what, "--max-evaluations", count, "cap on n K T, the finite differences of single samples"),
        (what, "--max-points", count, "cap on losses evaluated: n T 2 K (central), n T (K + 1) (forward, exact)"),
    ):
        group.add_argument(flag, type=kind, help=words)
    need.add_argument(
        "--gradient-moment",
        type=_pair,
        metavar="M=VALUE",
        help="in place of L: the mean over samples of ||grad f||^M is at most VALUE along the run, M >= 2 (sharp)",
    )
    need.add_argument(
        "--mean-excess",
        type=_pair,
        metavar="LEVEL=VALUE",
        help="in place of L: the mean over samples of (||grad f|| - LEVEL)_+ is at most VALUE along the run (sharp)",
    )
    need.add_argument(
        "--problem",
        type=input_file,
        metavar="FILE",
        help="d, r, L, ell, gap, B, r_s as measured by `python -m dpzero_theory.curvature`; flags replace its values",
    )
    noise = "noise by the paper's lemma or exact (default: exact in a short table, else both)"
    what.add_argument("--calibration", choices=CALIBRATIONS, help=noise)
    ids = "ids: " + ", ".join(RESULTS)
    what.add_argument("--result", nargs="+", action=Several, choices=list(RESULTS), metavar="ID", help=ids)
    what.add_argument(
        "--direction",
        default="sphere",
        metavar="LAW",
        help="law of u: sphere (the default), gaussian, rademacher, frame, low-rank[:RANK]",
    )
    what.add_argument(
        "--directions-per-step",
        type=_directions,
        metavar="K|best",
        help="K scalars of a sample clipped jointly in each step, or the best number of them (default: 1)",
    )
    what.add_argument(
        "--difference",
        choices=list(DIFFERENCES),
        default="central",
        help="how a change of loss along u is found; exact needs losses with a derivative (default: central)",
    )
    what.add_argument(
        "--confidence",
        type=number(at_least=1e-6, at_most=1 - 1e-9),
        metavar="P",
        help="theorem-3-sharp: note what a single run's mean of ||grad F_S(x_t)||^2 is below with this probability",
    )
    what.add_argument("--solve-for", choices=_SOLVABLE, help="find the value that meets --target")
    what.add_argument(
        "--target", type=number(at_least=1e-50), metavar="BOUND", help="with --solve-for: the bound to meet"
    )
    out = parser.add_argument_group("output")
    out.add_argument("--format", choices=("table", "json", "csv", "latex"), default="table")
    out.add_argument("--full", action="store_true", help="tables with the formulas and assumptions of each result")
    return parser


@command
def main(argv: Sequence[str] | None = None) -> int:
    """Run the command `python -m dpzero_theory.params` and return 0.

    For a problem (number of samples, dimension, constants of the loss) and a target (epsilon, delta), the command
    prints the step size, steps, smoothing, clip and noise that each convergence theorem prescribes, and the theorem's
    bound on the squared gradient or on the excess loss.

    Args:
        argv: the command-line arguments; those of the process if None. ["--help"] prints all options.

    Raises:
        SystemExit: with status 2, after one line on standard error, if an argument has a fault.
    """
    parser = _parser()
    args = parser.parse_args(argv)
    with parser.refusals():
        print(_run(args))
    return 0


def _run(args: argparse.Namespace) -> str:
    inputs, caveats = _inputs(args)
    calibrations = CALIBRATIONS if args.calibration is None else (args.calibration,)
    brief = args.format == "table" and not args.full and args.solve_for is None
    if brief and args.calibration is None:
        calibrations = ("exact",)
    if args.solve_for is not None:
        return _solutions(args, inputs, calibrations, caveats)
    problem, answers, unmet = _calculate(inputs, args.result, calibrations)
    answered = {answer.result.id for answer in answers}
    for item in unmet:
        if not answers or (args.result and item.result.id not in answered):
            raise check.PreconditionError(item.reason)
    if args.confidence is not None:
        answers = [_with_one_run(problem, answer, args.confidence) for answer in answers]
    shown = {**inputs, "r": inputs["d"] if inputs["r"] is None else inputs["r"]}
    if args.format == "table":
        return (render.as_settings if brief else render.as_table)(answers, unmet, shown, caveats)
    if args.format == "latex":
        return render.as_latex(answers, caveats)
    rows = [render.row(answer) for answer in answers]
    return render.as_csv(rows, caveats) if args.format == "csv" else render.as_json(shown, rows, unmet, caveats)


def _inputs(args: argparse.Namespace) -> tuple[dict[str, Any], tuple[str, ...]]:
    if (args.solve_for is None) != (args.target is None):
        raise ValueError("--solve-for and --target must be given together")
    if args.solve_for is not None and args.format == "latex":
        raise ValueError("--format latex must come without --solve-for")
    args.direction = known_direction(args.direction)  # in its usual form, such as low-rank for low-rank:1
    given = {name: value for name in _GIVEN if (value := getattr(args, name)) is not None}
    if args.solve_for in given:
        raise ValueError(f"--{args.solve_for} must not be given with --solve-for {args.solve_for}, which finds it")
    file: dict[str, float] = {}
    caveats: tuple[str, ...] = ()
    if args.problem is not None:
        measured = _read(args.problem)
        file = {name: value for name, value in measured.constants.items() if name != args.solve_for}
        caveats = measured.caveats + tuple(
            f"{name} = {given[name]:g} was given and replaces the file's {file[name]:g}"
            for name in CONSTANTS
            if name in file and name in given
        )
    if tails := [name for name in _TAILS if name in given]:
        if "lipschitz" in file:
            caveats += (f"{', '.join(tails)} was given and replaces the file's lipschitz = {file['lipschitz']:g}",)
        given.setdefault("lipschitz", None)
    # A flag takes precedence over the problem file, and the file over the default
    known = {**_DEFAULTS, **file, **given}
    for name in (*_SOLVABLE, "delta"):
        if name != args.solve_for and name not in known:
            raise ValueError(f"{name} must be given")
    return {name: known.get(name) for name in _GIVEN if name in known or name not in _TAILS}, caveats


def _read(path: Path) -> ProblemFile:
    try:
        return ProblemFile.read(path)
    except (OSError, ValueError) as error:
        raise ValueError(f"--problem {path}: {error.strerror if isinstance(error, OSError) else error}") from None


def _calculate(
    inputs: dict[str, Any], results: Sequence[str] | None, calibrations: Sequence[str]
) -> tuple[Problem, list[Calculated], list[Unmet]]:
    fields = {name: inputs[name] for name in ("n", *CONSTANTS, "pl", *_TAILS) if inputs.get(name) is not None}
    problem = Problem(**{**fields, "r": inputs["d"] if inputs["r"] is None else inputs["r"]})
    options: Any = {name: inputs[name] for name in SearchOptions.__annotations__}
    privacy = inputs["epsilon"], inputs["delta"]
    return problem, *calculate(problem, *privacy, results=results, calibrations=calibrations, **options)


def _with_one_run(problem: Problem, answer: Calculated, confidence: float) -> Calculated:
    # Only the result theorem-3-sharp has a bound for one run, on the mean of ||grad F_S(x_t)||^2 over the steps t
    if answer.result.id != "theorem-3-sharp":
        return answer
    bound = certify_run(problem, failure=1 - confidence, **answer.prescription.run).bound
    note = f"one run: its mean of ||grad F_S(x_t)||^2 is at most {bound:.4g} with probability at least {confidence:g}"
    return dataclasses.replace(answer, notes=(*answer.notes, note))


def _solutions(
    args: argparse.Namespace, inputs: dict[str, Any], calibrations: Sequence[str], caveats: Sequence[str]
) -> str:
    name, target = args.solve_for, args.target
    lowest = 1 if inputs["r"] is None else math.ceil(inputs["r"])
    first = {**inputs, name: {"n": _MOST, "epsilon": 1.0, "d": lowest}[name]}
    ids = args.result or [answer.result.id for answer in _calculate(first, None, ["exact"])[1]]
    # The row of a result has the easiest value that meets the target: the smallest n or epsilon, or the largest d
    rows: list[dict[str, Any]] = []

    def guaranteed(answer: Calculated) -> float:
        # The steps to run are whole and T is not, so that a run may guarantee less than the theorem's bound
        return max(answer.prescription.bound, answer.prescription.bound_at_steps)

    for id, calibration in itertools.product(ids, calibrations):

        def answer_at(value: float, id: str = id, calibration: str = calibration) -> Calculated | None:
            _, answers, _ = _calculate({**inputs, name: value}, [id], [calibration])
            return answers[0] if answers else None

        def meets(value: float, at: Callable[[float], Calculated | None] = answer_at) -> bool:
            return (answer := at(value)) is not None and guaranteed(answer) <= target

        if name in _EASIEST and (easiest := answer_at(_EASIEST[name])) and guaranteed(easiest) > target:
            continue
        value: float | None
        if name == "d":
            value = largest(meets, lowest, _MOST)
        elif name == "n":
            value = smallest(meets, 1, _MOST)
        else:
            value = smallest(meets, _SMALLEST_EPSILON, _LARGEST_EPSILON)
        if value is not None and (answer := answer_at(value)) is not None:
            row = render.row(answer)
            if value == _HARDEST.get(name):
                row["notes"].append(f"{name} = {value:g} is the end of the search, and meets the target")
            rows.append({name: value, **row})
    if not rows:
        raise check.PreconditionError(f"no {name} meets --target {target:g} for {', '.join(ids)}")
    if args.format == "json":
        return render.as_json({**inputs, "solve_for": name, "target": target}, rows, [], caveats)
    return render.as_csv(rows, caveats) if args.format == "csv" else render.as_rows(name, rows, caveats)


if __name__ == "__main__":
    sys.exit(main())
