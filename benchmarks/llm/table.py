"""Run or resume all rows of one of the paper's tables; ours beside the paper's.  python -m benchmarks llm.table NAME

    python -m benchmarks llm.table tab:dpzero-mezo --preset full --device cuda
    python -m benchmarks llm.table tab:dpzero-mezo --preset few-steps --data DIR

tables.toml has the runs of each table. Where a row of the table has a grid of settings, they are compared by the metric
on the dev records, which are taken to be public: its mean over the first `grid_seeds` seeds. The other seeds run the
best setting. The table's epsilon is that of one run; `search` is the number of runs compared. `fig:clip_lr` is a table
too: all points of its grid, evaluated along the run.
"""

import itertools
import math
import statistics
import sys
import tomllib
from argparse import Namespace
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import pandas as pd

from benchmarks.kit.device import chosen_device
from benchmarks.kit.experiment import Command, flag
from benchmarks.kit.rows import RESULTS, Results, discard, read_manifest, read_rows
from benchmarks.kit.tables import markdown
from benchmarks.llm.configuration import FIRST_ORDER, PRIVATE, ZEROTH_ORDER, Configuration
from benchmarks.llm.models import LanguageModel, load, model_name
from benchmarks.llm.records import Splits, splits
from benchmarks.llm.records import load as read
from benchmarks.llm.runs import FIELDS, KEY, execute
from benchmarks.llm.tasks import task
from dpzero_theory import check
from dpzero_theory.cli import Parser, Several, input_folder, integer, output_folder

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
        found: dict[str, Any] = dict(zip(("method", "epsilon", "direction"), self.text.split(":"), strict=False))
        return found | ({"epsilon": float(found["epsilon"])} if "epsilon" in found else {})

    @property
    def label(self) -> str:
        """The row's name in the paper's tables, such as DPZero (6)."""
        method, *rest = self.text.split(":")
        return LABELS[method] + (f" ({', '.join(rest)})" if rest else "")


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
        settings that are lists in tables.toml, in its order."""
        of = self.zeroth if row.method in ZEROTH_ORDER else self.first if row.method in FIRST_ORDER else {}
        settings = {**self.common, **of, **self.methods.get(row.method, {}), **row.settings}
        if settings.get("per_class") == 0:
            settings["per_class"] = None
        if row.method not in PRIVATE:
            settings.pop("clip", None)
        if row.method == "dpgd-0th" and settings.get("direction", "gaussian") == "gaussian":
            settings["direction"] = "sphere"
        names = [name for name, value in settings.items() if isinstance(value, list)]
        for values in itertools.product(*(settings[name] for name in names)):
            chosen = {**settings, **dict(zip(names, values, strict=True))}
            yield Configuration(model=model, task=task_name, seed=seed, **chosen)


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
    label, column = row.label, title
    if name == "tab:noise":
        label, column = title, f"{row.settings['direction']}:{row.settings['epsilon']:g}"
    elif name == "tab:others":
        label, column = row.label.partition(" (")[0], "accuracy"
        label = label if label in entry else f"{label} (li2022large)"
    elif name.startswith("tab:opt"):
        column = f"{title}:{model.rpartition('-')[2].upper()}"
    if column not in entry.get("columns", ()) or label not in entry:
        return None
    index = entry["columns"].index(column)
    errors = entry.get(f"{label}_error")
    return float(entry[label][index]), float(errors[index]) if errors else None


def run_table(
    entry: Table,
    results: Results,
    *,
    data: Path | None,
    runs: Path,
    rows: int,
    load_model: Callable[[str, str], LanguageModel],
    say: Callable[[str], None] = print,
) -> None:
    """Make the runs of the table that are not in `results` yet, seed by seed, so that every cell has a number early.

    entry: the table. results: where the rows are kept. data: a folder of local files, else Hugging Face. runs: the
    parent of the runs' folders. rows: records in one forward pass. load_model: loads a model by name and dtype. say: is
    called with lines that say what happens.
    """
    loaded: dict[tuple[str, str], LanguageModel] = {}
    found: tuple[object, Splits] | None = None
    for seed, model, name, row in itertools.product(entry.seeds, entry.models, entry.tasks, entry.rows):
        for c in _configurations(entry, results, model, name, row, seed):
            if results.done(**c.key(), step=_last_step(c)):
                continue
            if (model, c.dtype) not in loaded:
                loaded = {(model, c.dtype): load_model(model, c.dtype)}
            if found is None or found[0] != (name, seed, c.selection):
                found = (name, seed, c.selection), splits(task(name), c.selection, seed, data)
            outcome = execute(
                c, loaded[model, c.dtype], folder=runs, rows=rows, evaluations=entry.evaluations, found=found[1]
            )
            results.add([line for line in outcome.rows if not results.done(**{k: line[k] for k in KEY})])
            last = outcome.rows[-1]
            metric = "" if last["test_metric"] is None else f"{100 * last['test_metric']:.1f}"
            say(f"{model} {name} {row.label} seed {seed}: test {metric}, {last['seconds']:.0f} s")


def _configurations(
    entry: Table, results: Results, model: str, task_name: str, row: Row, seed: int
) -> list[Configuration]:
    grid, choosing = list(entry.grid(model, task_name, row, seed)), entry.seeds[: entry.grid_seeds]
    if seed in choosing or len(grid) == 1:
        return grid
    compared = [list(entry.grid(model, task_name, row, other)) for other in choosing]
    return [grid[best(read_rows(results.folder), compared)]]


def _last_step(c: Configuration) -> int:
    return 0 if c.method == "zero-shot" else c.steps


class _Lines:
    """The rows of runs by configuration: for each run the row after its last step. Values are compared as numbers where
    they are numbers, so that 1e-6 finds 0.000001."""

    def __init__(self, rows: pd.DataFrame) -> None:
        self._rows = rows
        columns = [*Configuration.columns(), "step"]
        values = (map(_comparable, rows[name].tolist()) for name in columns)
        self._at = {key: index for index, key in reversed([*enumerate(zip(*values, strict=True))])}

    def get(self, c: Configuration) -> pd.Series | None:
        """Return the row of a configuration; None where it has not run."""
        index = self._at.get(tuple(map(_comparable, (*c.key().values(), _last_step(c)))))
        return None if index is None else self._rows.iloc[index]


def _comparable(value: object) -> float | str:
    try:
        return float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        return str(value)


def best(rows: pd.DataFrame, grids: Sequence[Sequence[Configuration]]) -> int:
    """Return the index of the setting with the best metric on the dev records, in the mean over seeds; of equal ones,
    that with the smallest mean loss there.

    rows: those of the runs. grids: for each seed, the configurations with each setting, in one order for all seeds.
    Raises ValueError where a configuration has no row.
    """
    return _best(_Lines(rows), grids)


def _best(rows: _Lines, grids: Sequence[Sequence[Configuration]]) -> int:
    lines = [[rows.get(c) for c in settings] for settings in zip(*grids, strict=True)]
    if any(line is None for found in lines for line in found):
        raise ValueError("rows must hold every configuration of the grid")

    def mean(index: int, name: str) -> float:
        return statistics.fmean(line[name] for line in lines[index])  # type: ignore[index]

    return max(range(len(lines)), key=lambda i: (mean(i, "dev_metric"), -mean(i, "dev_loss")))


def summary(entry: Table, rows: pd.DataFrame) -> pd.DataFrame:
    """Return a line for each row, model and task of the table: the mean and its standard error, in percent, over its
    seeds.

    entry: the table. rows: the results of its runs. In the column `search` is the number of runs compared; `paper` and
    `paper_error` are the paper's numbers.
    """
    runs, lines = _Lines(rows), []
    for row, model, name in itertools.product(entry.rows, entry.models, entry.tasks):
        grids = [list(entry.grid(model, name, row, seed)) for seed in entry.seeds]
        several = len(grids[0]) > 1
        try:
            index = _best(runs, grids[: entry.grid_seeds]) if several else 0
        except ValueError:
            continue
        found = [line for grid in grids if (line := runs.get(grid[index])) is not None]
        if not found:
            continue
        values = 100 * pd.Series([float(line["test_metric"]) for line in found])
        paper, error = paper_number(entry.name, row, model, name) or (math.nan, None)
        epsilon = f"{row.settings['epsilon']:g}" if "epsilon" in row.settings else "none"
        lines.append(
            {
                "row": row.label, "model": model, "task": name, "method": row.method, "epsilon": epsilon,
                "mean": values.mean(), "error": values.sem() if len(values) > 1 else math.nan, "seeds": len(values),
                "search": len(grids[0]) * entry.grid_seeds if several else 1,
                "paper": paper, "paper_error": math.nan if error is None else error,
            }
        )  # fmt: skip
    return pd.DataFrame(lines)


def report(entry: Table, rows: pd.DataFrame) -> str:
    """Return the table `entry` in Markdown, made from the rows of its runs: ours / the paper's, in percent, mean and
    standard error."""
    lines = summary(entry, rows)
    cells = list(itertools.product(entry.models, entry.tasks))
    titles = [f"{task(name).title} {model}" if len(entry.models) > 1 else task(name).title for model, name in cells]
    shown = []
    for row in entry.rows:
        mine = lines[lines["row"] == row.label].set_index(["model", "task"])
        shown.append([row.label, *(_cell(mine.loc[cell]) if cell in mine.index else "" for cell in cells)])
    return f"{entry.name}, {entry.preset}: ours / paper, test in percent\n\n{markdown(['method', *titles], shown)}"


def _cell(line: Any) -> str:
    def number(mean: float, error: float) -> str:
        return "-" if math.isnan(mean) else f"{mean:.1f}" + ("" if math.isnan(error) else f" +- {error:.1f}")

    return f"{number(line['mean'], line['error'])} / {number(line['paper'], line['paper_error'])}"


def save_summary(entry: Table, folder: Path) -> None:
    """Write the `summary` of the table `entry`, from the rows in `folder`, into FOLDER_summary beside it."""
    lines, place = summary(entry, read_rows(folder)), folder.with_name(folder.name + "_summary")
    discard(place)
    results = Results(
        place, key=("row", "model", "task"), fields=list(lines.columns[3:]), seeds=entry.seeds, device="cpu",
        dtype="float64", settings={"rows": {folder.name: read_manifest(folder)["sha256"]}},
    )  # fmt: skip
    with results:
        values = lines.astype(object).where(lines.notna(), None)
        results.add({str(name): value for name, value in line.items()} for _, line in values.iterrows())


def results_of(entry: Table, folder: Path, device: str, dtype: str) -> Results:
    return Results(folder, key=KEY, fields=FIELDS, seeds=entry.seeds, device=device, dtype=dtype)


def _body(parser: Parser, options: Namespace) -> int:
    """The command: make the runs of the table that are missing, and print the table beside the paper's numbers."""
    device = chosen_device(parser, options.device)
    with parser.refusals():
        entry = _narrowed(table(options.name, options.preset), options)
    place = "llm_" + entry.name.rpartition(":")[2].replace("-", "_")
    folder = options.out or (Path("out") if entry.preset == "smoke" else RESULTS) / place
    if not options.report:
        if options.data is not None:
            with parser.refusals("--data"):
                for name in entry.tasks:
                    read(task(name), "train", options.data)
        rows = results_of(entry, folder, device, str(entry.common.get("dtype", "float32")))
        with parser.opened("--out", rows) as results, parser.refusals():
            run_table(
                entry,
                results,
                data=options.data,
                runs=options.out / "runs" if options.out else Path("out/llm") / place,
                rows=options.batch_rows,
                load_model=lambda name, dtype: load(name, dtype=dtype, device=device),
                say=lambda line: print(line, flush=True),
            )
        save_summary(entry, folder)
    with parser.refusals("--out"):
        print(report(entry, read_rows(folder)))
    return 0


def _narrowed(entry: Table, options: Any) -> Table:
    values = dict(vars(entry))
    if options.model:
        values["models"] = (options.model,)
    for name, kind in (("tasks", str), ("rows", Row)):
        wanted = getattr(options, name)
        if wanted:
            chosen = tuple(map(kind, wanted))
            unknown = [part for part in chosen if part not in values[name]]
            if unknown:
                raise ValueError(f"--{name} must be some of the table's; got {wanted}")
            values[name] = chosen
    return Table(**values)


EXPERIMENT = Command(
    "llm.table",
    __doc__,
    _body,
    [
        flag("name", choices=names()),
        flag("--preset", choices=PRESETS, default="smoke"),
        flag("--model", type=model_name, help="folder or id instead of the table's models"),
        flag("--tasks", nargs="+", action=Several, help="some of the table's tasks"),
        flag("--rows", nargs="+", action=Several, help="some of the table's rows, as METHOD[:EPSILON[:DIRECTION]]"),
        flag("--data", type=input_folder(), help="folder of local files (default: Hugging Face)"),
        flag("--device", choices=("auto", "cpu", "cuda"), default="auto"),
        flag("--batch-rows", type=integer(1, 10_000), default=16),
        flag(
            "--out",
            type=output_folder,
            help="folder of rows, runs in it (default: out/llm_NAME, else benchmarks/results/llm_NAME; runs: out/llm)",
        ),
        flag("--report", action="store_true", help="print what is there and run nothing"),
    ],
)

if __name__ == "__main__":
    sys.exit(EXPERIMENT.main())
