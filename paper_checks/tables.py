"""The numbers of `tables.toml`: the paper's tables, the numbers in its sentences, and facts about its data."""

import tomllib
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

TABLES = Path(__file__).with_name("tables.toml")
SENTENCES, FACTS = "sentences", "facts"
"""The two parts that are no tables."""


@cache
def load() -> dict[str, Any]:
    """Everything, by table and row."""
    with TABLES.open("rb") as file:
        return tomllib.load(file)


def row(table: str, name: str) -> NDArray[np.float64]:
    """A row of a table of the paper."""
    return np.array(load()[table][name], dtype=float)


def printed(name: str) -> list[float]:
    """The numbers of a sentence or of a list of hyper-parameters."""
    return [float(x) for x in load()[SENTENCES][name]["values"]]


def fact(name: str) -> list[float]:
    """Numbers that are not the paper's."""
    return [float(x) for x in load()[FACTS][name]["values"]]
