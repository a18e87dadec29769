"""The tables of the pages on language models, made from the committed rows."""

from collections.abc import Callable, Hashable, Mapping
from typing import Any

import pandas as pd

from benchmarks.kit.rows import RESULTS, having, read_rows
from benchmarks.kit.tables import markdown, percent
from benchmarks.llm import (
    auto,
    directions_total,
    engine,
    last_layer,
    last_norm,
    last_norm_tasks,
    many_directions,
    only_d,
    tuned,
)
from benchmarks.llm.tasks import task
from benchmarks.llm.top import ADAPTERS, NORM, WHOLE
from benchmarks.llm.tuned import CHOSEN, LABELS, NONE

METHODS = (
    ("zero-shot", NONE), ("dpzero", "2"), ("dp-adamw", "2"), ("dpzero", "6"), ("dp-adamw", "6"), ("adamw", NONE),
)  # fmt: skip
_SHORT = {NORM: "576 gains", ADAPTERS: "adapters", WHOLE: "all"}


def _ends(name: str) -> pd.DataFrame:
    """Return the rows of runs after their last step. name: of the folder."""
    rows = read_rows(RESULTS / name)
    return rows[rows["step"] == rows.groupby("method")["step"].transform("max")] if "step" in rows else rows


def sst2() -> pd.DataFrame:
    """Return the rows of `last_norm` on the most training phrases, with the columns `task` and `prompt` that those of
    `last_norm_tasks` have."""
    rows = _ends("llm_last_norm")
    return rows[rows["n"] == last_norm.LARGE].assign(task=last_norm.TASK, prompt="paper")


def methods() -> str:
    """Return a table of the test accuracy of every method, by task, by what is trained and by the number of directions
    that DPZero has in all, with the paper's prompts."""
    found: dict[tuple[str, ...], tuned.End] = {}

    def add(what: str, directions: str, given: Mapping[tuple[str, ...], tuned.End]) -> None:
        found.update({(task(name).title, _SHORT[what], directions, *at): end for (name, *at), end in given.items()})

    norm = directions_total.ends(_ends("llm_directions_total"))
    add(NORM, "64,000", {at[:3]: end for at, end in norm.items() if at[3] in ("0", "64000")})
    layer = _ends("llm_last_layer").query("task in @directions_total.TASKS")
    few = tuned.ends(layer, "task", "method", "epsilon")
    more = {(name, "dpzero", epsilon): end for (name, way, epsilon), end in few.items() if way == last_layer.MANY}
    add(ADAPTERS, "2,400", few)
    beside = {at: end for at, end in few.items() if at[0] in {name for name, *_ in more} and at[1] != "dpzero"}
    add(ADAPTERS, "16,000", beside | more)
    whole = tuned.ends(_ends("llm_all_weights").assign(task=last_norm.TASK), "task", "method", "epsilon")
    long = having(read_rows(RESULTS / "llm_many_directions"), steps=1000).assign(task=last_norm.TASK)
    add(WHOLE, "300", whole)
    add(WHOLE, "64,000", whole | tuned.ends(long, "task", "method", "epsilon"))
    titles = [task(name).title for name in directions_total.TASKS]
    return tuned.table(
        dict(sorted(found.items(), key=lambda end: titles.index(end[0][0]))), ("task", "trained", "K T"), METHODS
    )


def methods_order() -> str:
    """Return a table of the differences between neighbours in the paper's order of methods, by task and prompt."""
    one = tuned.ends(sst2(), "task", "prompt", "method", "epsilon")
    found = one | last_norm_tasks.ends(read_rows(RESULTS / "llm_last_norm_tasks"))
    return tuned.order({(task(name).title, *rest): end for (name, *rest), end in found.items()}, ("task", "prompt"))


def one_task() -> str:
    """Return a table of the accuracy of a pretrained language model before and after its last normalisation was
    trained: mean over the reported runs and 95% interval of it (Student's t), by method, epsilon and n."""
    ends = _ends("llm_last_norm")
    ends = ends[ends["setting"].astype(str) == CHOSEN]
    start = 100 * float(ends[ends["method"] == "zero-shot"]["test_accuracy"].iloc[0])
    lines: list[tuple[int, float, list[str]]] = []
    for (n, method, epsilon), part in ends.groupby(["n", "method", "epsilon"]):
        mean = 100 * float(part["test_accuracy"].mean())
        name = LABELS[str(method)] + ("" if str(epsilon) == NONE else f" ({epsilon})")
        tuned_at = [f"{n:,}", f"{part['step_size'].iloc[0]:g}"] if method != "zero-shot" else ["-", "-"]
        shown = [percent(part["test_accuracy"]), f"{mean - start:+.1f}", f"{len(part)}"]
        seconds = f"{part['seconds'].median():.0f} s"
        lines.append((int(str(n)) if method != "zero-shot" else 0, mean, [name, *tuned_at, *shown, seconds]))
    heads = ["method (epsilon)", "n", "step size", "test accuracy (%)", "gain", "runs", "a run"]
    return markdown(heads, [line for *_, line in sorted(lines)])


def language_models() -> str:
    """Return a table of every method's accuracy on the small encoder, beside the paper's on RoBERTa-large."""
    rows = read_rows(RESULTS / "llm_dpzero_mezo_summary")
    names = list(dict.fromkeys(rows["task"]))
    lines = [
        [str(label), *(f"{_number(row, 'mean', 'error')} / {_number(row, 'paper', 'paper_error')}" for row in cells)]
        for label, part in rows.groupby("row", sort=False)
        for cells in [part.set_index("task").loc[names].to_dict("records")]
    ]
    return markdown(["method", *(task(name).title for name in names)], lines)


def encoder() -> str:
    """Return a table of every method's accuracy on the encoder of RoBERTa-base's size, beside the paper's on
    RoBERTa-large. Zeroth-order methods have `directions_total.MEZO` directions in all."""
    rows, paper = read_rows(RESULTS / "llm_directions_total_mpnet"), read_rows(RESULTS / "llm_dpzero_mezo_summary")
    found, lines = directions_total.ends(rows), []
    names = [name for name in directions_total.TASKS if (name, "zero-shot", NONE, "0") in found]
    for (text, method, epsilon), part in paper.groupby(["row", "method", "epsilon"], sort=False):
        directions = str(directions_total.MEZO if method in ("dpzero", "mezo") else 0)
        ours = [found.get((name, str(method), str(epsilon), directions)) for name in names]
        theirs = part.set_index("task").loc[names].to_dict("records")
        cells = [
            f"{'-' if end is None else end.text()} / {_number(row, 'paper', 'paper_error')}"
            for end, row in zip(ours, theirs, strict=True)
        ]
        lines += [[str(text), *cells]] * any(ours)
    return markdown(["method", *(task(name).title for name in names)], lines)


def _number(row: Mapping[Hashable, Any], mean: str, error: str) -> str:
    if pd.isna(row[mean]):
        return "-"
    return f"{row[mean]:.1f}" + ("" if pd.isna(row[error]) else f" +- {row[error]:.1f}")


TABLES: Mapping[str, Callable[[], str]] = {
    "language_models": language_models,
    "last_norm": one_task,
    "last_norm_tasks": lambda: last_norm_tasks.table(read_rows(RESULTS / "llm_last_norm_tasks")),
    "methods_order": methods_order,
    "llm_methods": methods,
    "only_d": lambda: only_d.table(only_d.committed(), read_rows(RESULTS / "llm_only_d_rank")),
    "llm_last_layer": lambda: last_layer.table(read_rows(RESULTS / "llm_last_layer")),
    "llm_directions_total": lambda: directions_total.table(read_rows(RESULTS / "llm_directions_total")),
    "llm_encoder": encoder,
    "llm_directions_total_mpnet": lambda: directions_total.table(read_rows(RESULTS / "llm_directions_total_mpnet")),
    "llm_directions_rules": lambda: directions_total.rules_table(read_rows(RESULTS / "llm_directions_total")),
    "llm_directions_split": lambda: directions_total.splits_table(read_rows(RESULTS / "llm_directions_total")),
    "llm_directions_shaped": lambda: directions_total.shaped_table(
        *(read_rows(RESULTS / f"llm_directions_{name}") for name in ("total", "shaped", "shaped_adamw"))
    ),
    "llm_many_directions": many_directions.table,
    "llm_auto": lambda: auto.table(read_rows(RESULTS / "llm_auto")),
    "llm_engine": lambda: engine.table(read_rows(RESULTS / "llm_engine")),
}
