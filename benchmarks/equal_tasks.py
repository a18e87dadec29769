"""What `benchmarks.equal_evaluations` trains: a task's records in three parts, and weights."""

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import normalize

from benchmarks.embeddings import kept, normalised_means, sentence_embeddings
from benchmarks.heads import Head, Linear, Normed, Part, accuracy, train
from benchmarks.llm.records import Record, load
from benchmarks.llm.tasks import task
from dpzero_theory import datasets
from dpzero_theory.curvature.encoder import TEMPERATURE
from dpzero_theory.optim.plan import Plan

__all__ = ["CLIPS", "STEP_SIZES", "TASKS", "Heads", "Work", "digits", "norm", "sentences"]

CLIPS = (0.5, 1.0, 2.0, 4.0)
STEP_SIZES = (1e-3, 3e-3, 1e-2, 3e-2, 0.1, 0.3, 1.0, 3.0, 10.0)
TRAINED = 4000


class Work(Protocol):
    """Something to train on n records, and others to choose settings by and to report."""

    @property
    def n(self) -> int:
        """Records that are trained on."""

    def first_grid(self, k: int) -> tuple[tuple[float, ...], tuple[float, ...]]:
        """Clips in units of sqrt(K), and step sizes, before the grid grows."""

    def accuracies(self, plans: Sequence[Plan], seed: int) -> list[tuple[float, float]]:
        """Each plan's after training, on the records to choose by and on those to report."""


class Heads(NamedTuple):
    """A head and three parts of the records: trained on, chosen by, and reported."""

    head: Head
    train: Part
    chosen_by: Part
    test: Part

    @property
    def n(self) -> int:
        return len(self.train.y)

    def first_grid(self, k: int) -> tuple[tuple[float, ...], tuple[float, ...]]:
        return CLIPS, STEP_SIZES

    def accuracies(self, plans: Sequence[Plan], seed: int) -> list[tuple[float, float]]:
        trained = train(self.head, self.train, plans, seed)
        parts = (accuracy(self.head, trained, part) for part in (self.chosen_by, self.test))
        return list(zip(*parts, strict=True))


def digits(_: Path | None) -> Heads:
    """1,197 records to train on, 200 to choose by, 400 to report; pixels and a constant."""
    pixels, labels = datasets.digits(0)
    x = torch.tensor(np.hstack([pixels, np.ones((len(pixels), 1))]), dtype=torch.float32)
    return _parts(Linear(torch.zeros(10, x.shape[1]), 1.0), x, torch.tensor(labels), 1197, 200)


def sentences(name: str, folder: Path | None) -> Heads:
    """4,000 records to train on and up to 1,000 to choose by, drawn by a seed, and the test records to report."""
    records, held = _records(name, folder)
    head = Linear(sentence_embeddings(task(name).prompt("encoder").options), TEMPERATURE)
    return _parts(head, kept(sentence_embeddings, _texts(records)), _labels(records), TRAINED, held)


def norm(folder: Path | None) -> Heads:
    """TREC with the last normalisation of the sentence encoder trained too."""
    records, held = _records("trec", folder)
    options = task("trec").prompt("encoder").options
    z, gain, bias = kept(normalised_means, [*options, *_texts(records)])
    head = Normed(normalize(gain * z[: len(options)] + bias, dim=-1), bias, gain, TEMPERATURE)
    return _parts(head, z[len(options) :], _labels(records), TRAINED, held)


def _records(name: str, folder: Path | None) -> tuple[list[Record], int]:
    """`TRAINED` records to train on, after them those to choose by, whose number is returned, and those to report."""
    found = load(task(name), "train", folder)
    drawn = np.random.default_rng(0).permutation(len(found))[: TRAINED + 1000].tolist()
    return [*(found[index] for index in drawn), *load(task(name), "test", folder)], len(drawn) - TRAINED


def _texts(records: Sequence[Record]) -> list[str]:
    return [next(iter(record.texts.values())) for record in records]


def _labels(records: Sequence[Record]) -> Tensor:
    return torch.tensor([record.label for record in records])


def _parts(head: Head, x: Tensor, y: Tensor, n: int, held: int) -> Heads:
    return Heads(head, *(Part(x[part], y[part]) for part in (slice(n), slice(n, n + held), slice(n + held, None))))


TASKS: dict[str, Callable[[Path | None], Work]] = {
    **{name: partial(sentences, name) for name in ("trec", "sst2", "sst5")},
    "digits": digits,
    "trec, norm": norm,
}
