r"""Put the rows of several folders into one.  python -m benchmarks.merge FOLDER FOLDER ... --out FOLDER

Cells (groups of rows that are made together) are independent, so several machines can share them: job I of N measures
its share in a folder of its own, and then the folders are merged. With a Slurm array of 64 jobs:

    sbatch --array=1-64 --wrap 'python -m benchmarks.synthetic --preset paper --seeds 5 --jobs 1 \
        --share $SLURM_ARRAY_TASK_ID/64 --out out/parts/$SLURM_ARRAY_TASK_ID'
    python -m benchmarks.merge out/parts/*[0-9] --out out/whole
    python -m benchmarks.synthetic --preset paper --seeds 5 --out out/whole     # makes what is missing: nothing

The rows of each folder are checked against its manifest. Columns, settings and dtype must be the same in all folders. A
row that several folders have must be the same in all of them, except that a row that is ok replaces one that failed.
With --first the row of the folder that is named first counts, as where some rows were made again. The merged manifest
lists the runs of all folders.
"""

import csv
import gzip
import io
from argparse import Namespace
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from benchmarks.kit.experiment import Command, flag
from benchmarks.kit.rows import OK, Results, read_manifest, read_rows, shown
from dpzero_theory.cli import Parser, input_folder, output_folder

SAME = ("key", "cell", "dtype", "settings")


def merge(folders: Sequence[Path], out: Path) -> Results:
    """Return a `Results` for the rows of all folders, to be stored in `out`. It is not opened yet, so nothing is
    written. Raises ValueError if columns, settings or dtypes of the folders differ."""
    manifests = [read_manifest(folder) for folder in folders]
    for folder, manifest in zip(folders, manifests, strict=True):
        for name in SAME:
            if manifest.get(name) is None or manifest[name] != manifests[0][name]:
                raise ValueError(f"{folder} has {name} {manifest.get(name)}, {folders[0]} {manifests[0].get(name)}")
    columns = {tuple(_table(folder)[0]) for folder in folders}
    if len(columns) > 1:
        raise ValueError(f"folders must have the same columns; got {sorted(columns)}")
    first = manifests[0]
    return Results(
        out,
        key=first["key"],
        fields=columns.pop()[len(first["key"]) : -1],
        seeds=first["seeds"],
        device=first["device"],
        dtype=first["dtype"],
        settings=first["settings"],
        cell=first["cell"],
        compress=any((folder / "rows.csv.gz").exists() for folder in folders),
    )


def _table(folder: Path) -> list[list[str]]:
    """Return the lines of a folder's rows, each a list of texts, the header first. Raises FileNotFoundError if there
    are no rows, and ValueError if they are not the rows of its manifest."""
    read_rows(folder)
    packed = folder / "rows.csv.gz"
    text = gzip.decompress(packed.read_bytes()) if packed.exists() else (folder / "rows.csv").read_bytes()
    return list(csv.reader(io.StringIO(text.decode(), newline="")))


def _rows(folders: Sequence[Path], key: Sequence[str], *, first: bool = False) -> Iterator[dict[str, Any]]:
    """Yield every row of the folders once, where the columns in `key` tell rows apart. If several folders have a row,
    one that is ok replaces one that failed. Raises ValueError if two that are ok differ, unless `first` says
    that the row of the earlier folder counts."""
    found: dict[tuple[str, ...], dict[str, Any]] = {}
    for folder in folders:
        header, *lines = _table(folder)
        for line in lines:
            row = dict(zip(header, line, strict=True))
            name = tuple(row[column] for column in key)
            other = found.get(name)
            if other is None or other["status"] != OK:
                found[name] = row
            elif row["status"] == OK and row != other and not first:
                named = dict(zip(key, name, strict=True))
                raise ValueError(f"{folder} has another row {named} than the folders before it")
    for row in found.values():
        yield {column: value or None for column, value in row.items()}


def _body(parser: Parser, options: Namespace) -> int:
    """Merge the given folders into --out, which keeps the rows that it has, and return the exit status 0."""
    with parser.refusals("folders"):
        results = merge(options.folders, options.out)
        rows = list(_rows(options.folders, results.key, first=options.first))
    with parser.opened("--out", results):
        for folder in options.folders:
            results.inherit(read_manifest(folder))
            print(f"{shown(folder)}: merged", flush=True)
        column, value = options.without or ("", "")
        rows = [row for row in rows if not column or row[column] != value]
        results.add(row for row in rows if not results.done(**{name: row[name] for name in results.key}))
    return 0


EXPERIMENT = Command(
    "merge",
    __doc__,
    _body,
    [
        flag("folders", nargs="+", type=input_folder("manifest.json"), help="folders of rows"),
        flag("--without", nargs=2, metavar=("COLUMN", "VALUE"), help="leave out the rows with this value"),
        flag("--first", action="store_true", help="of rows that differ, take that of the folder named first"),
        flag("--out", type=output_folder, required=True, help="folder of the merged rows"),
    ],
)
