"""The records of a task, from Hugging Face or from local files, and the splits that a run uses.

The number n of training records is always counted: TREC has 86 training questions of its rarest class, so "512 per
class" is 2,646 records and not 3,072.
"""

import csv
import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.llm.tasks import Source, Task
from benchmarks.problems.sentences import sst2
from dpzero_theory import check

TEST_SEED = 42
"""The seed of the shuffle that picks the test records, so that all runs have the same test records."""


@dataclass(frozen=True)
class Record:
    """A record: its texts by the name of their column, and its class `label`."""

    texts: Mapping[str, str]
    label: int = -1


@dataclass(frozen=True)
class Selection:
    """Which records train.

    per_class: so many of each class (the paper's masked tasks: 512). total: so many in all, if per_class is None (the
    paper's causal tasks: 1,000). dev, test: at most so many of each.
    """

    per_class: int | None = None
    total: int | None = None
    dev: int = 1000
    test: int = 1000


@dataclass(frozen=True)
class Splits:
    """The training, dev and test records; n = len(train). The dev records choose hyper-parameters and are never trained
    on."""

    train: tuple[Record, ...]
    dev: tuple[Record, ...]
    test: tuple[Record, ...]


def load(task: Task, split: str, data: Path | None = None) -> list[Record]:
    """Return the records of `train` or `test`, from files in `data` if it is given, else from Hugging Face.

    Raises ValueError for a missing file, for another layout, and for a
    label that is not one of the task's.
    """
    source = task.hub if data is None else task.local
    part = getattr(source, check.choice("split", split, ("train", "test")))
    rows = _hub_rows(source, part) if data is None else _local_rows(task, source, data, part)
    try:
        records = [_record(task, row) for row in rows if str(row.get(task.label, "")) not in task.dropped]
    except (KeyError, TypeError, UnicodeDecodeError, json.JSONDecodeError, csv.Error) as error:
        raise ValueError(
            f"data must hold records of {task.name} in {part}; got {type(error).__name__}: {error}"
        ) from None
    if source.held_out:
        order = np.random.default_rng(TEST_SEED).permutation(len(records))
        kept = order[: source.held_out] if split == "test" else order[source.held_out :]
        records = [records[i] for i in sorted(kept)]
    return records


def splits(task: Task, selection: Selection, seed: int, data: Path | None = None) -> Splits:
    """Return the records of one run of a task.

    selection: how many. seed: by it the training records are shuffled. The first of each class (or of all) train; the
    next ones, as many again unless `selection.dev` is less, are the dev records. data: a folder of local files, or None
    for Hugging Face. Raises what `load` raises.
    """
    every = load(task, "train", data)
    shuffled = _drawn(every, len(every), seed)
    if selection.per_class is not None:
        train, dev = _per_class(shuffled, check.integer("per_class", selection.per_class))
        dev = _drawn(dev, selection.dev, seed)  # drawn at random, because so far frequent classes come first
    else:
        count = check.integer("total", selection.total)
        train, dev = shuffled[:count], shuffled[count : 2 * count]
    return Splits(tuple(train), tuple(dev[: selection.dev]), tuple(_drawn(load(task, "test", data), selection.test)))


def _per_class(shuffled: list[Record], count: int) -> tuple[list[Record], list[Record]]:
    taken: dict[int, int] = {}
    train, dev = [], []
    for record in shuffled:
        rank = taken.get(record.label, 0)
        taken[record.label] = rank + 1
        if rank < count:
            train.append(record)
        elif rank < 2 * count:
            dev.append(record)
    return train, dev


def _drawn(records: list[Record], count: int, seed: int = TEST_SEED) -> list[Record]:
    order = np.random.default_rng(seed).permutation(len(records))
    return [records[i] for i in order[:count]]


def _record(task: Task, row: Mapping[str, Any]) -> Record:
    texts = {name: _text(row[column]) for name, column in task.fields.items()}
    value = str(row[task.label])
    for index, values in enumerate(task.values):
        if value in values:
            return Record(texts, label=index)
    raise ValueError(f"label must be one of {task.values} in {task.name}; got {value!r}")


def _text(value: Any) -> str:
    """Return the value of a field as text. PubMedQA has the paragraphs of an abstract as a list named `contexts`."""
    return " ".join(value["contexts"]) if isinstance(value, Mapping) else str(value).strip()


def _hub_rows(source: Source, part: str) -> Iterable[Mapping[str, Any]]:
    from datasets import load_dataset

    rows: Iterable[Mapping[str, Any]] = load_dataset(source.id, source.config or None, split=part)
    return rows


def _local_rows(task: Task, source: Source, data: Path, name: str) -> Iterator[Mapping[str, Any]]:
    path = data / name
    if not path.is_file():
        raise ValueError(f"data must be a folder that holds {name}; got {str(data)!r}")
    yield from _FORMATS[source.format](task, path)


def _tsv(task: Task, path: Path) -> Iterator[Mapping[str, Any]]:
    """Yield the records of the file at `path` as dictionaries by column. Its first line has the names of the columns,
    separated by tabs; each further line is a record, and quotation marks mean nothing. The task is not used."""
    with path.open(encoding="utf-8", newline="") as file:
        yield from csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE)


def _sst2(task: Task, path: Path) -> Iterator[Mapping[str, Any]]:
    (column,) = task.fields.values()
    for sentence, sign in zip(*sst2(path), strict=True):
        yield {column: sentence, task.label: int(sign > 0)}


def _label_first(task: Task, path: Path) -> Iterator[Mapping[str, Any]]:
    """Yield the records of the file at `path`, whose lines are LABEL, a space, and the text, as dictionaries with the
    task's names for the two."""
    (column,) = task.fields.values()
    for line in path.read_text(encoding="utf-8").rstrip("\n").split("\n"):
        label, _, text = line.partition(" ")
        yield {task.label: label, column: text}


def _trec(task: Task, path: Path) -> Iterator[Mapping[str, Any]]:
    """Yield the records of the file in Latin-1 at `path`, whose lines are COARSE:fine, a space, and the question, as
    dictionaries with the task's names for the coarse class and the question."""
    (column,) = task.fields.values()
    for line in path.read_text(encoding="latin-1").rstrip("\n").split("\n"):
        label, _, text = line.partition(" ")
        yield {task.label: label.partition(":")[0], column: text}


def _jsonl(task: Task, path: Path) -> Iterator[Mapping[str, Any]]:
    """Yield the records, by column, of a file whose lines are JSON objects with the columns of the Hugging Face data
    set."""
    for line in path.read_text(encoding="utf-8").rstrip("\n").split("\n"):
        yield json.loads(line)


def _pubmedqa(task: Task, path: Path) -> Iterator[Mapping[str, Any]]:
    """Yield the records, by column, of PubMedQA's file: a JSON object from numbers of articles to records."""
    for row in json.loads(path.read_text(encoding="utf-8")).values():
        context = {"contexts": row["CONTEXTS"]}
        yield {"context": context, "question": row["QUESTION"], "final_decision": row["final_decision"]}


_FORMATS: dict[str, Callable[[Task, Path], Iterator[Mapping[str, Any]]]] = {
    "sst2": _sst2,
    "tsv": _tsv,
    "label-first": _label_first,
    "trec": _trec,
    "jsonl": _jsonl,
    "pubmedqa": _pubmedqa,
}
