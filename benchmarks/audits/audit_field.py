"""Published private training loops under audit: the verdict of each check, from reports that were made beside them.

    python -m benchmarks.audit_field --reports DIR [--out DIR]

The loops are other people's code, which is no part of this project. Each was run from its own repository, on
records and a small model of ours, by an adapter outside of the project, and audited by `dpzero_theory.audit`; DIR has
its report as JSON (`--format json`), named PROJECT@VERSION.json. A row is one check of one report. The page
`docs/results/field.md` says what was read and run, and what the findings are.
"""

import json
from argparse import Namespace
from pathlib import Path
from typing import Any

from benchmarks.kit.experiment import Cell, Experiment, flag
from benchmarks.kit.rows import RESULTS, read_rows
from benchmarks.kit.tables import markdown
from dpzero_theory.cli import Parser

_WORDS = {"held": "held", "violated": "VIOLATED", "could not be tested": "untested"}
_CLAIM = ("relation", "sampling", "n", "batch", "steps", "noise_multiplier", "average")


def _check(parser: Parser, options: Namespace) -> None:
    options.found = {}
    for path in sorted(options.reports.glob("*@*.json")):
        options.found[path.stem] = json.loads(path.read_text())
    if not options.found:
        parser.error(f"--reports must be a folder of reports named PROJECT@VERSION.json; got {options.reports}")


def _rows(options: Namespace, at: Cell) -> list[dict[str, Any]]:
    report = options.found[f"{at['project']}@{at['version']}"]
    claim = {name: report["claim"][name] for name in _CLAIM}
    return [
        {
            "check": one["check"],
            "verdict": _WORDS[one["verdict"]],
            "says": one["says"],
            "follows": one["may_follow_from"],
            "runs": one["runs"],
            "seed": report["view"]["seed"],
            **claim,
        }
        for one in report["checks"]
    ]


def table() -> str:
    """Return a table of the audited loops: which checks hold, which are violated, and which could not be made."""
    lines = []
    for (project, version), rows in read_rows(RESULTS / "audit_field").groupby(["project", "version"], sort=False):
        by = {word: rows[rows["verdict"] == word]["check"] for word in _WORDS.values()}
        lines.append(
            [f"{project} ({version})", ", ".join(by["VIOLATED"]), ", ".join(by["held"]), str(len(by["untested"]))]
        )
    return markdown(["loop (commit or version)", "violated", "held", "not tested"], lines)


EXPERIMENT = Experiment(
    name="audit_field",
    about=__doc__,
    flags=[flag("--reports", type=Path, required=True, help="the folder of the reports")],
    key=("project", "version", "check"),
    fields=("verdict", "says", "follows", "runs", "seed", *_CLAIM),
    check=_check,
    cells=lambda options: [dict(zip(("project", "version"), name.split("@"), strict=True)) for name in options.found],
    keys=lambda options, at: (
        {**at, "check": one["check"]} for one in options.found[f"{at['project']}@{at['version']}"]["checks"]
    ),
    measure=_rows,
)
