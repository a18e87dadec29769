"""The rows of an experiment: one file rows.csv, with a row for each configuration and seed.

- The file begins with lines `# NAME: JSON`, its manifest: what is needed to repeat the run (command, commit, settings,
seeds, versions, device, dtype), the wall time, and the SHA-256 of the rows below, which every reader checks.
- A row is known by its key columns. A run may be interrupted at any moment; started again, it skips the keys that are
complete. The file is replaced whole and never edited in place.
- The last column, `status`, is `ok` or the reason why the row failed. A failed row is kept, and the next run tries it
again. A missing value is an empty field. NaN and infinity are refused, so that a failure cannot hide.
"""

import csv
import fcntl
import gzip
import hashlib
import io
import json
import math
import os
import platform
import re
import shlex
import subprocess
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeAlias

import numpy as np
import pandas as pd

from benchmarks.kit.card import accelerator

OK = "ok"
RESULTS = Path(__file__).parent.parent / "results"
PACKAGES = ("dpzero-theory", "numpy", "scipy", "torch", "scikit-learn", "transformers", "matplotlib")

Value: TypeAlias = str | int | float | bool | None


def write_atomically(path: Path, content: bytes) -> None:
    """Replace the file at `path` by the bytes `content`, or make it. At every moment, also after a crash, it holds the
    whole old content or the whole new content."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with temporary.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


class Results:
    """The rows of one experiment in `folder`. It is a context manager.

    Args:
        folder: where rows.csv (or rows.csv.gz) is, or will be.
        key: the columns that tell rows apart.
        fields: the other columns; `status` is added after them.
        seeds, device, dtype: for the manifest.
        settings: whatever else changes the meaning of a row, as JSON values.
        compress: whether the rows become rows.csv.gz when the context is left, for tables of more than a few MB.

    Entering raises ValueError if `folder` holds damaged rows, or rows with other columns, another dtype or other
    settings, and BlockingIOError while another process writes there. Leaving prints where the rows are.
    """

    def __init__(
        self,
        folder: Path,
        *,
        key: Sequence[str],
        fields: Sequence[str],
        seeds: Sequence[int],
        device: str,
        dtype: str,
        settings: Mapping[str, Any] | None = None,
        compress: bool = False,
    ) -> None:
        self.folder = folder
        self.key = tuple(key)
        self.columns = (*key, *fields, "status")
        if len(set(self.columns)) != len(self.columns):
            raise ValueError(f"key and fields must not repeat a name or contain 'status'; got {self.columns}")
        self.compress = compress
        self._identity = json.loads(json.dumps({"dtype": dtype, "settings": dict(settings or {})}))
        self._device = device
        self._seeds = set(seeds)
        self._lines: dict[tuple[str, ...], str] = {}
        self._complete: set[tuple[str, ...]] = set()
        self._earlier: list[dict[str, Any]] = []

    def __enter__(self) -> Self:
        self.folder.mkdir(parents=True, exist_ok=True)
        self._lock = os.open(self.folder, os.O_RDONLY)
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            for left_over in self.folder.glob(".*.*.*"):
                left_over.unlink()
            self._load()
        except BlockingIOError:
            os.close(self._lock)
            raise BlockingIOError(f"another process is writing to {self.folder}") from None
        except BaseException:
            os.close(self._lock)
            raise
        self._started = time.monotonic()
        self._run = {
            "command": _command(),
            "commit": _commit(),
            "started": datetime.now(UTC).isoformat(timespec="seconds"),
            "device": self._device,
        }
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if kind is None:
                if self.compress and (self.folder / "rows.csv").exists():
                    content = (self.folder / "rows.csv").read_bytes()
                    write_atomically(self.folder / "rows.csv.gz", gzip.compress(content, mtime=0))
                    (self.folder / "rows.csv").unlink()
                for path in sorted(self.folder.glob("rows.csv*"))[:1]:
                    failed = len(self._lines) - len(self._complete)
                    print(f"{len(self._lines):,} rows{f', {failed:,} failed' if failed else ''}: {shown(path)}")
        finally:
            os.close(self._lock)

    def done(self, **key: Value) -> bool:
        """Return whether the row with these values in its key columns is in the folder and has the status ok. Every key
        column must be given, else ValueError is raised."""
        return self._key(key) in self._complete

    def add(self, rows: Iterable[Mapping[str, Value]]) -> None:
        """Save rows together; after this returns no interruption can lose them.

        A column that a row does not name is empty, and its status is ok unless it names one. A failed row with the same
        key is replaced. Raises ValueError, and saves none of the rows, for an unknown column, a missing key column, NaN
        or infinity, or a key that is already complete.
        """
        new: dict[tuple[str, ...], str] = {}
        complete = set()
        for row in rows:
            unknown = set(row) - set(self.columns)
            if unknown:
                raise ValueError(f"unknown column {sorted(unknown)[0]!r}; the columns are {self.columns}")
            key = self._key(row)
            if key in self._complete or key in new:
                raise ValueError(f"the row {dict(zip(self.key, key, strict=True))} is there already")
            status = row.get("status", OK)
            new[key] = _line([_cell(name, row.get(name)) for name in self.columns[:-1]] + [_cell("status", status)])
            if status == OK:
                complete.add(key)
        self._lines.update(new)
        self._complete |= complete
        text = _line(self.columns) + "".join(self._lines.values())
        write_atomically(self.folder / "rows.csv", (self._manifest(text) + text).encode())

    def _key(self, row: Mapping[str, Value]) -> tuple[str, ...]:
        absent = [name for name in self.key if row.get(name) is None]
        if absent:
            raise ValueError(f"key column {absent[0]!r} is missing; the key is {self.key}")
        return tuple(_cell(name, row[name]) for name in self.key)

    def _load(self) -> None:
        if not rows_file(self.folder):
            return
        manifest, text = read_text(self.folder)
        for name, value in self._identity.items():
            if manifest[name] != value:
                raise ValueError(f"{self.folder} holds rows made with {_difference(name, manifest[name], value)}")
        table = csv.reader(io.StringIO(text, newline=""))
        header = tuple(next(table, ()))
        if header != self.columns:
            raise ValueError(f"{self.folder} holds rows with columns {header}, not {self.columns}")
        for cells in table:
            self._lines[tuple(cells[: len(self.key)])] = _line(cells)
        self._complete = {key for key, line in self._lines.items() if line.endswith(f",{OK}\n")}
        self._seeds |= set(manifest["seeds"])
        self._earlier += [*manifest["earlier"], {name: manifest[name] for name in _RUN}]

    def _manifest(self, text: str) -> str:
        wall = time.monotonic() - self._started
        manifest = {
            **self._run,
            "wall_s": round(wall, 3),
            "total_wall_s": round(wall + sum(run["wall_s"] for run in self._earlier), 3),
            "seeds": sorted(self._seeds),
            "key": self.key,
            **self._identity,
            "versions": _versions(),
            **accelerator(self._device),
            "platform": f"{platform.system()} {platform.machine()}, {os.cpu_count()} cores",
            "rows": len(self._lines),
            "failed": len(self._lines) - len(self._complete),
            "sha256": hashlib.sha256(text.encode()).hexdigest(),
            "earlier": self._earlier,
        }
        return "".join(f"# {name}: {json.dumps(value)}\n" for name, value in manifest.items())


_RUN = ("command", "commit", "started", "device", "wall_s")


def rows_file(folder: Path) -> Path | None:
    """Return the path of the rows in `folder`, None if there are none. rows.csv and rows.csv.gz both exist only while a
    resumed run is under way, and then rows.csv is the newer one."""
    return next((folder / name for name in ("rows.csv", "rows.csv.gz") if (folder / name).exists()), None)


def read_text(folder: Path) -> tuple[dict[str, Any], str]:
    """Return the manifest of the rows in `folder`, and the rows as text, from the line of their columns on.

    Raises FileNotFoundError if there are no rows, and ValueError if they are damaged: if the manifest is not whole, or
    its SHA-256 is not that of the rows.
    """
    path = rows_file(folder)
    if path is None:
        raise FileNotFoundError(f"no rows.csv in {folder}")
    try:
        content = path.read_bytes()
        text = (gzip.decompress(content) if path.suffix == ".gz" else content).decode()
        lines = re.match(r"(?:# .*\n)*", text)[0]  # type: ignore[index]  # matches the empty text too
        entries = (line[2:].split(": ", 1) for line in lines.splitlines())
        manifest = {name: json.loads(value) for name, value in entries}
        whole = not {*_RUN, "dtype", "settings", "seeds", "sha256", "earlier"} - set(manifest)
        damaged = not whole or hashlib.sha256(text[len(lines) :].encode()).hexdigest() != manifest["sha256"]
    except (OSError, EOFError, ValueError):
        damaged = True
    if damaged:
        raise ValueError(f"{path} is damaged, its rows are not those of its first lines: restore it, or remove it")
    return manifest, text[len(lines) :]


def read_manifest(folder: Path) -> dict[str, Any]:
    """Return the manifest of the rows in `folder`. Raises as `read_text` does."""
    return read_text(folder)[0]


def read_rows(folder: Path, *, failed: bool = False) -> pd.DataFrame:
    """Return the rows in `folder` whose status is ok, or all of them if `failed`. An empty field becomes a missing
    value.

    Raises as `read_text` does.
    """
    table = pd.read_csv(io.StringIO(read_text(folder)[1]), keep_default_na=False, na_values=[""])
    return table if failed else table[table["status"] == OK].reset_index(drop=True)


def having(rows: pd.DataFrame, **values: object) -> pd.DataFrame:
    """Return the rows that have the given values in the columns that are named by the keywords."""
    found: pd.DataFrame = rows[np.logical_and.reduce([rows[name] == value for name, value in values.items()])]
    return found


def shown(path: Path) -> str:
    """Return the path as messages show it: relative to the working folder if it is inside it."""
    return str(path.resolve().relative_to(Path.cwd()) if path.resolve().is_relative_to(Path.cwd()) else path)


def discard(folder: Path) -> None:
    """Remove the rows in `folder`, before rows that are computed from other rows are made again."""
    for name in ("rows.csv", "rows.csv.gz"):
        (folder / name).unlink(missing_ok=True)


def _difference(name: str, theirs: Any, ours: Any) -> str:
    """Return how the manifest's entry `name` in a folder (`theirs`) differs from the one wanted (`ours`), for example
    "dtype float64, not float32". If the entry is a dictionary of settings, only those that differ are named."""
    if not isinstance(theirs, dict):
        return f"{name} {theirs}, not {ours}"
    names = [key for key in {**theirs, **ours} if theirs.get(key) != ours.get(key)]
    pairs = [", ".join(f"{key} {these.get(key)}" for key in names) for these in (theirs, ours)]
    return f"{pairs[0]}, not {pairs[1]}"


def _line(cells: Sequence[str]) -> str:
    buffer = io.StringIO(newline="")
    csv.writer(buffer, lineterminator="\n").writerow(cells)
    return buffer.getvalue()


def _cell(name: str, value: object) -> str:
    if value is None:
        return ""
    if isinstance(value, (float, np.floating)) and not math.isfinite(value):
        raise ValueError(f"column {name!r} must be finite; got {value}: leave it empty and give a status")
    if isinstance(value, (float, np.floating)):
        return repr(float(value))
    return " ".join(str(value).split())


def _command() -> str:
    """Return the command line of this process, with absolute paths cut to their last name, so that no manifest
    reveals a machine's folders."""
    module = getattr(sys.modules["__main__"].__spec__, "name", "").removesuffix(".__main__")
    program = ["-m", module] if module else [Path(sys.argv[0]).name]
    arguments = [Path(word).name if Path(word).is_absolute() else word for word in sys.argv[1:]]
    return shlex.join(["python", *program, *arguments])


def _commit() -> str:
    """Return the commit of HEAD, followed by "+changes" if tracked files outside results/ differ from it; '' outside
    git."""
    git = ["git", "-C", str(Path(__file__).parent.parent)]
    try:
        head = subprocess.run([*git, "rev-parse", "HEAD"], capture_output=True, text=True, check=True)
        names = subprocess.run([*git, "diff", "--name-only", "HEAD"], capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return ""
    changed = [name for name in names.stdout.splitlines() if "results/" not in name]
    return head.stdout.strip() + ("+changes" if changed else "")


@cache
def _versions() -> dict[str, str]:
    found = {"python": platform.python_version()}
    for name in PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found
