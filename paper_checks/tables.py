"""The numbers of `tables.toml`: the paper's tables, the numbers in its sentences, and facts about its data."""

import tomllib
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

TABLES = Path(__file__).with_name("tables.toml")
SENTENCES, FACTS = "sentences", "facts"
"""The two parts of the file that are no tables."""


@cache
def load() -> dict[str, Any]:
    """The whole file, by table and row."""
    with TABLES.open("rb") as file:
        return tomllib.load(file)


def row(table: str, name: str) -> NDArray[np.float64]:
    """A row of a table of the paper."""
    return np.array(load()[table][name], dtype=float)


def printed(name: str) -> list[float]:
    """The paper's numbers in a sentence, or in a list of hyper-parameters."""
    return [float(x) for x in load()[SENTENCES][name]["values"]]


def fact(name: str) -> list[float]:
    """Numbers that are not in the paper."""
    return [float(x) for x in load()[FACTS][name]["values"]]
