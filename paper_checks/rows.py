"""Read committed rows of benchmarks as text, so that the checks run without pandas, which the benchmarks' own reader
needs."""

import csv
import gzip
import hashlib
import io
import json
from collections.abc import Iterator
from pathlib import Path

RESULTS = Path(__file__).parents[1] / "benchmarks" / "results"


def read(folder: str) -> Iterator[dict[str, str]]:
    """Return an iterator over the rows of `benchmarks/results/FOLDER` with status ok, as dictionaries of text by
    column, where FOLDER is `folder`. Raises ValueError if the file's SHA-256 is not the one in its manifest, and
    FileNotFoundError if there is no such file."""
    path = RESULTS / folder / "rows.csv"
    text = path.read_bytes() if path.exists() else gzip.decompress(path.with_suffix(".csv.gz").read_bytes())
    manifest = json.loads(path.with_name("manifest.json").read_text())
    if hashlib.sha256(text).hexdigest() != manifest["sha256"]:
        raise ValueError(f"the rows in {folder} are not those of its manifest: run again {manifest['command']}")
    return (row for row in csv.DictReader(io.StringIO(text.decode())) if row["status"] == "ok")
