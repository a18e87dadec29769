"""The tasks, read from tasks.toml."""

import tomllib
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from dpzero_theory import check

KINDS = ("masked", "causal", "encoder")
"""The kinds of model: masked and causal language models, and sentence encoders."""


@dataclass(frozen=True)
class Prompt:
    """How one kind of model is asked for a record's class, as in tasks.toml.

    `template` is the text around the record's texts, `max_length` the most tokens that a prompt has, and `options` are
    the words, continuations or label sentences among which the model chooses (masked, causal, encoder).
    """

    template: str
    max_length: int
    options: tuple[str, ...] = ()


@dataclass(frozen=True)
class Source:
    """Where records come from: `train` and `test` are splits of a Hugging Face data set, or names of files.

    With `held_out`, train and test are one file; so many records, drawn with a fixed seed, are the test records.
    """

    train: str
    test: str
    id: str = ""
    config: str = ""
    format: str = ""
    held_out: int = 0


@dataclass(frozen=True)
class Task:
    """One task; its attributes are the entries of tasks.toml, which explains them at its beginning."""

    name: str
    title: str
    fields: dict[str, str]
    hub: Source
    local: Source
    prompts: dict[str, Prompt]
    label: str = ""
    values: tuple[tuple[str, ...], ...] = ()
    dropped: tuple[str, ...] = ()

    def prompt(self, kind: str) -> Prompt:
        """Return the prompt for a kind of model. Raises ValueError where the task has none."""
        if kind not in self.prompts:
            raise ValueError(f"task must be one of {', '.join(names(kind))} for a {kind} model; got {self.name!r}")
        return self.prompts[kind]


@cache
def _tasks() -> dict[str, Task]:
    entries = tomllib.loads((Path(__file__).parent / "tasks.toml").read_text())
    return {name: _task(name, entry) for name, entry in entries.items()}


def _task(name: str, entry: dict[str, Any]) -> Task:
    prompts = {}
    for kind in KINDS:
        if kind in entry:
            given = entry.pop(kind)
            options = tuple(given.pop("options", given.pop("words", ())))
            prompts[kind] = Prompt(options=options, **given)
    return Task(
        name=name,
        hub=Source(**entry.pop("hub")),
        local=Source(**entry.pop("local")),
        prompts=prompts,
        values=tuple(map(tuple, entry.pop("values", ()))),
        dropped=tuple(entry.pop("dropped", ())),
        **entry,
    )


def names(kind: str | None = None) -> tuple[str, ...]:
    """Return the names of the tasks; with `kind`, which is one of `KINDS`, only of those that have a prompt for such
    models."""
    return tuple(name for name, entry in _tasks().items() if kind is None or kind in entry.prompts)


def task(name: str) -> Task:
    """Return the task with this name. Raises ValueError, which names them all, where there is none."""
    return _tasks()[check.choice("task", name, _tasks())]
