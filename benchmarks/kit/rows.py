"""Results of a benchmark: rows.csv (one row per configuration and seed) and manifest.json beside it.

The contract that every benchmark and figure keeps:

- a row is known by its key columns. A run that is interrupted at any moment, and started again, skips the
  keys that are complete and loses none of them: both files are replaced whole, never edited in place;
- the last column, `status`, is `ok` or the reason why the row failed. A failed row is kept, and tried again
  by the next run; a missing value is an empty field; NaN and infinity are refused, so that no failure hides;
- the manifest holds what is needed to repeat the run (command, commit, settings, seeds, versions, device,
  dtype, wall time) and the SHA-256 of the rows, which `read_rows` checks.
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
import shlex
import subprocess
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeAlias

import numpy as np
import pandas as pd

__all__ = ["OK", "RESULTS", "Results", "discard", "read_manifest", "read_rows", "write_atomically"]

OK = "ok"
RESULTS = Path(__file__).parent.parent / "results"
PACKAGES = ("dpzero-theory", "numpy", "scipy", "torch", "scikit-learn", "transformers", "matplotlib")

Value: TypeAlias = str | int | float | bool | None


def write_atomically(path: Path, content: bytes) -> None:
    """Replace `path` by `content`, so that at every moment it holds the old content or the new, whole."""
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
    """The rows of one benchmark in `folder`; a context manager.

    Args:
        folder: where rows.csv (or rows.csv.gz) and manifest.json are, or will be.
        key: the columns that tell rows apart.
        fields: the other columns; `status` is added after them.
        seeds, device, dtype: for the manifest.
        settings: whatever else changes the meaning of a row; JSON values.
        compress: keep the rows as rows.csv.gz once the context is left (for tables of more than a few MB).

    Entering raises ValueError where `folder` holds rows with other columns, dtype or settings, and
    RuntimeError while another process writes there.
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
        self._versions = _versions()

    def __enter__(self) -> Self:
        self.folder.mkdir(parents=True, exist_ok=True)
        self._lock = os.open(self.folder, os.O_RDONLY)
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(self._lock)
            raise RuntimeError(f"another process is writing to {self.folder}") from None
        try:
            for left_over in self.folder.glob(".*.*.*"):
                left_over.unlink()
            self._load()
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
            if kind is None and self.compress and (self.folder / "rows.csv").exists():
                write_atomically(self.folder / "rows.csv.gz", gzip.compress(self._text(), mtime=0))
                (self.folder / "rows.csv").unlink()
        finally:
            os.close(self._lock)

    def done(self, **key: Value) -> bool:
        """Whether the row with these key columns (all of them) is there with status ok."""
        return self._key(key) in self._complete

    def add(self, rows: Iterable[Mapping[str, Value]]) -> None:
        """Save `rows` together: after this returns they survive any interruption.

        A column that a row does not name is empty, `status` is ok unless named. A failed row with the same
        key is replaced. Raises ValueError, saving none of them, for an unknown column, a missing key column,
        NaN or infinity, or a key that is already complete.
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
        text = self._text()
        self._write_manifest(text)
        write_atomically(self.folder / "rows.csv", text)

    def _key(self, row: Mapping[str, Value]) -> tuple[str, ...]:
        absent = [name for name in self.key if row.get(name) is None]
        if absent:
            raise ValueError(f"key column {absent[0]!r} is missing; the key is {self.key}")
        return tuple(_cell(name, row[name]) for name in self.key)

    def _text(self) -> bytes:
        return (_line(self.columns) + "".join(self._lines.values())).encode()

    def _load(self) -> None:
        text = _rows_text(self.folder)
        if text is None:
            return
        manifest = read_manifest(self.folder)
        for name, value in self._identity.items():
            if manifest[name] != value:
                raise ValueError(f"{self.folder} holds rows made with {name} {manifest[name]}, not {value}")
        table = csv.reader(io.StringIO(text.decode(), newline=""))
        header = tuple(next(table, ()))
        if header != self.columns:
            raise ValueError(f"{self.folder} holds rows with columns {header}, not {self.columns}")
        for cells in table:
            key = tuple(cells[: len(self.key)])
            self._lines[key] = _line(cells)
            if cells[-1] == OK:
                self._complete.add(key)
        self._seeds |= set(manifest["seeds"])
        self._earlier = [*manifest["earlier"], {name: manifest[name] for name in _RUN}]

    def _write_manifest(self, text: bytes) -> None:
        wall = time.monotonic() - self._started
        manifest = {
            **self._run,
            "wall_s": round(wall, 3),
            "total_wall_s": round(wall + sum(run["wall_s"] for run in self._earlier), 3),
            "seeds": sorted(self._seeds),
            **self._identity,
            "versions": self._versions,
            "platform": f"{platform.system()} {platform.machine()}, {os.cpu_count()} cores",
            "rows": len(self._lines),
            "failed": len(self._lines) - len(self._complete),
            "sha256": hashlib.sha256(text).hexdigest(),
            "earlier": self._earlier,
        }
        write_atomically(self.folder / "manifest.json", (json.dumps(manifest, indent=1) + "\n").encode())


_RUN = ("command", "commit", "started", "device", "wall_s")


def read_manifest(folder: Path) -> dict[str, Any]:
    """The manifest in `folder`. Raises FileNotFoundError where there is none."""
    manifest: dict[str, Any] = json.loads((folder / "manifest.json").read_text())
    return manifest


def read_rows(folder: Path, *, failed: bool = False) -> pd.DataFrame:
    """The rows in `folder` with status ok (all of them with `failed`), empty fields as missing values.

    Raises FileNotFoundError where there are none, and ValueError where they are not the rows of the manifest.
    """
    text = _rows_text(folder)
    if text is None:
        raise FileNotFoundError(f"no rows.csv in {folder}")
    if hashlib.sha256(text).hexdigest() != read_manifest(folder)["sha256"]:
        raise ValueError(f"the rows in {folder} are not those of its manifest: run the benchmark again")
    table = pd.read_csv(io.BytesIO(text), keep_default_na=False, na_values=[""])
    return table if failed else table[table["status"] == OK].reset_index(drop=True)


def discard(folder: Path) -> None:
    """Remove the rows and the manifest in `folder`: rows that are computed from others are made anew each time."""
    for name in ("rows.csv", "rows.csv.gz", "manifest.json"):
        (folder / name).unlink(missing_ok=True)


def _rows_text(folder: Path) -> bytes | None:
    # rows.csv is there beside rows.csv.gz only between a resumed run's first row and its end: it is the newer
    if (folder / "rows.csv").exists():
        return (folder / "rows.csv").read_bytes()
    if (folder / "rows.csv.gz").exists():
        return gzip.decompress((folder / "rows.csv.gz").read_bytes())
    return None


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
    """What was run, absolute paths by their last name: where a machine keeps its files is nobody's business."""
    module = getattr(sys.modules["__main__"].__spec__, "name", "").removesuffix(".__main__")
    program = ["-m", module] if module else [Path(sys.argv[0]).name]
    arguments = [Path(word).name if Path(word).is_absolute() else word for word in sys.argv[1:]]
    return shlex.join(["python", *program, *arguments])


def _commit() -> str:
    """HEAD, followed by '+changes' where tracked files outside results/ differ from it; '' outside git."""
    git = ["git", "-C", str(Path(__file__).parent.parent)]
    try:
        head = subprocess.run([*git, "rev-parse", "HEAD"], capture_output=True, text=True, check=True)
        names = subprocess.run([*git, "diff", "--name-only", "HEAD"], capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return ""
    changed = [name for name in names.stdout.splitlines() if "results/" not in name]
    return head.stdout.strip() + ("+changes" if changed else "")


def _versions() -> dict[str, str]:
    found = {"python": platform.python_version()}
    for name in PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found
