"""Tests of how often the verdict on a run is right."""

from argparse import Namespace

from benchmarks.kit.rows import RESULTS, read_rows
from benchmarks.llm.verdicts import WORDS, _measure, became, counts


def test_most_runs_are_called_right() -> None:
    """95 of 100 were the aim and are not reached: who overshoots at first and learns in the end is called diverging."""
    found = counts(read_rows(RESULTS / "llm_verdicts"))
    assert all(found[word].runs >= 40 for word in WORDS)
    assert sum(of.right for of in found.values()) >= 0.93 * sum(of.runs for of in found.values())
    assert found["diverges"].early >= 0.85 * found["diverges"].runs


def test_a_run_on_digits_is_measured_again() -> None:
    at = {"trained": "linear", "k": 16, "steps": 100, "epsilon": "6"}
    for scale, word in ((0.001, "stands still"), (0.1, "learns"), (100.0, "diverges")):
        row = _measure(Namespace(work=None, data=None), {**at, "scale": scale})
        assert row["verdict"] == became(row) == word
