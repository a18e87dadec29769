"""The sentence of `benchmarks.forged_folders` on a page of docs/results, which the experiment prints too."""

from pathlib import Path

from benchmarks.kit.rows import RESULTS, read_rows
from benchmarks.kit.tables import paragraphs


def forged_folders(folder: Path = RESULTS / "forged_folders") -> str:
    """Return the sentence that says what became of the folders in the committed rows: how many were accepted although
    something was wrong with them, and how many ended in another fault."""
    rows = read_rows(folder)
    kinds = ", ".join(f"{count} {kind}" for kind, count in rows["kind"].value_counts().sort_index().items())
    wrong = {name: int(rows[name].sum()) for name in ("accepted", "wedged", "traceback", "unclear")}
    untold = rows[rows["told"] == 0]
    return paragraphs(
        f"""Of {len(rows):,} folders ({kinds}; `python -m benchmarks.forged_folders`) {wrong["accepted"]} were accepted
        of those where it can be told that something is wrong, {wrong["wedged"]} were wedged, {wrong["traceback"]} ended
        in a traceback and {wrong["unclear"]} in anything but one clear line. {len(untold)} were changed in a way that
        cannot be told, or lost nothing; of these {int(untold["held"].sum())} were accepted."""
    )
