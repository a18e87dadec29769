"""Small local files for every task, in the layouts of tasks.toml."""

import json
from pathlib import Path
from typing import Any

from benchmarks.llm.tasks import Task

WORDS = (("terrible", "sad", "dull"), ("great", "moving", "fine"))


def write(task: Task, folder: Path, count: int = 24) -> Path:
    """Writes a task's local files into `folder`, in the layout that tasks.toml names, and returns the folder.

    Each file has `count` records, and those that are held out for tests besides; classes take turns. The first word of
    a text is one of `WORDS[class % 2]`, so it tells the class where there are two.
    """
    for split in ("train", "dev", "test"):
        name = getattr(task.local, split)
        if name:
            rows = [_row(task, index) for index in range(count + task.local.held_out)]
            (folder / name).write_text(_FORMATS[task.local.format](task, rows), encoding="latin-1")
    return folder


def _row(task: Task, index: int) -> dict[str, Any]:
    label = index % len(task.values) if task.values else 0
    word = WORDS[label % 2][index // 2 % 3]
    row: dict[str, Any] = dict.fromkeys(task.fields.values(), f"{word} film" + " film" * (index % 3))
    return {**row, task.label: task.values[label][-1]}


def _tsv(task: Task, rows: list[dict[str, Any]]) -> str:
    return "".join("\t".join(cells) + "\n" for cells in [list(rows[0]), *(list(row.values()) for row in rows)])


def _label_first(task: Task, rows: list[dict[str, Any]]) -> str:
    (column,) = task.fields.values()
    fine = ":x" * (task.local.format == "trec")
    return "".join(f"{row[task.label]}{fine} {row[column]}\n" for row in rows)


def _jsonl(task: Task, rows: list[dict[str, Any]]) -> str:
    return "".join(json.dumps(row) + "\n" for row in rows)


_FORMATS = {"sst2": _tsv, "tsv": _tsv, "label-first": _label_first, "trec": _label_first, "jsonl": _jsonl}
