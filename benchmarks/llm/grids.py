"""The runs behind each of the paper's tables (tables.toml), and the paper's numbers (paper_checks/tables.toml)."""

import itertools
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from benchmarks.llm.configuration import FIRST_ORDER, ZEROTH_ORDER, Configuration
from benchmarks.llm.tasks import task
from dpzero_theory import check

PRESETS = ("full", "few-steps", "smoke")
LABELS = {
    "zero-shot": "Zero-Shot", "mezo": "MeZO", "dpzero": "DPZero", "dpgd-0th": "DPGD-0th",
    "adamw": "AdamW", "dp-adamw": "DP-AdamW", "lora": "LoRA", "dp-lora": "DP-LoRA",
}  # fmt: skip
_HERE = Path(__file__).parent
_APPENDIX = {"dpgd-0th:2": 67.0, "dpzero:2": 82.0}
"""The paper's accuracies on TREC that are printed only in the text of its appendix ("Comparison with DPGD-0th")."""


@dataclass(frozen=True)
class Row:
    """A row of a table, written METHOD[:EPSILON[:DIRECTION]], such as dpzero:2:sphere."""

    text: str

    @property
    def method(self) -> str:
        return self.text.split(":")[0]

    @property
    def settings(self) -> dict[str, Any]:
        parts = self.text.split(":")
        found: dict[str, Any] = {"method": parts[0]}
        if len(parts) > 1:
            found["epsilon"] = float(parts[1])
        if len(parts) > 2:
            found["direction"] = parts[2]
        return found

    @property
    def label(self) -> str:
        """The row's name in the paper's tables, such as DPZero (6)."""
        parts = self.text.split(":")
        return LABELS[parts[0]] + (f" ({', '.join(parts[1:])})" if len(parts) > 1 else "")


@dataclass(frozen=True)
class Table:
    """One table at one preset: its runs, as tables.toml has them, which explains the settings at its beginning.

    evaluations: how often a run is evaluated. grid_seeds: how many seeds, the first ones, run every setting of a grid.
    """

    name: str
    preset: str
    models: tuple[str, ...]
    tasks: tuple[str, ...]
    seeds: tuple[int, ...]
    rows: tuple[Row, ...]
    common: Mapping[str, Any]
    zeroth: Mapping[str, Any]
    first: Mapping[str, Any]
    methods: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    evaluations: int = 1
    grid_seeds: int = 1

    def grid(self, model: str, task_name: str, row: Row, seed: int) -> Iterator[Configuration]:
        """Yield the configurations of one row of the table with this model, task and seed: every combination of the
        settings that are lists in tables.toml, in its order. Whoever makes the runs makes all of them for the first
        `grid_seeds` seeds only, and for other seeds the best one."""
        settings = {**self.common, **self._settings(row.method), **self.methods.get(row.method, {}), **row.settings}
        if settings.get("per_class") == 0:
            settings["per_class"] = None
        if row.method not in ("dpzero", "dpgd-0th", "dp-adamw", "dp-lora"):
            settings.pop("clip", None)
        if row.method == "dpgd-0th" and settings.get("direction", "gaussian") == "gaussian":
            settings["direction"] = "sphere"
        names = [name for name, value in settings.items() if isinstance(value, list)]
        for values in itertools.product(*(settings[name] for name in names)):
            chosen = {**settings, **dict(zip(names, values, strict=True))}
            yield Configuration(model=model, task=task_name, seed=seed, **chosen)

    def _settings(self, method: str) -> Mapping[str, Any]:
        return self.zeroth if method in ZEROTH_ORDER else self.first if method in FIRST_ORDER else {}


@cache
def _tables() -> dict[str, dict[str, Any]]:
    return tomllib.loads((_HERE / "tables.toml").read_text())


@cache
def _paper() -> dict[str, dict[str, list[Any]]]:
    return tomllib.loads((_HERE.parents[1] / "paper_checks" / "tables.toml").read_text())


def names() -> tuple[str, ...]:
    """Return the names of all tables in tables.toml, the figure fig:clip_lr included; the paper's have the preset
    `full`."""
    return tuple(_tables())


def table(name: str, preset: str) -> Table:
    """Return the table with this name and preset. Raises ValueError where there is none."""
    presets = _tables()[check.choice("name", name, _tables())]
    entry = dict(presets[check.choice("preset", preset, presets)])
    for key in ("models", "tasks", "seeds"):
        entry[key] = tuple(entry[key])
    return Table(name=name, preset=preset, **{**entry, "rows": tuple(map(Row, entry["rows"]))})


def paper_number(name: str, row: Row, model: str, task_name: str) -> tuple[float, float | None] | None:
    """Return the paper's number in percent and its standard error (None if the paper prints none) for a cell of the
    table `name`: a row, a model and a task. The result is None where the paper prints no number."""
    if task_name == "trec" and (name == "app:dpgd-0th" or row.method == "dpgd-0th"):
        return (_APPENDIX[row.text], None) if row.text in _APPENDIX else None
    title, entry = task(task_name).title, _paper().get(name, {})
    if name == "tab:noise":
        label, column = title, f"{row.settings['direction']}:{row.settings['epsilon']:g}"
    elif name == "tab:others":
        label, column = row.label.partition(" (")[0], "accuracy"
        label = label if label in entry else f"{label} (li2022large)"
    elif name.startswith("tab:opt"):
        label, column = row.label, f"{title}:{model.rpartition('-')[2].upper()}"
    else:
        label, column = row.label, title
    if column not in entry.get("columns", ()) or label not in entry:
        return None
    index = entry["columns"].index(column)
    errors = entry.get(f"{label}_error")
    return float(entry[label][index]), float(errors[index]) if errors else None
