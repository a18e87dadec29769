"""The tasks of `benchmarks.equal_evaluations`: each has its records in three parts, and weights to train."""

import math
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import normalize
from torch.nn.utils.rnn import pad_sequence

from benchmarks.llm.prompts import Prompter
from benchmarks.llm.records import Record, load
from benchmarks.llm.scoring import classifier
from benchmarks.llm.tasks import task
from benchmarks.problems.encoder import TEMPERATURE
from benchmarks.training.distilled import distilled
from benchmarks.training.embeddings import kept, normalised_means, sentence_embeddings
from benchmarks.training.encoders import Encoder
from benchmarks.training.heads import Head, Linear, Normed, Part, accuracy, train
from dpzero_theory import datasets
from dpzero_theory.optim.plan import Plan

CLIPS = (0.5, 1.0, 2.0, 4.0)
STEP_SIZES = (1e-3, 3e-3, 1e-2, 3e-2, 0.1, 0.3, 1.0, 3.0, 10.0)
TRAINED = 4000
LONGEST = 16


Grid = Callable[[int], tuple[tuple[float, ...], tuple[float, ...]]]
"""A function of the number K of directions per step. It returns the first grid of a task: its clips, in units of
sqrt(K), and its step sizes."""


def whole(k: int) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Return the first grid of most tasks: all clips, in units of sqrt(K), and all step sizes. It is the same for every
    number K = k of directions."""
    return CLIPS, STEP_SIZES


def few(least: int, k: int) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Return a first grid, (clips, step sizes), for tasks whose runs take seconds: all clips but the first, in units of
    sqrt(K), and three successive step sizes of `STEP_SIZES`. The first of these has the index `least` for k = K = 1,
    and one more for each factor of 4 in k."""
    first = least + round(math.log(k, 4))
    return CLIPS[1:], STEP_SIZES[first : first + 3]


class HeadTask(NamedTuple):
    """A task: the classifier that is trained, three parts of its records (to train on, to choose clip and step size by,
    and to report accuracy on), and the function that gives its first grid."""

    head: Head
    train: Part
    chosen_by: Part
    test: Part
    first_grid: Grid = whole

    @property
    def n(self) -> int:
        """The number of records that are trained on."""
        return len(self.train.y)

    def accuracies(self, plans: Sequence[Plan], seed: int) -> list[tuple[float, float]]:
        """Train by each plan with this seed, and return for each plan the accuracy, in [0, 1], on the records that
        choose and that on the records that report."""
        trained = train(self.head, self.train, plans, seed)
        parts = (accuracy(self.head, trained, part) for part in (self.chosen_by, self.test))
        return list(zip(*parts, strict=True))


def digits(_: Path | None) -> HeadTask:
    """Return the task on scikit-learn's digits: 1,197 records to train on, 200 to choose by, and 400 to report on.
    Features are the pixels and a constant."""
    pixels, labels = datasets.digits(0)
    x = torch.tensor(np.hstack([pixels, np.ones((len(pixels), 1))]), dtype=torch.float32)
    return _parts(Linear(torch.zeros(10, x.shape[1]), 1.0), x, torch.tensor(labels), 1197, 200)


def sentences(name: str, folder: Path | None) -> HeadTask:
    """Return the task of this name on frozen sentence embeddings: 4,000 records to train on and up to 1,000 to choose
    by, drawn with a fixed seed, and the test set to report accuracy on. The folder has the data set's files."""
    records, held = _records(name, folder)
    head = Linear(sentence_embeddings(task(name).prompt("encoder").options), TEMPERATURE)
    return _parts(head, kept(sentence_embeddings, _texts(records)), _labels(records), TRAINED, held)


def norm(folder: Path | None) -> HeadTask:
    """Return the task on TREC in which the gain and bias of the sentence encoder's last normalisation are trained,
    too."""
    records, held = _records("trec", folder)
    options = task("trec").prompt("encoder").options
    z, gain, bias = kept(normalised_means, [*options, *_texts(records)])
    head = Normed(normalize(gain * z[: len(options)] + bias, dim=-1), bias, gain, TEMPERATURE)
    return _parts(head, z[len(options) :], _labels(records), TRAINED, held)


def encoder(weights: str, folder: Path | None) -> HeadTask:
    """Return the task on TREC in which a small sentence encoder reads 16 tokens of each question, and `weights` ("lora"
    or a name of `encoder.SUBSETS`) are trained in addition to the label vectors. The folder has the data set's
    files."""
    model = distilled(folder)
    records, held = _records("trec", folder)
    prompter = Prompter(task("trec"), "encoder", model.tokenizer, LONGEST)
    ids = [torch.tensor(example.ids) for example in prompter.examples(records)]
    x = pad_sequence(ids, batch_first=True, padding_value=model.pad)
    head = Encoder(classifier(model.module, prompter, model.pad), model.pad, weights)
    grid = partial(few, 1 if weights == "lora" else 0)
    return _parts(head, x, _labels(records), TRAINED, held)._replace(first_grid=grid)


def _records(name: str, folder: Path | None) -> tuple[list[Record], int]:
    """Return the records of the task with this name: `TRAINED` records to train on, then those to choose by, then the
    test set. The second value is the number of those to choose by."""
    found = load(task(name), "train", folder)
    drawn = np.random.default_rng(0).permutation(len(found))[: TRAINED + 1000].tolist()
    return [*(found[index] for index in drawn), *load(task(name), "test", folder)], len(drawn) - TRAINED


def _texts(records: Sequence[Record]) -> list[str]:
    return [next(iter(record.texts.values())) for record in records]


def _labels(records: Sequence[Record]) -> Tensor:
    return torch.tensor([record.label for record in records])


def _parts(head: Head, x: Tensor, y: Tensor, n: int, held: int) -> HeadTask:
    train, chosen_by, test = (Part(x[p], y[p]) for p in (slice(n), slice(n, n + held), slice(n + held, None)))
    return HeadTask(head, train, chosen_by, test)


TASKS: dict[str, Callable[[Path | None], HeadTask]] = {
    **{name: partial(sentences, name) for name in ("trec", "sst2", "sst5")},
    "digits": digits,
    "trec, norm": norm,
    **{f"trec, {weights}": partial(encoder, weights) for weights in ("lora", "body")},
}
