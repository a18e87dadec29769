"""Formats the answers of the calculator (`params`) as a text table, JSON, CSV or LaTeX; every function returns text."""

import csv
import io
import itertools
import json
from collections.abc import Mapping, Sequence
from typing import Any

from dpzero_theory.theory.results import Calculated, Unmet

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
"""The rows of the table of an answer.

Each row has the name of a field or property of `Prescription`, its letter in plain text, its letter in LaTeX, and
what it is in words.
"""

_FORMULA_ONLY = ("T", "bound_at_steps")
"""The fields of `Prescription` that text tables leave out for a result without a closed form, whose parameters are
searched for."""

_SOURCES = {
    "gdp": "paper: epsilon/sqrt(8 log(e + epsilon/delta)); exact: delta(epsilon; mu) = delta",
    "steps": "the whole number beside T with the better guarantee",
    "noise_std": "2 C sqrt(T)/(n mu), replace-one",
    "points": "n T 2 K (central), n T (K + 1) (forward, exact)",
    "bound_at_steps": "the proof's inequality at the steps to run",
}
"""The formula that tables show for a field of `Prescription` where the theorem itself displays none, by the field."""


def row(answer: Calculated) -> dict[str, Any]:
    """Return one answer of `theory.results.calculate` as an entry of "results" in the JSON output, a dictionary.

    Its keys are `id` (such as "theorem-3"), `algorithm` ("dpzero" or "dpgd-0th"), `calibration` ("paper" or "exact":
    how mu follows from epsilon and delta), `form` ("minimised" or "closed-form"), `guarantee` (a formula for what is
    bounded), `relation`, `sampling`, `direction` (the law's name), `difference` ("central", "forward" or "exact"),
    `vacuous` (a boolean: `bound` is not below `trivial_bound`), `notes` (a list of sentences), and numbers that are
    fields of `theory.problem.Prescription`, never None: `gdp` (mu), `step_size`, `directions_per_step`, `T` (the
    formula's number of steps), `steps` (the whole number to run), `smoothing`, `clip`, `noise_std`, `evaluations`
    (differences of single samples), `points` (losses of single samples), `bound` (at T), `bound_at_steps`,
    `trivial_bound`.
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
        inputs: what the user asked for, by name.
        rows: the results, each made by `row`.
        unmet: the theorems that do not apply, with the reasons.
        caveats: sentences of warning from the problem file.
    """
    refused = [{"id": u.result.id, "calibration": u.calibration, "reason": u.reason} for u in unmet]
    given = {**inputs, "relation": "replace-one", "sampling": "full"}
    content = {"inputs": given, "caveats": list(caveats), "results": list(rows), "unmet": refused}
    return json.dumps(content, indent=2, allow_nan=False)


def as_csv(rows: Sequence[Mapping[str, Any]], caveats: Sequence[str] = ()) -> str:
    """Return CSV with a header line, the keys of `row`, and one line for each of the rows.

    Args:
        rows: the answers, one or more, each made by `row`, for a theorem and a calibration ("paper" or "exact").
        caveats: sentences of warning, `ProblemFile.caveats`, which are put into the column "notes".
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
    """Return a text with a table for each theorem or corollary.

    A table has a row for each parameter and bound, a column for each calibration, and a column with the formulas.

    Args:
        answers: the answers of `theory.results.calculate`.
        unmet: the theorems that do not apply, with the reasons, which are listed after the tables.
        inputs: what the user asked for, by name, for the heading.
        caveats: sentences of warning from the problem file.
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
    """Return a text for readers who will run the algorithm: what to set, and what each result then promises.

    Args:
        answers: the results, each a line of a table; all of one calibration, "paper" or "exact" (how mu of Gaussian DP
            follows from epsilon and delta).
        unmet: the theorems that do not apply, with the reasons; a line each below the table.
        inputs, caveats: what the user asked for, by name, and warnings from the problem file; the heading.
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
    """Return a text table of `python -m dpzero_theory.params --solve-for`, which finds n, epsilon or d: a line for each
    row, and below it the rows' notes and the caveats.

    Args:
        variable: the name of the number that is solved for, the first column.
        rows: the results, each a dictionary made by `row`, with the value of the variable added under its name. Columns
            are `id`, `calibration`, `directions_per_step` (K), `steps` (T), `clip` (C) and `bound`, with a star if
            `vacuous`.
        caveats: sentences of warning from the problem file.
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
    """Return LaTeX with a booktabs table for each theorem or corollary, ready for \\input.

    Args:
        answers: the answers of `theory.results.calculate`.
        caveats: sentences of warning from the problem file, which become comments.
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
