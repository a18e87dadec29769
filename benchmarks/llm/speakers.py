"""Shakespeare's speakers as users, beside their speeches as records with noise for groups: loss of the speech.

    python -m benchmarks.pretrained smollm2           # the model, once
    python -m benchmarks.llm.speakers --data DIR      # DIR holds tinyshakespeare.txt

A text is what a speaker says at a time, at most LENGTH tokens of it, after the line with the speaker's name. A user is
a speaker with 10 or 50 texts, drawn from all that the speaker says. Both methods protect all texts of a speaker, at the
same epsilon and delta, and evaluate as many texts a step on average: "users" by one clipped number a speaker and
direction (`dpzero_theory.optim.losses.users`), "texts" by one a text and by noise for groups of that size
(`dpzero_theory.privacy.group`). "not private" is "users" without clip and noise. A text's loss is its mean loss a token
over the whole vocabulary.

Trained is one number for each token that the dev speakers say, added to the model's logits. All else is frozen, so that
a text's probabilities of these tokens are all that is kept of it. Speakers with 10 to 49 texts in all are dealt at
random to dev (taken to be public), test and training; all with more are trained on. Clip and step size are the pair
with the lowest loss on dev speakers in one run with seed 0, and test speakers are in no training set.
"""

import math
import sys
from argparse import Namespace
from collections.abc import Iterator
from functools import lru_cache
from itertools import product
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import nn

from benchmarks.kit.experiment import Cell, Experiment, flag
from benchmarks.kit.rows import RESULTS, having, read_rows
from benchmarks.kit.tables import markdown, mean_interval
from benchmarks.llm.models import load
from benchmarks.llm.settings import CHOSEN, MODEL, best, reported, tried
from benchmarks.llm.speeches import FILE, LENGTH, Numbers, check_data, kept, losses, said
from dpzero_theory.cli import input_folder, integer
from dpzero_theory.optim.losses.frozen import STATES, States
from dpzero_theory.optim.losses.users import by_user
from dpzero_theory.optim.plan import Plan
from dpzero_theory.optim.private import make_from_seed_not_private, make_private_with_epsilon
from dpzero_theory.privacy.accountant import epsilon_of_history
from dpzero_theory.privacy.group import group_noise
from dpzero_theory.privacy.step import Release

OWNED, HELD_OUT = (10, 50), 20
"""The numbers of texts of a user, and the number of dev speakers and of test speakers."""
EPSILON, DELTA, STEPS, RATE, DIRECTIONS, SMOOTHING = 8.0, 1e-5, 60, 0.25, 8, 3e-2
METHODS = ("users", "texts", "not private")
SETTINGS = {
    "users": tuple(product((0.1, 0.2), (7.0, 15.0))),
    "texts": tuple(product((0.3, 0.6), (3.0, 7.0))),
    "not private": ((math.nan, 10.0), (math.nan, 20.0)),
}
"""The clips and step sizes that are compared, by method."""
FIELDS = ("speakers", "clip", "step_size", "loss_before", "dev_loss", "test_loss", "noise_multiplier")


class Texts(NamedTuple):
    """The texts of some speakers, as `speeches.kept` keeps them, and the speaker of each."""

    kept: States
    owners: list[str]


def by_speaker(data: Path) -> dict[str, list[str]]:
    """Return what each speaker says at a time, in the order of the file. data: the folder that holds FILE."""
    found: dict[str, list[str]] = {}
    for name, text in said(data):
        found.setdefault(name, []).append(text)
    return found


def dealt(texts_of: dict[str, list[str]]) -> dict[str, dict[str, list[str]]]:
    """Return the texts by split ("train", "dev", "test") and speaker. The training split has the speakers with texts
    enough for the larger number of OWNED, and those of the others that are not held out; a speaker has as many texts as
    the larger number of OWNED, if there are so many, drawn at random, and else as many as the smaller one."""
    few, many = OWNED
    draws = np.random.default_rng(0)
    shuffled = {name: [texts[i] for i in draws.permutation(len(texts))] for name, texts in texts_of.items()}
    large = {name: texts[:many] for name, texts in shuffled.items() if len(texts) >= many}
    small = [name for name, texts in shuffled.items() if few <= len(texts) < many]
    order = [small[i] for i in draws.permutation(len(small))]
    cut = {name: shuffled[name][:few] for name in order}
    dev, test, rest = order[:HELD_OUT], order[HELD_OUT : 2 * HELD_OUT], order[2 * HELD_OUT :]
    return {
        "train": large | {name: cut[name] for name in rest},
        "dev": {name: cut[name] for name in dev},
        "test": {name: cut[name] for name in test},
    }


def prepared(data: Path) -> tuple[int, dict[str, Texts]]:
    """Return the number of trained numbers, and the texts by split. data: the folder that holds FILE."""
    model, parts = load(MODEL, dtype="bfloat16"), dealt(by_speaker(data))
    rows: dict[str, list[tuple[list[int], list[int]]]] = {part: [] for part in parts}
    for part, texts in parts.items():
        for name, own in texts.items():
            start = model.tokenizer(f"{name}:\n")["input_ids"]
            rows[part] += [(start, model.tokenizer(text)["input_ids"][:LENGTH]) for text in own]
    numbered = sorted({token for _, text in rows["dev"] for token in text})
    owners = {part: [name for name, own in texts.items() for _ in own] for part, texts in parts.items()}
    return len(numbered), {part: Texts(kept(model, mine, numbered), owners[part]) for part, mine in rows.items()}


def of_users(texts: Texts, owned: int) -> Texts:
    """Return the first `owned` texts of each speaker who has so many."""
    places: dict[str, list[int]] = {}
    for row, name in enumerate(texts.owners):
        places.setdefault(name, []).append(row)
    rows = [row for own in places.values() if len(own) >= owned for row in own[:owned]]
    tensors = dict(zip(texts.kept.names, (tensor[rows] for tensor in texts.kept.tensors), strict=True))
    return Texts(States(tensors.pop(STATES), tensors), [texts.owners[row] for row in rows])


@lru_cache
def noise(method: str, owned: int) -> float:
    """Return the noise multiplier, which is the noise on a step's sum over the clip, of a run that protects all texts
    of a speaker with `owned` texts at (EPSILON, DELTA); the private end of its bracket. method: "users" (a speaker is a
    record) or "texts" (a text is one)."""
    return group_noise(
        target_epsilon=EPSILON, target_delta=DELTA, size=owned if method == "texts" else 1, steps=STEPS,
        sampling="poisson", sample_rate=RATE, relation="add-remove",
    ).upper  # fmt: skip


def evaluated(module: nn.Module, texts: Texts) -> float:
    """Return the mean loss of the texts, in nats a token, with the present numbers of `module`."""
    with torch.no_grad():
        return float(losses(module, texts.kept[torch.arange(len(texts.owners))]).mean())


def trained(work: tuple[int, dict[str, Texts]], at: Cell, clip: float, step_size: float) -> dict[str, Any]:
    """Train from 0 by the method of the cell `at` (`method`, one of METHODS; `owned`, the texts of a speaker; `seed`,
    for a run that is not private) with this clip and first step size, which falls linearly to 0, and return the
    measured columns of the row. work: what `prepared` returns."""
    count, parts = work
    module, texts = Numbers(count), of_users(parts["train"], at["owned"])
    speakers, before = len(set(texts.owners)), evaluated(module, parts["test"])
    data: Any = texts.kept if at["method"] == "texts" else by_user(texts.kept, texts.owners)
    law: dict[str, Any] = {
        "steps": STEPS, "expected_batch": RATE * len(data), "smoothing": SMOOTHING, "sampling": "poisson",
        "step_size": lambda step: step_size * (1 - step / STEPS), "direction": "rademacher",
        "directions_per_step": DIRECTIONS, "difference": "forward",
    }  # fmt: skip
    cost = {}
    with TemporaryDirectory() as folder:
        if at["method"] == "not private":
            plan = Plan.without_privacy(n=len(data), **law)
            run = make_from_seed_not_private(module, losses, data, plan, seed=at["seed"], folder=folder, micro_batch=64)
            run.run()
        else:
            multiplier = noise(at["method"], at["owned"])
            of_a_record = Release(multiplier, STEPS, sampling="poisson", relation="add-remove", sample_rate=RATE)
            run = make_private_with_epsilon(
                module, losses, data, target_epsilon=epsilon_of_history([of_a_record], DELTA).upper,
                target_delta=DELTA, clip=clip, relation="add-remove", folder=folder, micro_batch=64, **law,
            )  # fmt: skip
            run.run()
            cost = {"clip": clip, "noise_multiplier": run.plan.noise_multiplier}
        run.close()
    return {
        "speakers": speakers, "step_size": step_size, "loss_before": before, **cost,
        **{f"{part}_loss": evaluated(module, parts[part]) for part in ("dev", "test")},
    }  # fmt: skip


def table(folder: Path = RESULTS / "llm_speakers") -> str:
    """Return a table of the noise and of the test loss and perplexity of all methods, by the texts of a speaker."""
    rows = read_rows(folder).astype({"setting": str})
    names = {
        "users": "speakers as records",
        "texts": "texts as records, noise for groups",
        "not private": "not private",
    }
    lines = []
    for owned, method in product(sorted(set(rows["owned"])), METHODS):
        part = having(rows, setting=CHOSEN, owned=owned, method=method)
        if not len(part):
            continue
        multiplier, before, after = part["noise_multiplier"].iloc[0], part["loss_before"].iloc[0], part["test_loss"]
        users = having(rows, setting=CHOSEN, owned=owned, method="users")["noise_multiplier"].iloc[0]
        private = method != "not private"
        lines.append(
            [
                f"{owned}", f"{part['speakers'].iloc[0]}", names[method], f"{multiplier:.2f}" if private else "",
                f"{multiplier / users:.1f}" if private else "", f"{before:.3f}", mean_interval(after, ".3f", ".3f"),
                f"{math.exp(before):.0f}, {math.exp(after.mean()):.0f}", f"{len(part)}",
            ]
        )  # fmt: skip
    header = [
        "texts a speaker", "speakers", "method", "noise multiplier", "over the users'", "loss before", "loss after",
        "perplexity before, after", "runs",
    ]  # fmt: skip
    return markdown(header, lines)


def _cells(options: Namespace) -> Iterator[Cell]:
    for owned, method in product(options.owned or OWNED, METHODS):
        common = {"owned": owned, "method": method}
        yield from tried(common, len(SETTINGS[method]))
        yield from reported(common, options.seeds)


def _measure(options: Namespace, at: Cell) -> list[dict[str, Any]]:
    if options.work is None:
        options.work = prepared(options.data)
    setting = at["setting"]
    if setting == CHOSEN:
        mine = {"owned": at["owned"], "method": at["method"]}
        setting = best(read_rows(options.out), "dev_loss", lowest=True, **mine)
    return [trained(options.work, at, *SETTINGS[at["method"]][int(setting)])]


EXPERIMENT = Experiment(
    name="llm.speakers",
    about=__doc__,
    flags=[
        flag("--data", type=input_folder(), help=f"folder with {FILE}"),
        flag("--owned", nargs="+", type=integer(1), help="texts of a speaker (default: 10 and 50)"),
        flag("--seeds", type=integer(1, 100), default=5, help="runs of each kind that are reported"),
    ],
    folder="llm_speakers",
    key=("owned", "method", "setting", "seed"),
    fields=FIELDS,
    seeds=lambda options: range(options.seeds + 1),
    dtype="bfloat16, what is trained in float32",
    settings={
        "model": MODEL, "epsilon": EPSILON, "delta": DELTA, "rate": RATE, "steps": STEPS, "directions": DIRECTIONS,
        "smoothing": SMOOTHING, "difference": "forward", "sampling": "poisson", "relation": "add-remove",
        "trained": "one number for each token that dev speakers say, added to the logits",
    },
    check=check_data,
    cells=_cells,
    measure=_measure,
    told=lambda at, rows: (
        f"{at['owned']} texts, {at['method']}, setting {at['setting']}, seed {at['seed']}: loss"
        f" {rows[0]['loss_before']:.3f} to dev {rows[0]['dev_loss']:.3f}, test {rows[0]['test_loss']:.3f}"
    ),
)  # fmt: skip

if __name__ == "__main__":
    sys.exit(EXPERIMENT.main())
