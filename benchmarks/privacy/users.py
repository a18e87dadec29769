"""Privacy of users by one clipped number a user, beside privacy of texts for groups of a user's texts: python -m
benchmarks.users

Both give all texts of a user (epsilon, delta)-differential privacy. `noise` rows only ask the accountant: the noise
multipliers (noise on a step's sum over the clip) of T steps in Poisson batches. The first is that of users as records.
The second is that of texts as records, at the same rate, so with `texts` times as many evaluations a step. The third is
that of texts at as many evaluations a step as the users' with at_most=1. `training` rows train the 65 log-probabilities
of the characters of tiny Shakespeare by private zeroth-order steps with full batches, on speakers of 10 texts or more,
of whom every fifth is held out; at most 50 texts of a speaker are used. The loss is that of held-out texts, nats a
character. The clip and the step are chosen once, on no speakers, for all rows.
"""

import os
import tempfile
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
"""The number of steps T, of the noise rows and of the runs."""
TEXTS = (1, 10, 50)
REPEATS = 2
MOST, LEAST = 50, 10
"""The most texts of a speaker that are used, and the fewest that a speaker must have."""
DATA = Path(os.environ.get("SHAKESPEARE", "tinyshakespeare.txt"))
"""The file of the texts, that of the environment variable SHAKESPEARE."""
_CHARACTERS = 200
"""The characters of a text that are read."""


def settings(options: Namespace) -> Iterator[Cell]:
    """Yield the settings: the noise for each number of texts a user, then the runs of both ways."""
    for number, texts in enumerate(TEXTS):
        yield {"setting": number, "kind": "noise", "texts": texts, "repeat": 0}
    for place, way in enumerate(("users", "groups")):
        for repeat in range(REPEATS):
            yield {
                "setting": len(TEXTS) + place * REPEATS + repeat,
                "kind": way,
                "texts": MOST,
                "repeat": repeat,
            }


def measure(cell: Cell) -> dict[str, Any]:
    """Return the row of a setting."""
    return cell | (_noise(cell["texts"]) if cell["kind"] == "noise" else _trained(cell["kind"] == "users"))


def _multiplier(size: int, rate: float, sampling: str = "poisson") -> float:
    return group_noise(
        target_epsilon=EPSILON, target_delta=DELTA, size=size, steps=STEPS, sampling=sampling, sample_rate=rate,
        relation="replace-one" if sampling == "full" else "add-remove",
    ).upper  # fmt: skip


def _noise(texts: int) -> dict[str, Any]:
    return {
        "users_noise": _multiplier(1, RATE),
        "texts_noise": _multiplier(texts, RATE),
        "texts_noise_equal_evaluations": _multiplier(texts, RATE / texts),
    }


def speeches(path: Path = DATA) -> list[tuple[str, str]]:
    """Return (speaker, text) for the first `MOST` texts of every speaker of at least `LEAST`."""
    found: dict[str, list[str]] = {}
    for block in path.read_text().split("\n\n"):
        speaker, colon, text = block.partition(":\n")
        if colon and text:
            found.setdefault(speaker, []).append(text[:_CHARACTERS])
    return [(who, text) for who, texts in found.items() if len(texts) >= LEAST for text in texts[:MOST]]


def _trained(users: bool) -> dict[str, Any]:
    """Train privately for all texts of a speaker, and return the losses before and after.

    users: whether a record is a speaker; else it is a text, with noise for groups of `MOST`.
    """
    import torch

    from dpzero_theory.optim.losses.users import by_user
    from dpzero_theory.optim.plan import Plan
    from dpzero_theory.optim.private import make_private
    from dpzero_theory.privacy.accountant import epsilon_of_history
    from dpzero_theory.privacy.step import Release

    said = speeches()
    letters = {letter: i for i, letter in enumerate(sorted({c for _, text in said for c in text}))}
    speakers = list(dict.fromkeys(who for who, _ in said))
    held = set(speakers[::5])

    def counted(text: str) -> torch.Tensor:
        return torch.bincount(torch.tensor([letters[c] for c in text]), minlength=len(letters)) / len(text)

    records = [{"shares": counted(text), "who": who} for who, text in said if who not in held]
    test = torch.stack([counted(text) for who, text in said if who in held])
    model = torch.nn.Linear(1, len(letters), bias=False)
    torch.nn.init.zeros_(model.weight)

    def losses(module: torch.nn.Module, batch: Any) -> torch.Tensor:
        return -batch["shares"] @ torch.log_softmax(module.weight[:, 0], 0)

    def loss() -> float:
        with torch.no_grad():
            return float(losses(model, {"shares": test}).mean())

    data: Any = by_user(records, "who") if users else [{"shares": record["shares"]} for record in records]
    n = len(data)
    common: dict[str, Any] = {
        "steps": STEPS, "expected_batch": n, "clip": 1.0, "step_size": 0.5, "smoothing": 1e-2,
        "relation": "replace-one", "sampling": "full", "directions_per_step": 8,
    }  # fmt: skip
    size = 1 if users else MOST
    # in full batches a group of so many texts costs what one text costs with the noise divided by their number
    wanted = _multiplier(size, 1.0, "full")
    of_record = epsilon_of_history(
        [Release(wanted, STEPS, sampling="full", relation="replace-one", sample_rate=1.0)], DELTA
    )
    plan = Plan.for_target(n=n, target_epsilon=of_record.upper, target_delta=DELTA, **common)
    before = loss()
    with tempfile.TemporaryDirectory() as folder:
        run = make_private(model, losses, data, plan, target_delta=DELTA, folder=Path(folder, "run"), micro_batch=4096)
        run.run()
        spent = epsilon_of_history(
            [release.with_noise(release.noise_multiplier / size) for release in run.history], DELTA
        )
        run.close()
    return {
        "records": n,
        "noise_multiplier": plan.noise_multiplier,
        "noise_std": plan.noise_multiplier * plan.clip / n,
        "epsilon_of_users": spent.upper,
        "loss_before": before,
        "loss_after": loss(),
    }


def table(folder: Path = RESULTS / "users") -> str:
    """Return the two tables of docs/howto/users.md from the rows in `folder`."""
    rows = read_rows(folder)
    noise = [
        [
            row["texts"],
            *(f"{row[name]:.4g}" for name in ("users_noise", "texts_noise", "texts_noise_equal_evaluations")),
        ]
        for _, row in rows[rows["kind"] == "noise"].iterrows()
    ]
    header = ["texts a user", "users", "texts, same rate", "texts, as many evaluations as one text a user"]
    runs = []
    for kind in ("users", "groups"):
        some = rows[rows["kind"] == kind]
        after = some["loss_after"]
        runs.append(
            [kind, f"{some['noise_multiplier'].iloc[0]:.4g}", f"{some['noise_std'].iloc[0]:.3g}",
             f"{some['epsilon_of_users'].max():.4f}", f"{some['loss_before'].iloc[0]:.3f}",
             f"{after.mean():.3f} ({after.min():.3f} to {after.max():.3f})"]
        )  # fmt: skip
    top = [
        "record",
        "noise multiplier",
        "noise on the average",
        "epsilon for a user",
        "loss before",
        "loss after, 2 runs",
    ]
    return markdown(header, noise) + "\n\n" + markdown(top, runs)


EXPERIMENT = numbered(
    "users",
    settings,
    measure,
    (
        *("kind", "texts", "repeat", "users_noise", "texts_noise", "texts_noise_equal_evaluations"),
        *("records", "noise_multiplier", "noise_std", "epsilon_of_users", "loss_before", "loss_after"),
    ),
    about=__doc__,
    report=lambda folder: print(table(folder)),
)
