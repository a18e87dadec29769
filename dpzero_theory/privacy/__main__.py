"""Noise, epsilon, delta, steps, batch or n, from the other five: `python -m dpzero_theory.privacy`.

    --epsilon 2 --delta 1e-5 --steps 10000 --n 1024 --batch 64 --sampling poisson --relation add-remove
    --noise-multiplier 12.5 --delta 1e-5 --steps 10000 --n 1024 --batch 64 --sampling poisson
    --epsilon 2 --noise-multiplier 12.5 --delta 1e-5 --n 1024 --batch 64 --sampling poisson

The noise multiplier is the standard deviation of the noise on the sum of a batch over the per-record clip. Without
--batch every step uses all n records; with it --sampling must say how batches are drawn.
"""

import argparse
import json
import sys
import time
from collections.abc import Sequence
from typing import Any

from dpzero_theory import check
from dpzero_theory.cli import Parser, command, integer, number, output_file
from dpzero_theory.privacy.accountant import weak
from dpzero_theory.privacy.calibration import LARGEST_EPSILON
from dpzero_theory.privacy.certificate import privacy_certificate
from dpzero_theory.privacy.relation import Relation
from dpzero_theory.privacy.risk import advantage, true_positive_rate
from dpzero_theory.privacy.sampling import SAMPLINGS, sampling_of
from dpzero_theory.privacy.solve import solved
from dpzero_theory.privacy.step import Step, step_of, steps_in

# With these samplings --noise-multiplier must be at least this, because less noise needs a grid with too many points.
_SUBSAMPLED, _LEAST_SUBSAMPLED = ("poisson", "fixed-size"), 0.03
_RELATION = "replace-one"  # the neighbouring relation if the command line names none; the answer then says so
_RATES = (0.01, 0.001)  # the false positive rates at which `--risk` states the true positive rate of the best attack
_FLAGS = {  # the flag of each of the six numbers, by its name; the command finds one of them from the other five
    name: "--" + name.replace("_", "-") for name in ("epsilon", "noise_multiplier", "delta", "steps", "n", "batch")
}


def _parser() -> Parser:
    parser = Parser(
        "dpzero_theory.privacy", __doc__, aliases={"target_epsilon": "--epsilon", "target_delta": "--delta"}
    )
    add = parser.add_argument_group("the question: the one that is left out is found").add_argument
    add("--epsilon", type=number(above=0.0, at_most=LARGEST_EPSILON), help="the target, > 0")
    add("--noise-multiplier", type=number(at_least=1e-6, at_most=1e12), help="of the noise on the sum")
    add("--delta", type=number(above=0.0, below=1.0), help="in (0, 1)")
    add("--steps", type=integer(at_most=10**12), help="number of releases, >= 1")
    passes = "in place of --steps: passes over the records, of n / batch steps each"
    add("--epochs", type=number(above=0.0, at_most=1e12), help=passes)
    add("--n", type=integer(at_most=10**18), help="number of records")
    add("--batch", type=integer(at_most=10**18), help="(expected) records in a batch, 1 <= batch <= n")
    solved_for = "what to find (default: the one that is left out)"
    add("--solve-for", choices=[flag[2:] for flag in _FLAGS.values()], help=solved_for)
    add(
        "--sampling",
        type=_sampling,
        metavar=f"{{{','.join(name + kind.arguments for name, kind in SAMPLINGS.items())}}}",
        help="how batches are drawn; needed with --batch. B: the largest batch, or groups that take turns. K: steps of"
        " an epoch that a record is in",
    )
    add("--relation", choices=tuple(Relation), help=f"which data sets are neighbours (default: {_RELATION})")
    add("--group", type=integer(at_most=10**6), default=1, help="records in which neighbours differ: a user's at most")
    parser.add_argument("--format", choices=("table", "json"), default="table")
    parser.add_argument("--risk", action="store_true", help="say what the best attack on one record gains, too")
    written = "write the answer as a privacy certificate, for `python -m dpzero_theory.privacy.checker FILE`"
    parser.add_argument("--certificate", type=output_file(".json"), metavar="FILE", help=written)
    return parser


def _sampling(text: str) -> str:
    try:
        return sampling_of(text, 1e-15 if text != "full" else 1).word
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error).removeprefix("sampling ")) from None


def _question(options: argparse.Namespace) -> tuple[str, dict[str, Any]]:
    # The name of the number to find, and the keyword arguments of `solve.solved`, in which this number is None
    given, sampling = {name: getattr(options, name) for name in _FLAGS}, options.sampling
    if options.epochs is not None:
        if None in (given["n"], given["batch"]) or given["steps"] is not None:
            raise ValueError("--epochs must come with --n and --batch, and without --steps")
        given["steps"] = steps_in(options.epochs, given["n"], given["batch"])
    sought = _left_out(given, sampling) if options.solve_for is None else str(options.solve_for).replace("-", "_")
    if given["batch"] is None and sought != "batch":
        if sampling not in (None, "full"):
            raise ValueError(f"--batch must be given with --sampling {sampling}")
        if sought == "n":
            raise ValueError("--batch must be given with --solve-for n: with full batches n does not matter")
        given["batch"], sampling = given["n"], "full"
    elif sampling is None:
        raise ValueError(f"--sampling must be given with --batch: one of {', '.join(SAMPLINGS)}")
    for name, value in given.items():
        if value is None and name != sought:
            raise ValueError(f"{_FLAGS[name]} must be given")
    if given[sought] is not None:
        raise ValueError(f"{_FLAGS[sought]} must not be given: it is the one to find")
    n, batch, noise = given["n"], given["batch"], given["noise_multiplier"]
    if n is not None:
        check.integer("--group", options.group, at_most=n)
        check.integer("--batch", 1 if batch is None else batch, at_most=n)
        if sampling == "full" and batch not in (None, n):
            raise ValueError(f"--batch must be n = {n} with --sampling full; got {batch}")
    drawn = sampling_of(sampling, None if sampling == "full" else 1e-15)
    if drawn.records is not None:
        drawn.batch_size(n)
    if sampling in _SUBSAMPLED and noise is not None:
        check.real(f"--noise-multiplier with --sampling {sampling}", noise, at_least=_LEAST_SUBSAMPLED)
    return sought, {**given, "sampling": sampling, "relation": options.relation or _RELATION, "group": options.group}


def _left_out(given: dict[str, Any], sampling: str | None) -> str:
    # The name of the number to find: epsilon or noise_multiplier if one of them is None (the caller refuses other
    # gaps), else the only other one that is None, apart from the batch, which full batches do not need.
    targets = [name for name in ("epsilon", "noise_multiplier") if given[name] is None]
    if len(targets) == 2:
        raise ValueError("one of --epsilon, --noise-multiplier must be given")
    if targets:
        return targets[0]
    gaps = [name for name, value in given.items() if value is None]
    if len(gaps) == 2 and "batch" in gaps and sampling in (None, "full"):
        gaps.remove("batch")
    if len(gaps) != 1 or (gaps == ["batch"] and sampling is None):
        found = ", ".join(_FLAGS[name] for name in gaps) or "none"
        rule = "--noise-multiplier with --epsilon must leave out one of the other four (--batch with a --sampling)"
        raise ValueError(f"{rule}; got {found} left out")
    return gaps[0]


def _answer(sought: str, given: dict[str, Any]) -> tuple[dict[str, Any], Step]:
    started = time.perf_counter()
    bracket = solved(sought, **given)
    seconds = time.perf_counter() - started
    value = int(bracket.value) if sought in ("steps", "batch", "n") else bracket.value
    whole = {**given, sought: value}
    rates = [None if None in (of["n"], of["batch"]) else of["batch"] / of["n"] for of in (given, whole)]
    words = {"sampling": given["sampling"], "sample_rate": rates[1], "relation": given["relation"]}
    unit = step_of(whole["noise_multiplier"], whole["steps"], **words)
    change = unit.sampling.largest_change(unit.relation)
    reached = {name: whole[name] for name in ("epsilon", "delta", "n", "group")}
    answer: dict[str, Any] = {
        "inputs": {**{name: given[name] for name in _FLAGS}, **words, "sample_rate": rates[0], "group": given["group"]},
        "answer": sought,
        sought: value,
        "bracket": {"lower": bracket.lower, "value": bracket.value, "upper": bracket.upper},
        "method": bracket.method,
        "sensitivity": change,
        "noise_over_sensitivity": unit.noise / change,
        "notes": list(dict.fromkeys([*bracket.notes, *weak(**reached)])),
        "seconds": seconds,
    }
    return answer, unit


def _table(answer: dict[str, Any]) -> str:
    inputs, bracket = answer["inputs"], answer["bracket"]
    name = answer["answer"]
    known = ", ".join(
        f"{asked} {inputs[asked]:g}" if isinstance(inputs[asked], float) else f"{asked} {inputs[asked]}"
        for asked in _FLAGS
        if inputs[asked] is not None
    )
    lines = [
        f"{known}, sampling {inputs['sampling']}, relation {inputs['relation']}"
        + (f", groups of {inputs['group']} records" if inputs["group"] > 1 else ""),
        f"{name} = {bracket['value']:.10g}   (exact value in [{bracket['lower']:.10g}, {bracket['upper']:.10g}];"
        f" {answer['method']}, {1e3 * answer['seconds']:.0f} ms)",
    ]
    if name == "noise_multiplier":
        lines.append(
            f"noise of standard deviation {bracket['value']:.10g} x clip on the sum of a batch"
            f" ({answer['noise_over_sensitivity']:.10g} x the sensitivity of {answer['sensitivity']}"
            f" clip{'s' if answer['sensitivity'] > 1 else ''})"
        )
    for measure, found in answer.get("risk", {}).items():
        lines.append(f"{measure.replace('_', ' ')} of the best attack = {found['value']:.6g}")
    lines += [f"note: {note}" for note in answer["notes"]]
    return "\n".join(lines)


@command
def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command `python -m dpzero_theory.privacy`. It prints the noise multiplier, epsilon, delta, steps, batch
    or n of a run, found from the other five. `argv` are the words after the command; None takes the words that the
    process was started with, and ["--help"] prints all options. Returns 0. For bad input the process exits with status
    2 and prints one line on standard error."""
    parser = _parser()
    options = parser.parse_args(argv)
    with parser.refusals():
        for flag in ("risk", "certificate"):
            if getattr(options, flag) and options.group > 1:
                raise ValueError(f"--{flag} must come without --group: it is about one record")
        answer, history = _answer(*_question(options))
        if options.relation is None:
            answer["notes"].append(f"the relation is {_RELATION}, the default, as --relation was not given")
        if options.risk:
            found = {f"true_positive_rate_at_{rate:g}": true_positive_rate(history, rate) for rate in _RATES}
            found["advantage"] = advantage(history)
            ends = ("lower", "value", "upper")
            answer["risk"] = {name: {end: getattr(found[name], end) for end in ends} for name in sorted(found)}
        if options.certificate is not None:
            certificate = privacy_certificate(history, answer["inputs"]["delta"] or answer["delta"])
            options.certificate.write_text(json.dumps(certificate, indent=2) + "\n")
            stated = certificate["statement"]
            answer["notes"].append(f"{options.certificate} states ({stated['epsilon']:g}, {stated['delta']:g})")
    print(json.dumps(answer, indent=2) if options.format == "json" else _table(answer))
    return 0


if __name__ == "__main__":
    sys.exit(main())
