"""K of the t steps of one epoch: how wide epsilon's bracket is, and in what time."""

import itertools
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks.kit.jobs import fill
from benchmarks.kit.rows import Results, read_rows
from benchmarks.kit.timing import least_timed
from dpzero_theory.cli import Parser
from dpzero_theory.privacy.accountant import epsilon_of_history
from dpzero_theory.privacy.step import Release

EPOCHS = ((12, 2), (12, 3), (64, 8), (1000, 30))
"""(t, K)."""
MULTIPLIERS = (0.5, 1.0, 2.0, 5.0)
DELTA = 1e-5
OF_SETTING = ("setting", "epoch", "taken", "noise_multiplier", "relation", "delta")


def answer(setting: Mapping[str, Any]) -> dict[str, Any]:
    """The row of a setting."""
    epoch, taken = setting["epoch"], setting["taken"]
    batches = {"sampling": f"random-allocation:{taken}", "relation": setting["relation"], "sample_rate": taken / epoch}
    release = Release(setting["noise_multiplier"], epoch, **batches)
    found, seconds, cpu_seconds = least_timed(lambda: epsilon_of_history([release], setting["delta"]))
    return dict(setting) | {
        "seconds": seconds,
        "cpu_seconds": cpu_seconds,
        "epsilon_lower": found.lower,
        "epsilon": found.upper,
        "width": found.upper / found.lower - 1,
        "status": "ok",
    }


def run(parser: Parser, out: Path, workers: int) -> None:
    """One row for each setting; then the widest bracket and the longest time."""
    settings = [
        dict(zip(OF_SETTING, (number, *epoch, noise, relation, DELTA), strict=True))
        for number, (epoch, noise, relation) in enumerate(
            itertools.product(EPOCHS, MULTIPLIERS, ("add-remove", "replace-one")), 1
        )
    ]
    fields = (*OF_SETTING[1:], "epsilon_lower", "epsilon", "width", "seconds", "cpu_seconds")
    rows = Results(out, key=("setting",), fields=fields, seeds=[], device="cpu", dtype="float64")
    with parser.opened("--out", rows) as results:
        fill(results, answer, settings, workers)
    report(out)


def report(out: Path) -> None:
    """On standard output."""
    rows = read_rows(out)
    print(
        f"{len(rows)} settings: brackets of epsilon at most {100 * rows['width'].max():.1f}% wide, at most"
        f" {rows['cpu_seconds'].max():.2f} s of processor time"
    )
