"""Random allocation, where a record takes part in K random steps of the t steps of one epoch: how wide the
accountant's bracket of epsilon is, and how long it takes."""

import itertools
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from benchmarks.kit.rows import read_rows
from benchmarks.kit.timing import least_timed
from dpzero_theory.privacy.accountant import epsilon_of_history
from dpzero_theory.privacy.step import Release

EPOCHS = ((12, 2), (12, 3), (64, 8), (1000, 30))
"""The pairs (t, K) that are tried: the number t of steps of an epoch, and the number K of them in which a record takes
part."""
MULTIPLIERS = (0.5, 1.0, 2.0, 5.0)
DELTA = 1e-5
OF_SETTING = ("setting", "epoch", "taken", "noise_multiplier", "relation", "delta")


def answer(setting: Mapping[str, Any]) -> dict[str, Any]:
    """Ask the accountant for epsilon at a setting (its epoch, number K of steps that a record takes part in, noise
    multiplier and relation), and return the row with the bracket and the time."""
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


FIELDS = (*OF_SETTING[1:], "epsilon_lower", "epsilon", "width", "seconds", "cpu_seconds")


def settings() -> Iterator[dict[str, Any]]:
    """Yield every combination of epoch, noise multiplier and relation, numbered from 1."""
    for number, (epoch, noise, relation) in enumerate(
        itertools.product(EPOCHS, MULTIPLIERS, ("add-remove", "replace-one")), 1
    ):
        yield dict(zip(OF_SETTING, (number, *epoch, noise, relation, DELTA), strict=True))


def report(out: Path) -> None:
    """Print the widest bracket and the longest time, from the rows in the folder `out`."""
    rows = read_rows(out)
    print(
        f"{len(rows)} settings: brackets of epsilon at most {100 * rows['width'].max():.1f}% wide, at most"
        f" {rows['cpu_seconds'].max():.2f} s of processor time"
    )
