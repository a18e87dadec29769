"""The order of the methods, on cells whose answer is known."""

import math

import pandas as pd
import pytest

from benchmarks.llm.ordering import ordering, sentences

CELLS = {"Zero-Shot": (70.0, 0.0), "DPGD-0th (2)": (72.0, 3.0), "DPZero (2)": (74.0, 1.0), "DPZero (6)": (73.5, 0.5)}


def lines(**changes: tuple[float, float]) -> pd.DataFrame:
    return pd.DataFrame(
        {"row": row, "task": name, "mean": mean + (10.0 if name == "rte" else 0.0), "error": error}
        for row, (mean, error) in {**CELLS, **changes}.items()
        for name in ("sst2", "rte")
    )


def test_each_claim_is_compared_with_the_error_of_the_difference() -> None:
    found = ordering(lines()).set_index(["claim", "task"])
    strict = found.loc[("Zero-Shot < DPZero (2)", "sst2")]
    assert (strict["difference"], strict["error"], strict["holds"]) == (4.0, 1.0, True)
    weak = found.loc[("DPZero (2) <= DPZero (6)", "sst2")]
    assert (weak["difference"], weak["holds"]) == (-0.5, True)
    assert weak["error"] == pytest.approx(math.sqrt(1.25))
    below = found.loc[("DPGD-0th (2) < DPZero (2)", "rte")]
    assert (below["difference"], below["holds"]) == (2.0, False), "2 is not above sqrt(3^2 + 1^2)"
    assert found.loc[("DPGD-0th (2) < DPZero (2)", "all")]["error"] == pytest.approx(math.sqrt(20) / 2)
    assert not any("MeZO" in claim for claim, _ in found.index), "cells that have not run are left out"


def test_a_weak_claim_fails_beyond_one_standard_error() -> None:
    found = ordering(lines(**{"DPZero (6)": (72.0, 0.5)})).set_index(["claim", "task"])["holds"]
    assert not found["DPZero (2) <= DPZero (6)", "sst2"]
    assert not ordering(lines(**{"DPZero (6)": (74.0, math.nan)}))["claim"].str.contains("6").any()


def test_sentences_say_what_does_not_hold() -> None:
    text = {line.partition(":")[0]: line for line in sentences(lines())}
    assert "SST-2 +4.0 +- 1.0, RTE +4.0 +- 1.0, mean +4.0 +- 0.7" in text["Zero-Shot < DPZero (2)"]
    assert text["DPGD-0th (2) < DPZero (2)"].count("(does not hold)") == 2
