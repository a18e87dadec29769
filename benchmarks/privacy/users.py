"""Privacy of users by one clipped number a user, beside privacy of texts for groups: python -m benchmarks.users

Both give all texts of a user (epsilon, delta)-differential privacy. The rows have noise multipliers (noise on a step's
sum over the clip) of T steps in Poisson batches. The first is that of users as records. The second is that of texts as
records, at the same rate, so with `texts` times as many evaluations a step as the users' with at_most=1. The third is
that of texts at as many evaluations a step.
"""

from argparse import Namespace
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.kit.experiment import Cell, numbered
from benchmarks.kit.rows import RESULTS, read_rows
from benchmarks.kit.tables import markdown
from dpzero_theory.privacy.group import group_noise

EPSILON, DELTA, RATE = 8.0, 1e-5, 0.1
STEPS = 50
"""The number of steps T."""
TEXTS = (1, 10, 50)


def settings(options: Namespace) -> Iterator[Cell]:
    """Yield the settings, one for each number of texts a user."""
    for number, texts in enumerate(TEXTS):
        yield {"setting": number, "texts": texts}


def _multiplier(size: int, rate: float, sampling: str = "poisson") -> float:
    return group_noise(
        target_epsilon=EPSILON, target_delta=DELTA, size=size, steps=STEPS, sampling=sampling, sample_rate=rate,
        relation="replace-one" if sampling == "full" else "add-remove",
    ).upper  # fmt: skip


def measure(cell: Cell) -> dict[str, Any]:
    """Return the row of a setting: its columns, and the three noise multipliers for its number cell["texts"] of texts a
    user, as the module's docstring describes them, each the private end of its bracket."""
    texts = cell["texts"]
    return cell | {
        "users_noise": _multiplier(1, RATE),
        "texts_noise": _multiplier(texts, RATE),
        "texts_noise_equal_evaluations": _multiplier(texts, RATE / texts),
    }


def table(folder: Path = RESULTS / "users") -> str:
    """Return the table of docs/howto/users.md from the rows in `folder`."""
    rows = read_rows(folder)
    names = ("users_noise", "texts_noise", "texts_noise_equal_evaluations")
    lines = [[row["texts"], *(f"{row[name]:.4g}" for name in names)] for _, row in rows.iterrows()]
    header = ["texts a user", "users", "texts, same rate", "texts, as many evaluations as one text a user"]
    return markdown(header, [[str(cell) for cell in line] for line in lines])


EXPERIMENT = numbered(
    "users",
    settings,
    measure,
    ("texts", "users_noise", "texts_noise", "texts_noise_equal_evaluations"),
    about=__doc__,
    report=lambda folder: print(table(folder)),
)
