"""Formats the answers of the calculator (`params`) as a table, JSON, CSV or LaTeX."""

import csv
import io
import json
from collections.abc import Mapping, Sequence
from typing import Any

from dpzero_theory.theory.calculate import Calculated, Unmet
from dpzero_theory.theory.problem import Prescription

ROWS: tuple[tuple[str, str, str, str], ...] = (
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
    ("bound", "bound", r"\text{bound}", "certified bound"),
    ("bound_at_steps", "", r"\text{bound at integer } T", "inequality at the steps to run"),
)
"""The rows of the table of an answer.

Each row has the name of a field or property of `Prescription`, its letter in plain text, its letter in LaTeX, and
what it is in words.
"""

FORMULA_ONLY = ("T", "bound_at_steps")
"""The fields of `Prescription` that text tables leave out for a result without a closed form, whose parameters are
searched for."""

SOURCES = {
    "gdp": "paper: epsilon/sqrt(8 log(e + epsilon/delta)); exact: delta(epsilon; mu) = delta",
    "steps": "the neighbour of T with the smaller bound",
    "noise_std": "2 C sqrt(T)/(n mu), replace-one",
    "points": "n T 2 K (central), n T (K + 1) (forward, exact)",
    "bound_at_steps": "un-substituted inequality",
}
"""The formula that tables show for a field of `Prescription` where the theorem itself displays none, by the field."""


def row(answer: Calculated) -> dict[str, Any]:
    """Returns one answer of the calculator as a mapping with the keys of the JSON output.

    The value at "minimised" is a mapping with the numbers for the parameters that minimise the inequality of the
    theorem's proof, or None where there are none.
    """
    p = answer.prescription
    best = answer.best
    return {
        "id": p.id,
        "algorithm": p.algorithm,
        "calibration": answer.calibration,
        "form": "minimised" if answer.result.minimised else "closed-form",
        "guarantee": p.guarantee,
        "relation": p.relation,
        "sampling": p.sampling,
        "direction": p.direction,
        "difference": p.difference,
        **_numbers(p),
        "trivial_bound": p.trivial_bound,
        "vacuous": p.vacuous,
        "minimised": None if best is None else {**_numbers(best), "vacuous": best.vacuous},
        "notes": list(answer.notes),
    }


def _numbers(prescription: Prescription) -> dict[str, float | int]:
    return {field: getattr(prescription, field) for field, *_ in ROWS}


def as_json(
    inputs: Mapping[str, Any], rows: Sequence[Mapping[str, Any]], unmet: Sequence[Unmet], caveats: Sequence[str] = ()
) -> str:
    """Returns the JSON output as text: {"inputs": {...}, "caveats": [...], "results": [...], "unmet": [...]}.

    Args:
        inputs: what the user asked for, by name.
        rows: the results, each made by `row`.
        unmet: the theorems that do not apply, with the reasons.
        caveats: sentences of warning from the problem file.

    NaN or infinity among the numbers raises ValueError.
    """
    refused = [{"id": u.result.id, "calibration": u.calibration, "reason": u.reason} for u in unmet]
    given = {**inputs, "relation": "replace-one", "sampling": "full"}
    content = {"inputs": given, "caveats": list(caveats), "results": list(rows), "unmet": refused}
    return json.dumps(content, indent=2, allow_nan=False)


def as_csv(rows: Sequence[Mapping[str, Any]], caveats: Sequence[str] = ()) -> str:
    """Returns CSV with one line for each result, calibration and form ("closed-form" or "minimised").

    Args:
        rows: the results, each made by `row`.
        caveats: sentences of warning from the problem file, which are put into the column "notes".
    """
    flat: list[dict[str, Any]] = []
    for item in rows:
        shared = {k: v for k, v in item.items() if k not in ("minimised", "form", "notes")}
        notes = " ".join([*caveats, *item["notes"]])
        flat.append({**shared, "form": item["form"], "notes": notes})
        if item["minimised"] is not None:
            flat.append({**shared, **item["minimised"], "form": "minimised", "notes": ""})
    out = io.StringIO()
    writer = csv.DictWriter(out, list(flat[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(flat)
    return out.getvalue().rstrip("\n")


def as_table(
    answers: Sequence[Calculated], unmet: Sequence[Unmet], inputs: Mapping[str, Any], caveats: Sequence[str] = ()
) -> str:
    """Returns a text table with a block for each result of the calculator.

    A block has a row for each of `ROWS`, a column for each calibration and one for the minimised form, and the formula
    from which a number comes.

    Args:
        answers: the answers of the calculator.
        unmet: the theorems that do not apply, with the reasons, which are listed below.
        inputs: what the user asked for, by name, for the heading.
        caveats: sentences of warning from the problem file.
    """
    numbers = {name: value for name, value in inputs.items() if isinstance(value, (int, float))}
    numbers.pop("directions_per_step", None)
    given = "  ".join(f"{name} = {value:g}" for name, value in numbers.items())
    lines = [given, "privacy: replace-one neighbours, full batches, scalar or vector Gaussian noise"]
    k, rule = inputs["directions_per_step"], inputs["difference"]
    lines += [f"directions: {inputs['direction']}, {k} a step; differences: {rule}"]
    lines += [f"caveat: {caveat}" for caveat in caveats]
    for block in _by_result(answers):
        lines += ["", *_block(block)]
    for item in unmet:
        lines += ["", f"{item.result.id} ({item.calibration}) does not apply: {item.reason}"]
    return "\n".join(lines)


def as_rows(variable: str, rows: Sequence[Mapping[str, Any]], caveats: Sequence[str] = ()) -> str:
    """Returns a text table of a sweep or of --solve-for, with a line for each row.

    Args:
        variable: the name of what is varied or solved for, the first column.
        rows: the results, each made by `row`, with the value of the variable added.
        caveats: sentences of warning from the problem file.
    """
    table = [[variable, "result", "calibration", "K", "T", "C", "bound", "minimised"]]
    for item in rows:
        best = item["minimised"]
        table.append(
            [
                _shown(item[variable]),
                item["id"],
                item["calibration"],
                _shown(item["directions_per_step"]),
                _shown(item["steps"]),
                _shown(item["clip"]),
                _shown(item["bound"]) + ("*" if item["vacuous"] else " "),
                "" if best is None else _shown(best["bound"]) + ("*" if best["vacuous"] else " "),
            ]
        )
    widths = [max(len(line[i]) for line in table) for i in range(len(table[0]))]
    lines = ["  ".join(f"{cell:>{w}}" for cell, w in zip(line, widths, strict=True)).rstrip() for line in table]
    return "\n".join([*lines, "* not below the trivial bound", *(f"caveat: {caveat}" for caveat in caveats)])


def _by_result(answers: Sequence[Calculated]) -> list[list[Calculated]]:
    blocks: dict[str, list[Calculated]] = {}
    for answer in answers:
        blocks.setdefault(answer.result.id, []).append(answer)
    return list(blocks.values())


def _columns(block: Sequence[Calculated]) -> list[tuple[str, Prescription]]:
    columns = [(answer.calibration, answer.prescription) for answer in block]
    last = block[-1]
    return columns if last.best is None else [*columns, (f"{last.calibration}, minimised", last.best)]


def _block(block: Sequence[Calculated]) -> list[str]:
    result = block[0].result
    columns = _columns(block)
    header = ["", "", *(name for name, _ in columns), "where it comes from"]
    table = [header]
    for field, letter, _, words in ROWS:
        if result.minimised and field in FORMULA_ONLY:
            continue
        source = result.formulas.get(field) or SOURCES.get(field, "")
        table.append([letter, words, *(_shown(getattr(p, field)) for _, p in columns), source])
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
    """Returns LaTeX with a booktabs table for each result, ready for \\input.

    `answers` are the answers of the calculator, made by `calculate`, and `caveats` are sentences of warning from the
    problem file.
    """
    out = [f"% caveat: {caveat}" for caveat in caveats]
    for block in _by_result(answers):
        columns = _columns(block)
        result = block[0].result
        out += [
            f"% {result.title}",
            rf"\begin{{tabular}}{{ll{'r' * len(columns)}}}",
            r"\toprule",
            " & ".join(["", "", *(name for name, _ in columns)]) + r" \\",
            r"\midrule",
        ]
        for field, _, latex, words in ROWS:
            cells = [_latex_number(getattr(p, field)) for _, p in columns]
            out.append(" & ".join([f"${latex}$", words, *cells]) + r" \\")
        out += [r"\bottomrule", r"\end{tabular}", ""]
    return "\n".join(out).rstrip("\n")


def _latex_number(value: float | int) -> str:
    text = _shown(value).replace(",", r"\,")
    mantissa, _, exponent = text.partition("e")
    return rf"${mantissa} \times 10^{{{int(exponent)}}}$" if exponent else f"${text}$"
