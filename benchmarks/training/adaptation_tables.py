"""The tables of the small models on the language models' page, from the rows of `benchmarks.adaptation`."""

from typing import Any

from benchmarks.kit.rows import RESULTS, having, read_rows
from benchmarks.kit.tables import markdown, mean_error
from benchmarks.training.adaptation import METHODS, PRESETS, reported
from benchmarks.training.adaptation_widths import cells, slopes

FAMILIES = {"opt": "OPT", "roberta": "RoBERTa"}


def methods() -> str:
    """Return a table of the perplexity of test questions before training, and after training by every method: means
    over seeds with standard errors."""
    rows = read_rows(RESULTS / "adaptation")
    shown = reported(rows)
    ends = shown[shown["step"] == shown["steps"]]
    columns = []
    for family, width in dict.fromkeys((case.family, case.width) for case in PRESETS["table"]):
        part, last = (having(of, family=family, width=width) for of in (rows, ends))
        if len(last):
            before = part[part["step"] == 0]["test_perplexity"].iloc[0]
            values = last.groupby(["method", "epsilon"])["test_perplexity"]
            found = {_name(*key): mean_error(several, ".1f", ".1f") for key, several in values if len(several) > 1}
            columns.append((f"{FAMILIES[family]}, width {width}", {"before": f"{before:.1f}", **found}))
    names = ["before", *(_name(*key) for key in METHODS)]
    lines = [[name, *(found.get(name, "-") for _, found in columns)] for name in names]
    return markdown(["method (epsilon)", *(title for title, _ in columns)], lines)


def widths() -> str:
    """Return a table by width of the steps until the loss on questions has fallen by DROP nats, and of the effective
    rank r, with 95% intervals. The text below it has the slopes of their logarithms."""
    runs, ranks = read_rows(RESULTS / "adaptation_steps"), read_rows(RESULTS / "adaptation_widths")
    header = ["width", "d", "r (bracket)", "steps (interval over seeds)"]
    return markdown(header, cells(runs, ranks)) + f"\n\n{'; '.join(slopes(runs, ranks)).capitalize()}."


def _name(name: Any, epsilon: Any) -> str:
    return f"{name} ({epsilon:g})" if epsilon else str(name)


TABLES = {"adaptation": methods, "adaptation_widths": widths}
