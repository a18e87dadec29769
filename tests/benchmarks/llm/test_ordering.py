"""The order of the methods, on cells whose answer is known."""

import math
from typing import Any

import pandas as pd
import pytest

from benchmarks.llm.ordering import ordering, sentences, turned_round

CELLS = {"Zero-Shot": (70.0, 0.0), "DPGD-0th (2)": (72.0, 3.0), "DPZero (2)": (74.0, 1.0), "DPZero (6)": (73.5, 0.5)}


def lines(**changes: tuple[float, float]) -> pd.DataFrame:
    return pd.DataFrame(
        {"row": row, "task": name, "mean": mean + (10.0 if name == "rte" else 0.0), "error": error}
        for row, (mean, error) in {**CELLS, **changes}.items()
        for name in ("sst2", "rte")
    )


def found(**changes: tuple[float, float]) -> dict[tuple[str, str], Any]:
    """(difference, error, holds) of each claim and task."""
    rows = ordering(lines(**changes)).itertuples(index=False, name=None)
    return {(claim, name): rest for claim, name, *rest in rows}


def test_each_claim_is_compared_with_the_error_of_the_difference() -> None:
    claims = found()
    assert claims["Zero-Shot < DPZero (2)", "sst2"] == [4.0, 1.0, True]
    assert claims["DPZero (2) <= DPZero (6)", "sst2"] == [-0.5, pytest.approx(math.sqrt(1.25)), True]
    assert claims["DPGD-0th (2) < DPZero (2)", "rte"] == [2.0, pytest.approx(math.sqrt(10)), False]
    assert claims["DPGD-0th (2) < DPZero (2)", "all"][1] == pytest.approx(math.sqrt(20) / 2)
    assert not any("MeZO" in claim for claim, _ in claims), "cells that have not run are left out"


def test_a_weak_claim_fails_beyond_one_standard_error() -> None:
    assert not found(**{"DPZero (6)": (72.0, 0.5)})["DPZero (2) <= DPZero (6)", "sst2"][2]
    assert not any("6" in claim for claim, _ in found(**{"DPZero (6)": (74.0, math.nan)}))


def test_pairs_that_stand_in_the_other_order_than_the_papers_are_named() -> None:
    """By more than a standard error of ours; a cell without a number of the paper is left out."""
    one = lines().assign(paper=lambda of: of["row"].map({"Zero-Shot": 90.0, "DPZero (2)": 80.0, "DPZero (6)": 70.0}))
    said = turned_round(one)
    assert said.startswith("4 of 6 pairs"), said
    assert "SST-2 DPZero (2) over Zero-Shot, DPZero (6) over Zero-Shot; RTE" in said
    assert turned_round(one.assign(paper=math.nan)) == ""


def test_sentences_say_what_does_not_hold() -> None:
    text = {line.partition(":")[0]: line for line in sentences(lines())}
    assert "SST-2 +4.0 +- 1.0, RTE +4.0 +- 1.0, mean +4.0 +- 0.7" in text["Zero-Shot < DPZero (2)"]
    assert "(does not hold)" not in text["Zero-Shot < DPZero (2)"]
    assert text["DPGD-0th (2) < DPZero (2)"].count("(does not hold)") == 3
