"""Sound loops made of other libraries' parts under audit, several audits of each, from reports made beside them.

    python -m benchmarks.audit_field_sound --reports DIR [--out DIR]

As in `benchmarks.audit_field`, the libraries are no part of this project: an adapter outside of it made each report.
DIR has the reports as JSON (`--format json`), named LIBRARY@VERSION@REPEAT.json, where each repeat is an audit on other
records. A row is one report: which checks are violated, which could not be tested, and how many hold.
"""

import json
from argparse import Namespace
from pathlib import Path
from typing import Any

from benchmarks.kit.experiment import Cell, Experiment, flag
from benchmarks.kit.rows import RESULTS, read_rows
from benchmarks.kit.tables import markdown
from dpzero_theory.cli import Parser

KEY = ("library", "version", "repeat")


def _check(parser: Parser, options: Namespace) -> None:
    found = sorted(options.reports.glob("*@*@*.json"))
    if not found or any(path.stem.count("@") != 2 for path in found):
        named = "@".join(KEY).upper()
        parser.error(f"--reports must be a folder of reports named {named}.json; got {options.reports}")
    options.found = {path.stem: json.loads(path.read_text()) for path in found}


def _row(options: Namespace, at: Cell) -> dict[str, Any]:
    report = options.found["@".join(at[name] for name in KEY)]
    return {
        "violated": " ".join(report["violated"]),
        "untested": " ".join(one["check"] for one in report["checks"] if one["verdict"] == "could not be tested"),
        "held": sum(one["verdict"] == "held" for one in report["checks"]),
        "runs": report["runs"],
        "seed": report["view"]["seed"],
    }


def table() -> str:
    """Return a table of the libraries: how many audits of each, how many reported something, and what is untested."""
    lines = []
    for (library, version), rows in read_rows(RESULTS / "audit_field_sound").groupby(["library", "version"]):
        untested = sorted({name for text in rows["untested"].fillna("") for name in text.split()})
        reported = int(rows["violated"].notna().sum())
        held = (
            f"{rows['held'].min()}" if rows["held"].nunique() == 1 else f"{rows['held'].min()} to {rows['held'].max()}"
        )
        lines.append([f"{library} {version}", str(len(rows)), str(reported), held, ", ".join(untested) or "none"])
    return markdown(["library", "audits", "with a violation", "checks held", "not tested"], lines)


EXPERIMENT = Experiment(
    name="audit_field_sound",
    about=__doc__,
    flags=[flag("--reports", type=Path, required=True, help="the folder of the reports")],
    key=KEY,
    fields=("violated", "untested", "held", "runs", "seed"),
    check=_check,
    cells=lambda options: [dict(zip(KEY, name.split("@"), strict=True)) for name in options.found],
    measure=_row,
)
