"""The calculator: `python -m dpzero_theory.params --n 10000 --epsilon 2 --delta 1e-6 --d 2000 --r 8.178`.

For each theorem and corollary that applies it prints the prescribed step size, steps, smoothing, clip and noise, and
the certified bound: with the noise of the paper's composition lemma, with the exact noise, and with the parameters that
minimise the inequality in the paper's proof. docs/glossary.md has the symbols. torch is never imported.
"""

import argparse
import dataclasses
import math
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from dpzero_theory import check, problem_file, render
from dpzero_theory.bisection import largest_integer, smallest_integer, smallest_real
from dpzero_theory.cli import SWEEP, Parser, Several, command, input_file, integer, number, sweep
from dpzero_theory.difference import DIFFERENCES
from dpzero_theory.problem_file import CONSTANTS, ProblemFile
from dpzero_theory.theory.calculate import CALIBRATIONS, Calculated, Unmet, calculate
from dpzero_theory.theory.limits import MOST_DIRECTIONS
from dpzero_theory.theory.problem import Problem
from dpzero_theory.theory.results import RESULTS
from dpzero_theory.theory.sharp.constants import known_direction, known_directions
from dpzero_theory.theory.sharp.high_probability import RunParameters, certify_run
from dpzero_theory.theory.sharp.poisson import prescribe_for_points

SOLVABLE = ("n", "epsilon", "d")  # The flags whose value --solve-for can find
RUN = ("directions-per-step", "max-steps", "max-evaluations", "max-points")
"""The flags, without their hyphens in front, that fix or cap how much a run computes: its directions a step, steps,
differences of losses and evaluations of losses."""
PROBLEM = ("n", "epsilon", "delta", *(name.replace("_", "-") for name in CONSTANTS), "pl")
"""The flags that describe the problem and its privacy target."""
SWEEPABLE = (*PROBLEM, *RUN)  # The flags that --sweep can vary
TAILS = ("gradient_moment", "mean_excess")  # The bounds on gradients that a problem may have in place of `lipschitz`
INTEGERS = ("n", "d", *RUN)  # The flags that take integers
SMALLEST, LARGEST = 1e-50, 1e50
"""The smallest and the largest value of a constant of the problem that a flag accepts; products of four larger ones
would leave the range of float64."""
END_OF_INTEGERS = 10**15  # --solve-for looks for n and d up to this value
SMALLEST_EPSILON, LARGEST_EPSILON = 1e-9, 1e9  # --solve-for looks for epsilon in this range
END_OF_SEARCH = {"d": END_OF_INTEGERS, "epsilon": SMALLEST_EPSILON}
"""For a quantity that --solve-for seeks, by its name, the most extreme value that the search tries. Where even that
value meets the target, a note says so."""
EASIEST = {"n": END_OF_INTEGERS, "epsilon": LARGEST_EPSILON}
"""For a quantity that --solve-for seeks, by its name, the value at which the bound is smallest. If the bound misses the
target even there, no value meets it."""
DEFAULTS = {"lipschitz": 1.0, "smoothness": 1.0, "gap": 1.0, "loss_bound": 1.0, "directions_per_step": 1}
"""The values of flags that neither the command line nor a problem file gives."""


def _directions(text: str) -> int | str:
    return text if text == "best" else integer(at_most=MOST_DIRECTIONS)(text)


def _direction(text: str) -> str:
    try:
        return known_direction(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error).removeprefix("direction ")) from None


def _pair(form: str) -> Callable[[str], tuple[float, float]]:
    def parse(text: str) -> tuple[float, float]:
        left, _, right = text.partition("=")
        try:
            return float(left), float(right)
        except ValueError:
            raise argparse.ArgumentTypeError(f"must be two numbers {form}; got {text!r}") from None

    return parse


def _parser() -> Parser:
    parser = Parser("dpzero_theory.params", __doc__)
    positive, count = number(at_least=SMALLEST, at_most=LARGEST), integer(at_most=10**18)
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
        type=_pair("M=VALUE"),
        metavar="M=VALUE",
        help="in place of L: the mean over samples of ||grad f||^M is at most VALUE along the run, M >= 2 (sharp)",
    )
    need.add_argument(
        "--mean-excess",
        type=_pair("LEVEL=VALUE"),
        metavar="LEVEL=VALUE",
        help="in place of L: the mean over samples of (||grad f|| - LEVEL)_+ is at most VALUE along the run (sharp)",
    )
    need.add_argument(
        "--problem",
        type=input_file,
        metavar="FILE",
        help="d, r, L, ell, gap, B, r_s as measured by `python -m dpzero_theory.curvature`; flags replace its values",
    )
    what.add_argument("--calibration", choices=CALIBRATIONS, help="default: both")
    ids = "ids: " + ", ".join(RESULTS)
    what.add_argument("--result", nargs="+", action=Several, choices=list(RESULTS), metavar="ID", help=ids)
    what.add_argument(
        "--direction",
        type=_direction,
        default="sphere",
        metavar="LAW",
        help=f"law of u: {', '.join(known_directions())}[:RANK] (default: sphere)",
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
    what.add_argument(
        "--poisson",
        action="store_true",
        help="theorem-3-sharp: note the Poisson batches, K, T and difference rule of least bound for --max-points",
    )
    what.add_argument("--solve-for", choices=SOLVABLE, help="find the value that meets --target")
    what.add_argument(
        "--target", type=number(at_least=SMALLEST), metavar="BOUND", help="with --solve-for: the bound to meet"
    )
    what.add_argument("--sweep", type=sweep(SWEEPABLE, INTEGERS), metavar=SWEEP, help="a row per value")
    out = parser.add_argument_group("output")
    out.add_argument("--format", choices=("table", "json", "csv", "latex"), default="table")
    return parser


@command
def main(argv: Sequence[str] | None = None) -> int:
    """Run the command with the arguments `argv` (by default the process's own) and print its answers; returns 0.

    Bad input exits with status 2.
    """
    parser = _parser()
    args = parser.parse_args(argv)
    with parser.refusals():
        print(_run(args))
    return 0


def _run(args: argparse.Namespace) -> str:
    given = {name.replace("-", "_"): getattr(args, name.replace("-", "_")) for name in SWEEPABLE}
    measured = None if args.problem is None else _read(args.problem)
    inputs, caveats = _with_measured(given, measured, args)
    _check_modes(args, given, inputs)
    calibrations = CALIBRATIONS if args.calibration is None else (args.calibration,)
    if args.sweep is not None:
        return _sweep_rows(args, inputs, calibrations, caveats)
    if args.solve_for is not None:
        return _solutions(args, inputs, calibrations, caveats)
    answers, unmet = _calculate(args, inputs, args.result, calibrations)
    answered = {answer.result.id for answer in answers}
    for item in unmet:
        if not answers or (args.result and item.result.id not in answered):
            raise check.PreconditionError(item.reason)
    shown = {**inputs, "r": inputs["d"] if inputs["r"] is None else inputs["r"]}
    if args.format == "table":
        return render.as_table(answers, unmet, shown, caveats)
    if args.format == "latex":
        return render.as_latex(answers, caveats)
    rows = [render.row(answer) for answer in answers]
    return render.as_csv(rows, caveats) if args.format == "csv" else render.as_json(shown, rows, unmet, caveats)


def _read(path: Path) -> ProblemFile:
    try:
        return problem_file.read(path)
    except (OSError, ValueError) as error:
        raise ValueError(f"--problem {path}: {error.strerror if isinstance(error, OSError) else error}") from None


def _with_measured(
    given: dict[str, Any], measured: ProblemFile | None, args: argparse.Namespace
) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Returns the calculator's inputs, by name, and the sentences (caveats) that a problem file asks to be shown.

    A flag takes precedence over the file, and the file over the default. given: the values of the flags, None where a
    flag is not given. measured: the problem file, if one is given. args: the flags as parsed.
    """
    sought = args.solve_for if args.sweep is None else args.sweep[0]
    constants = {} if measured is None else {k: v for k, v in measured.constants.items() if k != sought}
    replaced = [name for name in CONSTANTS if name in constants and given[name] is not None]
    tails = {name: value for name in TAILS if (value := getattr(args, name)) is not None}
    known = {**DEFAULTS, **constants, **({"lipschitz": None} if tails else {})}
    inputs = {name: known.get(name) if value is None else value for name, value in given.items()}
    inputs["direction"], inputs["difference"] = args.direction, args.difference
    inputs |= tails
    notes = tuple(
        f"{name} = {given[name]:g} was given and replaces the file's {constants[name]:g}" for name in replaced
    )
    if "lipschitz" in constants and tails:
        notes += (f"{', '.join(tails)} was given and replaces the file's lipschitz = {constants['lipschitz']:g}",)
    return inputs, (() if measured is None else measured.caveats) + notes


def _check_modes(args: argparse.Namespace, given: dict[str, Any], inputs: dict[str, Any]) -> None:
    """Raise ValueError where a flag needs another one that is missing, or excludes another one that is given.

    args: the flags as parsed. given: the values of those that describe the problem and the run, by name. inputs: these
    with the values of the problem file and the defaults.
    """
    sought = args.solve_for if args.sweep is None else args.sweep[0]
    rules = (
        ((args.solve_for is None) == (args.target is None), "--solve-for and --target must be given together"),
        (args.sweep is None or args.solve_for is None, "--sweep and --solve-for must not be given together"),
        (not args.poisson or inputs["max_points"] is not None, "--poisson must come with --max-points"),
        (sought is None or args.format != "latex", "--format latex must come without --sweep and --solve-for"),
    )
    for holds, statement in rules:
        if not holds:
            raise ValueError(statement)
    if sought is not None and given[sought] is not None:
        flag, how = sought.replace("_", "-"), "--sweep" if args.sweep is not None else "--solve-for"
        does = "gives it its values" if args.sweep is not None else "finds it"
        raise ValueError(f"--{flag} must not be given with {how} {flag}: {how} {does}")
    for name in (*SOLVABLE, "delta"):
        if name != sought and inputs[name] is None:
            raise ValueError(f"{name} must be given")


def _calculate(
    args: argparse.Namespace,
    inputs: dict[str, Any],
    results: Sequence[str] | None,
    calibrations: Sequence[str],
    minimise: bool = True,
) -> tuple[list[Calculated], list[Unmet]]:
    fields = {name: inputs[name] for name in ("n", *CONSTANTS, "pl", *TAILS) if inputs.get(name) is not None}
    problem = Problem(**{**fields, "r": inputs["d"] if inputs["r"] is None else inputs["r"]})
    answers, unmet = calculate(
        problem,
        inputs["epsilon"],
        inputs["delta"],
        results=results,
        calibrations=calibrations,
        max_steps=inputs["max_steps"],
        max_evaluations=inputs["max_evaluations"],
        max_points=inputs["max_points"],
        direction=args.direction,
        difference=args.difference,
        directions_per_step=inputs["directions_per_step"],
        minimise=minimise,
    )
    if args.poisson and minimise:
        answers = [_with_batches(problem, answer, args.direction, inputs) for answer in answers]
    if args.confidence is None or not minimise:
        return answers, unmet
    return [_with_one_run(problem, answer, args.confidence) for answer in answers], unmet


def _with_batches(problem: Problem, answer: Calculated, direction: str, inputs: dict[str, Any]) -> Calculated:
    """Returns the answer with a note of the best Poisson batches for the cap on evaluations of losses.

    Only the answer of theorem-3-sharp by the exact calibration gets one. problem: the constants. direction: the law of
    the directions. inputs: the calculator's inputs, by name, which have the cap and the privacy target.
    """
    if answer.result.id != "theorem-3-sharp" or answer.calibration != "exact":
        return answer
    p = prescribe_for_points(
        problem, inputs["epsilon"], inputs["delta"], max_points=inputs["max_points"], direction=direction
    )
    note = (
        f"Poisson batches of {p.sample_rate * p.n:.4g} expected samples: bound {p.bound:.4g} with {p.difference} "
        f"differences, K = {p.directions_per_step}, {p.steps} steps, alpha = {p.step_size:.4g}, C = {p.clip:.4g}, "
        f"lambda = {p.smoothing:.4g}, sigma = {p.noise_std:.4g}"
    )
    return dataclasses.replace(answer, notes=(*answer.notes, note))


def _with_one_run(problem: Problem, answer: Calculated, confidence: float) -> Calculated:
    """Returns the answer with a note of a bound that a single run meets with probability `confidence`.

    Only the answer of theorem-3-sharp gets one. problem: the constants.
    """
    if answer.result.id != "theorem-3-sharp":
        return answer
    bound = certify_run(problem, RunParameters.of(answer.prescription), failure=1 - confidence).bound
    note = f"one run: its mean of ||grad F_S(x_t)||^2 is at most {bound:.4g} with probability at least {confidence:g}"
    return dataclasses.replace(answer, notes=(*answer.notes, note))


def _sweep_rows(
    args: argparse.Namespace, inputs: dict[str, Any], calibrations: Sequence[str], caveats: Sequence[str]
) -> str:
    name, values = args.sweep
    rows: list[dict[str, Any]] = []
    unmet: list[Unmet] = []
    for value in values:
        answers, refused = _calculate(args, {**inputs, name: value}, args.result, calibrations)
        rows += [{name: value, **render.row(answer)} for answer in answers]
        unmet += refused
    if not rows:
        raise check.PreconditionError(unmet[0].reason)
    given = {**inputs, name: values}
    return _flat(args.format, name, rows, given, unmet, caveats)


def _solutions(
    args: argparse.Namespace, inputs: dict[str, Any], calibrations: Sequence[str], caveats: Sequence[str]
) -> str:
    """Returns the output of --solve-for: for each result and calibration, the value whose bound meets --target.

    args: the flags. inputs: the calculator's inputs, by name; the one that is sought is None. calibrations: the ways to
    compute the noise. caveats: sentences of warning from the problem file.
    """
    name = args.solve_for
    target = args.target
    lowest = 1 if inputs["r"] is None else math.ceil(inputs["r"])
    first = {**inputs, name: {"n": END_OF_INTEGERS, "epsilon": 1.0, "d": lowest}[name]}
    ids = args.result or [answer.result.id for answer in _calculate(args, first, None, ["exact"], minimise=False)[0]]
    rows: list[dict[str, Any]] = []
    for id in ids:
        for calibration in calibrations:

            def bound(value: float, id: str = id, calibration: str = calibration) -> float | None:
                answers, _ = _calculate(args, {**inputs, name: value}, [id], [calibration], minimise=False)
                return answers[0].prescription.bound if answers else None

            def meets(value: float, bound: Callable[[float], float | None] = bound) -> bool:
                reached = bound(value)
                return reached is not None and reached <= target

            if name in EASIEST and (least := bound(EASIEST[name])) is not None and least > target:
                continue
            value: float | None
            if name == "d":
                value = largest_integer(meets, lowest, END_OF_INTEGERS)
            elif name == "n":
                value = smallest_integer(meets, 1, END_OF_INTEGERS)
            else:
                value = smallest_real(meets, SMALLEST_EPSILON, LARGEST_EPSILON)
            if value is not None:
                answers, _ = _calculate(args, {**inputs, name: value}, [id], [calibration])
                row = render.row(answers[0])
                if value == END_OF_SEARCH.get(name):
                    row["notes"].append(f"{name} = {value:g} is the end of the search, and meets the target")
                rows.append({name: value, **row})
    if not rows:
        raise check.PreconditionError(f"no {name} meets --target {target:g} for {', '.join(ids)}")
    return _flat(args.format, name, rows, {**inputs, "solve_for": name, "target": target}, [], caveats)


def _flat(
    form: str,
    name: str,
    rows: list[dict[str, Any]],
    inputs: dict[str, Any],
    unmet: Sequence[Unmet],
    caveats: Sequence[str],
) -> str:
    if form == "json":
        return render.as_json(inputs, rows, unmet, caveats)
    return render.as_csv(rows, caveats) if form == "csv" else render.as_rows(name, rows, caveats)


if __name__ == "__main__":
    sys.exit(main())
