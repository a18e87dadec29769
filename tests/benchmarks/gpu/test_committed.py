"""Tests that the claims of the documentation follow from the committed rows of the GPU jobs."""

import re

from benchmarks.gpu.jobs import JOBS
from benchmarks.kit.rows import OK, RESULTS, read_manifest, read_rows


def test_killed_fifty_times_the_whole_list_gives_the_rows_of_a_run_that_was_not() -> None:
    rows = read_rows(RESULTS / "gpu_kills")
    kills, last = rows[:-1], rows.iloc[-1]
    assert len(kills) >= 50
    assert (kills["exit"] == -9).all()
    assert set(read_manifest(RESULTS / "gpu_kills")["settings"]["only"].split()) == {job.name for job in JOBS}
    assert last["rows"] > 100
    assert (last["exit"], last["differ"]) == (0, 0)
    assert _said(r"killed (\d+) times.* the ([\d,]+) rows") == [len(kills), last["rows"]]


def test_the_whole_list_takes_three_minutes_made_small() -> None:
    jobs = read_rows(RESULTS / "gpu_smoke")
    assert set(jobs["job"]) == {job.name for job in JOBS}
    assert _said(r"whole list took (\d+) s") == [round(jobs["wall_s"].sum())]
    assert jobs["wall_s"].sum() <= 180


def test_what_a_card_has_shown_is_what_its_rows_say() -> None:
    """Directions and replays have the CPU's bits; a private step in float32 has the memory of inference."""
    card = RESULTS / "gpu" / "h100-80gb"
    tests = read_rows(card / "tests", failed=True).query("test != 'all of them'")
    passed = tests["status"] == OK
    assert _said(r"one of (\d+) failed") == [len(tests)] == [passed.sum() + 1]
    assert set(tests[~passed]["file"]) == {"tests/curvature/test_spectrum.py"}
    steps = read_rows(card / "optimizer_step").set_index(["dtype", "method"])
    private = steps.loc["float32", "private-rademacher"]
    assert private["peak_to_inference"] <= 1
    assert private["ratio"] < steps.loc["float32", "four-pass"]["ratio"]
    assert f"In float32 a private step takes {private['ratio']:.2f} times" in _pages()
    half = steps.loc["bfloat16", "private-rademacher"]
    assert half["peak_to_inference"] <= 1
    assert f"In bfloat16 a private step takes {half['ratio']:.1f} times" in _pages()


def _pages() -> str:
    pages = (RESULTS.parents[1] / "docs" / "results" / "gpu.md", RESULTS / "gpu_kills" / "NOTES.md")
    return " ".join(word for page in pages for word in page.read_text().split())


def _said(pattern: str) -> list[int]:
    found = re.search(pattern, _pages())
    assert found, pattern
    return [int(number.replace(",", "")) for number in found.groups()]
