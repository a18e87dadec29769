"""Read the numbers of `tables.toml`: the paper's tables, the numbers in its sentences, and facts about its data that
come from elsewhere."""

import tomllib
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

TABLES = Path(__file__).with_name("tables.toml")
SENTENCES, FACTS = "sentences", "facts"
"""The two sections of the file that are not tables of the paper: numbers in its sentences, and facts from elsewhere."""


@cache
def load() -> dict[str, Any]:
    """Return the contents of `tables.toml` as a dictionary from sections to their rows by name.

    A section has the label of a table of the paper, or is `sentences` (numbers in its text) or `facts` (from
    elsewhere)."""
    with TABLES.open("rb") as file:
        return tomllib.load(file)


def row(table: str, name: str) -> NDArray[np.float64]:
    """Return the numbers of the row `name` in a table of the paper, in the order of its columns; `table` is the table's
    label, such as "tab:noise"."""
    return np.array(load()[table][name], dtype=float)


def printed(name: str) -> list[float]:
    """Return the numbers of one of the paper's sentences or lists of hyper-parameters, by its name in the section
    `sentences`."""
    return [float(x) for x in load()[SENTENCES][name]["values"]]


def fact(name: str) -> list[float]:
    """Return numbers that are not in the paper, such as the size of a data set, by their name in the section
    `facts`."""
    return [float(x) for x in load()[FACTS][name]["values"]]
