"""The tables of the small models' part of the language models' page, from the rows of `benchmarks.adaptation`."""

from typing import Any

from benchmarks.adaptation import METHODS, PRESETS
from benchmarks.adaptation_widths import cells, slopes
from benchmarks.kit.rows import RESULTS, read_rows
from benchmarks.kit.tables import markdown, mean_error

__all__ = ["TABLES", "methods", "widths"]

FAMILIES = {"opt": "OPT", "roberta": "RoBERTa"}


def methods() -> str:
    """Test perplexity of questions before, and after every method; means over seeds with standard errors."""
    rows = read_rows(RESULTS / "adaptation")
    columns = []
    for family, width in dict.fromkeys((case.family, case.width) for case in PRESETS["table"]):
        part = rows[(rows["family"] == family) & (rows["width"] == width)]
        last = part[(part["seed"] > 0) & (part["step"] == part["steps"])].groupby(["method", "epsilon"])
        if len(last):
            before = part[part["step"] == 0]["test_perplexity"].iloc[0]
            found = {
                _name(*key): mean_error(values, ".1f", ".1f")
                for key, values in last["test_perplexity"]
                if len(values) > 1
            }
            columns.append((f"{FAMILIES[family]}, width {width}", {"before": f"{before:.1f}", **found}))
    names = ["before", *(_name(*key) for key in METHODS)]
    lines = [[name, *(found.get(name, "-") for _, found in columns)] for name in names]
    return markdown(["method (epsilon)", *(title for title, _ in columns)], lines)


def widths() -> str:
    """Steps until the loss on questions has fallen, and r, by width; 95% intervals; slopes on logarithms below."""
    runs, ranks = read_rows(RESULTS / "adaptation_steps"), read_rows(RESULTS / "adaptation_widths")
    header = ["width", "d", "r (bracket)", "steps (interval over seeds)"]
    return markdown(header, cells(runs, ranks)) + f"\n\n{'; '.join(slopes(runs, ranks)).capitalize()}."


def _name(name: Any, epsilon: Any) -> str:
    return f"{name} ({epsilon:g})" if epsilon else str(name)


TABLES = {"adaptation": methods, "adaptation_widths": widths}
