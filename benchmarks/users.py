"""Privacy of users by one clipped number a user, beside privacy of texts for groups: python -m benchmarks users

Both give all texts of a user (epsilon, delta)-differential privacy. The rows have noise multipliers (noise on a step's
sum over the clip) of T steps in Poisson batches. The first is that of users as records. The second is that of texts as
records, at the same rate, so with `texts` times as many evaluations a step as the users' with at_most=1. The third is
that of texts at as many evaluations a step.
"""

from pathlib import Path
from typing import Any

import dpzero_theory as dz
from benchmarks.kit.experiment import Cell, Experiment
from benchmarks.kit.rows import RESULTS, read_rows
from benchmarks.kit.tables import markdown

EPSILON, DELTA, RATE, STEPS = 8.0, 1e-5, 0.1, 50
TEXTS = (1, 10, 50)
FIELDS = ("texts", "users_noise", "texts_noise", "texts_noise_equal_evaluations")


def _multiplier(size: int, rate: float) -> float:
    drawn = dz.Poisson(rate)
    return dz.calibrate(
        epsilon=EPSILON, delta=DELTA, steps=STEPS, sampling=drawn, relation="add-remove", group=size
    ).upper


def measure(cell: Cell) -> dict[str, Any]:
    """Return the three noise multipliers for cell["texts"] texts a user, each the private end of its bracket."""
    texts = cell["texts"]
    noises = _multiplier(1, RATE), _multiplier(texts, RATE), _multiplier(texts, RATE / texts)
    return dict(zip(FIELDS[1:], noises, strict=True))


def table(folder: Path = RESULTS / "users") -> str:
    """Return the table of docs/howto/users.md from the rows in `folder`."""
    lines = [
        [str(row["texts"]), *(f"{row[name]:.4g}" for name in FIELDS[1:])] for _, row in read_rows(folder).iterrows()
    ]
    return markdown(
        ["texts a user", "users", "texts, same rate", "texts, as many evaluations as one text a user"], lines
    )


EXPERIMENT = Experiment(
    name="users",
    about=__doc__,
    key=("setting",),
    fields=FIELDS,
    cells=lambda options: ({"setting": number, "texts": texts} for number, texts in enumerate(TEXTS)),
    measure=lambda options, cell: measure(cell),
    report=lambda options: print(table(options.out)),
)
