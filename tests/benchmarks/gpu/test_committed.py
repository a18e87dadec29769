"""The claims that rest on committed rows."""

from benchmarks.gpu.jobs import JOBS
from benchmarks.kit.rows import RESULTS, read_manifest, read_rows


def test_killed_fifty_times_the_whole_list_gives_the_rows_of_a_run_that_was_not() -> None:
    rows = read_rows(RESULTS / "gpu_kills")
    kills, last = rows[:-1], rows.iloc[-1]
    assert len(kills) >= 50
    assert (kills["exit"] == -9).all()
    assert set(read_manifest(RESULTS / "gpu_kills")["settings"]["only"].split()) == {job.name for job in JOBS}
    assert last["rows"] > 100
    assert (last["exit"], last["differ"]) == (0, 0)
