"""Formats the results of the calculator (`dpzero_theory.params`) as text tables, JSON, CSV or LaTeX."""

import csv
import io
import itertools
import json
from collections.abc import Mapping, Sequence
from typing import Any

from dpzero_theory.theory.results import Calculated, Unmet

# The rows of a result's table: the name of a field or property of `Prescription`, its letter in plain text, its letter
# in LaTeX, and what it is in words
_ROWS: tuple[tuple[str, str, str, str], ...] = (
    ("gdp", "mu", r"\mu", "privacy of the whole run (mu-GDP)"),
    ("step_size", "alpha", r"\alpha", "step size"),
    ("directions_per_step", "K", "K", "directions a step"),
    ("T", "T", "T", "steps of the formula"),
    ("steps", "", r"[T]", "steps to run"),
    ("smoothing", "lambda", r"\lambda", "smoothing"),
    ("clip", "C", "C", "clip"),
    ("noise_std", "sigma", r"\sigma", "noise standard deviation"),
    ("evaluations", "n K T", "nKT", "gradient computations"),
    ("points", "", r"\text{points}", "evaluations of a sample's loss"),
    ("bound", "bound", r"\text{bound}", "bound of the theorem"),
    ("bound_at_steps", "", r"\text{bound at integer } T", "guarantee of the run"),
)

# Fields of `Prescription` that tables leave out if a numerical search, and not a formula, gives the parameters
_FORMULA_ONLY = ("T", "bound_at_steps")

# What tables show as the source of a field of `Prescription` for which `_Result.formulas` has no text
_SOURCES = {
    "gdp": "paper: epsilon/sqrt(8 log(e + epsilon/delta)); exact: delta(epsilon; mu) = delta",
    "steps": "the whole number beside T with the better guarantee",
    "noise_std": "2 C sqrt(T)/(n mu), replace-one",
    "points": "n T 2 K (central), n T (K + 1) (forward, exact)",
    "bound_at_steps": "the proof's inequality at the steps to run",
}


def row(answer: Calculated) -> dict[str, Any]:
    """Return one result of `theory.results.calculate` as a dictionary, an entry of "results" in the JSON output.

    Most keys are fields or properties of `theory.problem.Prescription`: the texts `id`, `algorithm`, `guarantee` (what
    is bounded), `relation`, `sampling`, `direction` and `difference`; the numbers `gdp`, `step_size`,
    `directions_per_step`, `smoothing`, `clip` and `noise_std`; the number of steps before rounding, `T`, with its
    `bound`, and after rounding, `steps`, with its `bound_at_steps`; how many finite differences (`evaluations`) and
    losses (`points`) of single samples the run computes; `trivial_bound`, which holds for every algorithm, and
    `vacuous`, True if `bound` is not below that. The others are

        calibration   "paper" or "exact": how the mu of Gaussian DP was computed from (epsilon, delta)
        form          "closed-form" if formulas give the parameters, "minimised" if a numerical search does
        notes         a list of sentences for the reader
    """
    p = answer.prescription
    return {
        "id": p.id,
        "algorithm": p.algorithm,
        "calibration": answer.calibration,
        "form": "minimised" if answer.result.search is not None else "closed-form",
        "guarantee": p.guarantee,
        "relation": p.relation,
        "sampling": p.sampling,
        "direction": p.direction,
        "difference": p.difference,
        **{field: getattr(p, field) for field, *_ in _ROWS},
        "trivial_bound": p.trivial_bound,
        "vacuous": p.vacuous,
        "notes": list(answer.notes),
    }


def as_json(
    inputs: Mapping[str, Any], rows: Sequence[Mapping[str, Any]], unmet: Sequence[Unmet], caveats: Sequence[str] = ()
) -> str:
    """Return the JSON output as text: {"inputs": {...}, "caveats": [...], "results": [...], "unmet": [...]}.

    Args:
        inputs: what the user asked for, by the name of the input, for example {"n": 10000, "epsilon": 2.0}.
        rows: the results, each a dictionary made by `row`.
        unmet: the theorems that do not apply, with the reasons.
        caveats: sentences of warning, from the problem file.
    """
    refused = [{"id": u.result.id, "calibration": u.calibration, "reason": u.reason} for u in unmet]
    given = {**inputs, "relation": "replace-one", "sampling": "full"}
    content = {"inputs": given, "caveats": list(caveats), "results": list(rows), "unmet": refused}
    return json.dumps(content, indent=2, allow_nan=False)


def as_csv(rows: Sequence[Mapping[str, Any]], caveats: Sequence[str] = ()) -> str:
    """Return CSV text: a header line with the keys of `row`, and one line for each result.

    Args:
        rows: the results, at least one, each a dictionary made by `row`.
        caveats: sentences of warning, from the problem file. They are added to the column "notes" of every line.
    """
    flat = [{**item, "notes": " ".join([*caveats, *item["notes"]])} for item in rows]
    out = io.StringIO()
    writer = csv.DictWriter(out, list(flat[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(flat)
    return out.getvalue().rstrip("\n")


def as_table(
    answers: Sequence[Calculated], unmet: Sequence[Unmet], inputs: Mapping[str, Any], caveats: Sequence[str] = ()
) -> str:
    """Return plain text with a table for each theorem or corollary.

    A table has a line for each parameter and bound, with a column for each calibration ("paper" and "exact": two ways
    to compute the mu of Gaussian DP from epsilon and delta) and a column for the formula.

    Args:
        answers: the results, as `theory.results.calculate` returns them.
        unmet: the theorems that do not apply, with the reasons; they are listed after the tables.
        inputs: what the user asked for, by the name of the input; it is shown in the heading.
        caveats: sentences of warning, from the problem file; they are shown in the heading.
    """
    lines = _heading(inputs, caveats)
    for _, block in itertools.groupby(answers, key=lambda answer: answer.result.id):
        lines += ["", *_block(list(block))]
    for item in unmet:
        lines += ["", f"{item.result.id} ({item.calibration}) does not apply: {item.reason}"]
    return "\n".join(lines)


def _heading(inputs: Mapping[str, Any], caveats: Sequence[str]) -> list[str]:
    numbers = {name: value for name, value in inputs.items() if isinstance(value, (int, float))}
    numbers.pop("directions_per_step", None)
    given = "  ".join(f"{name} = {value:g}" for name, value in numbers.items())
    k, rule = inputs["directions_per_step"], inputs["difference"]
    return [
        given,
        "privacy: replace-one neighbours, full batches, scalar or vector Gaussian noise",
        f"directions: {inputs['direction']}, {k} a step; differences: {rule}",
        *(f"caveat: {caveat}" for caveat in caveats),
    ]


def _aligned(table: Sequence[Sequence[str]]) -> list[str]:
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    return ["  ".join(f"{cell:>{w}}" for cell, w in zip(line, widths, strict=True)).rstrip() for line in table]


def as_settings(
    answers: Sequence[Calculated], unmet: Sequence[Unmet], inputs: Mapping[str, Any], caveats: Sequence[str] = ()
) -> str:
    """Return plain text with one table of what to set and what is guaranteed, a line for each theorem or corollary.

    Args:
        answers: the results, as `theory.results.calculate` returns them for one calibration.
        unmet: the theorems that do not apply, with the reasons; they are listed after the table.
        inputs: what the user asked for, by the name of the input; it is shown in the heading.
        caveats: sentences of warning, from the problem file; they are shown in the heading.
    """
    fields = ("step_size", "directions_per_step", "steps", "smoothing", "clip", "noise_std", "bound_at_steps")
    table = [["result", "step size", "K", "steps", "smoothing", "clip", "noise", "promise"]]
    notes: list[str] = []
    for answer in answers:
        table.append([answer.result.id, *(_shown(getattr(answer.prescription, field)) for field in fields)])
        notes += [f"note ({answer.result.id}): {note}" for note in answer.notes]
    promised: dict[str, list[str]] = {}
    for answer in answers:
        promised.setdefault(answer.result.guarantee, []).append(answer.result.id)
    return "\n".join(
        [
            *_heading(inputs, caveats),
            *("", *_aligned(table), ""),
            "noise: the standard deviation of what is added to the average of the clipped differences",
            *(f"promise ({', '.join(ids)}): an upper bound on {what}" for what, ids in promised.items()),
            *notes,
            *(f"{item.result.id} does not apply: {item.reason}" for item in unmet),
            "--full says where each number comes from, and what each result assumes",
        ]
    )


def as_rows(variable: str, rows: Sequence[Mapping[str, Any]], caveats: Sequence[str] = ()) -> str:
    """Return plain text with one table of the answers of `python -m dpzero_theory.params --solve-for`.

    The notes of the results and the caveats stand below the table.

    Args:
        variable: the input that was solved for, "n", "epsilon" or "d"; it is the first column.
        rows: the results, each a dictionary made by `row` with the found value added under the name of this input.
        caveats: sentences of warning, from the problem file.
    """
    table = [[variable, "result", "calibration", "K", "T", "C", "bound"]]
    table += [
        [
            _shown(item[variable]),
            item["id"],
            item["calibration"],
            *(_shown(item[name]) for name in ("directions_per_step", "steps", "clip")),
            _shown(item["bound"]) + ("*" if item["vacuous"] else " "),
        ]
        for item in rows
    ]
    legend = ["* not below the trivial bound"] if any(item["vacuous"] for item in rows) else []
    notes = [f"note ({item['id']}, {item['calibration']}): {note}" for item in rows for note in item["notes"]]
    return "\n".join([*_aligned(table), *legend, *notes, *(f"caveat: {caveat}" for caveat in caveats)])


def _block(block: Sequence[Calculated]) -> list[str]:
    result = block[0].result
    header = ["", "", *(answer.calibration for answer in block), "where it comes from"]
    table = [header]
    for field, letter, _, words in _ROWS:
        if result.search is not None and field in _FORMULA_ONLY:
            continue
        source = result.formulas.get(field) or _SOURCES.get(field, "")
        table.append([letter, words, *(_shown(getattr(answer.prescription, field)) for answer in block), source])
    widths = [max(len(line[i]) for line in table) for i in range(len(header) - 1)]
    lines = [result.title, f"  bounds {result.guarantee}; assumes {result.assumptions}"]
    for line in table:
        left = "  ".join(
            f"{cell:<{w}}" if i < 2 else f"{cell:>{w}}" for i, (cell, w) in enumerate(zip(line, widths, strict=False))
        )
        lines.append(f"  {left}  {line[-1]}".rstrip())
    for answer in block:
        lines += [f"  note ({answer.calibration}): {note}" for note in answer.notes]
    return lines


def _shown(value: float | int) -> str:
    if isinstance(value, int):
        return f"{value:,}" if value < 10**15 else f"{value:.3e}"
    return f"{value:.4g}" if 1e-3 <= abs(value) < 1e5 or value == 0 else f"{value:.3e}"


def as_latex(answers: Sequence[Calculated], caveats: Sequence[str] = ()) -> str:
    r"""Return LaTeX text with a booktabs table for each theorem or corollary, to be used with \input.

    Args:
        answers: the results, as `theory.results.calculate` returns them.
        caveats: sentences of warning, from the problem file; they become LaTeX comments.
    """
    out = [f"% caveat: {caveat}" for caveat in caveats]
    for _, group in itertools.groupby(answers, key=lambda answer: answer.result.id):
        block = list(group)
        result = block[0].result
        out += [
            f"% {result.title}",
            rf"\begin{{tabular}}{{ll{'r' * len(block)}}}",
            r"\toprule",
            " & ".join(["", "", *(answer.calibration for answer in block)]) + r" \\",
            r"\midrule",
        ]
        for field, _, latex, words in _ROWS:
            cells = [_latex_number(getattr(answer.prescription, field)) for answer in block]
            out.append(" & ".join([f"${latex}$", words, *cells]) + r" \\")
        out += [r"\bottomrule", r"\end{tabular}", ""]
    return "\n".join(out).rstrip("\n")


def _latex_number(value: float | int) -> str:
    text = _shown(value).replace(",", r"\,")
    mantissa, _, exponent = text.partition("e")
    return rf"${mantissa} \times 10^{{{int(exponent)}}}$" if exponent else f"${text}$"
