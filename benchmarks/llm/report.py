"""The numbers of a table from its rows: the setting chosen on the dev records, its mean over seeds, and the paper's
number."""

import math
import statistics
from collections.abc import Sequence
from pathlib import Path

import pandas as pd

from benchmarks.kit.rows import Results, discard, read_manifest, read_rows
from benchmarks.llm.configuration import Configuration
from benchmarks.llm.grids import Row, Table, paper_number
from benchmarks.llm.ordering import sentences, turned_round
from benchmarks.llm.tasks import task

KEY = ("row", "model", "task")
FIELDS = ("method", "epsilon", "mean", "error", "seeds", "search", "paper", "paper_error")


def last_step(c: Configuration) -> int:
    """Return the value of the column `step` in the last row of a run of the configuration c: its number of steps, 0 for
    zero-shot."""
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
        index = self._at.get(tuple(map(_comparable, (*c.key().values(), last_step(c)))))
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
    for row in entry.rows:
        for model in entry.models:
            for task_name in entry.tasks:
                grids = [list(entry.grid(model, task_name, row, seed)) for seed in entry.seeds]
                try:
                    index = _best(runs, grids[: entry.grid_seeds]) if len(grids[0]) > 1 else 0
                except ValueError:
                    continue
                found = [line for grid in grids if (line := runs.get(grid[index])) is not None]
                if not found:
                    continue
                values = 100 * pd.Series([float(line["test_metric"]) for line in found])
                paper = paper_number(entry.name, row, model, task_name)
                lines.append(
                    {
                        "row": row.label, "model": model, "task": task_name,
                        "method": row.method, "epsilon": _epsilon(row),
                        "mean": values.mean(),
                        "error": values.sem() if len(values) > 1 else math.nan, "seeds": len(values),
                        "search": len(grids[0]) * entry.grid_seeds if len(grids[0]) > 1 else 1,
                        "paper": paper[0] if paper else math.nan,
                        "paper_error": paper[1] if paper and paper[1] is not None else math.nan,
                    }
                )  # fmt: skip
    return pd.DataFrame(lines)


def _epsilon(row: Row) -> str:
    return f"{row.settings['epsilon']:g}" if "epsilon" in row.settings else "none"


def report(entry: Table, rows: pd.DataFrame) -> str:
    """Return the table `entry` in Markdown, made from the rows of its runs: ours / the paper's, in percent, mean and
    standard error; below it what `ordering` finds."""
    lines = summary(entry, rows)
    cells = [(model, name) for model in entry.models for name in entry.tasks]
    titles = [f"{task(name).title} {model}" if len(entry.models) > 1 else task(name).title for model, name in cells]
    text = [f"{entry.name}, {entry.preset}: ours / paper, test in percent", ""]
    text += ["| method | " + " | ".join(titles) + " |", "|---" * (len(cells) + 1) + "|"]
    for row in entry.rows:
        shown = []
        for model, name in cells:
            line = lines[(lines["row"] == row.label) & (lines["model"] == model) & (lines["task"] == name)]
            shown.append("" if line.empty else _cell(line.iloc[0]))
        text.append(f"| {row.label} | " + " | ".join(shown) + " |")
    claims = list(filter(None, [*sentences(lines), turned_round(lines)])) if len(entry.models) == 1 else []
    return "\n".join([*text, "", *(f"- {claim}" for claim in claims)] if claims else text)


def _cell(line: pd.Series) -> str:
    def number(mean: float, error: float) -> str:
        return "-" if math.isnan(mean) else f"{mean:.1f}" + ("" if math.isnan(error) else f" +- {error:.1f}")

    return f"{number(line['mean'], line['error'])} / {number(line['paper'], line['paper_error'])}"


def save_summary(entry: Table, folder: Path) -> None:
    """Write the `summary` of the table `entry`, from the rows in `folder`, into FOLDER_summary beside that folder."""
    lines = summary(entry, read_rows(folder))
    place = folder.with_name(folder.name + "_summary")
    discard(place)
    source = {folder.name: read_manifest(folder)["sha256"]}
    results = Results(
        place, key=KEY, fields=FIELDS, seeds=entry.seeds, device="cpu", dtype="float64", settings={"rows": source}
    )
    with results:
        values = lines.astype(object).where(lines.notna(), None)
        results.add({str(name): value for name, value in line.items()} for _, line in values.iterrows())
