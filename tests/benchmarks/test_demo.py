"""Tests that the demo's sweep leaves rows and a picture of them, which another process draws."""

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from benchmarks import demo
from benchmarks.kit.rows import read_rows
from tests import forks

ROOT = Path(__file__).parents[2]


def test_the_extra_of_the_demo_is_all_that_it_imports() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]

    def needed(extra: str) -> set[str]:
        found: set[str] = set()
        for line in extras[extra]:
            inner = re.fullmatch(r"dpzero-theory\[(.*)\]", line)
            found |= set().union(*map(needed, inner[1].split(","))) if inner else {re.split(r"[><;= ]", line)[0]}
        return found

    missing = [name.replace("-", "_") for name in needed("dev") - needed("demo")]
    assert "transformers" in missing
    code = f"import sys; sys.modules.update(dict.fromkeys({missing})); import benchmarks.demo, figures.demo"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_rows_and_picture(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(demo, "DIMENSIONS", (2, 3))
    monkeypatch.setattr(demo, "GRID_STEPS", (3,))
    for _ in range(2):  # A second demo starts anew, without the rows of the first
        demo.sweep(tmp_path)
    rows = read_rows(tmp_path)
    assert list(zip(rows["mode"], rows["d"], rows["method"], strict=True)) == [
        (mode, d, method) for mode in "ac" for d in (2, 3) for method in ("DPZero", "DPGD-0th")
    ]
    assert (rows["gradient_norm"] > 0).all()
    monkeypatch.setattr(demo.subprocess, "run", lambda command, check: forks.run(*command[1:]))
    picture = demo.draw(tmp_path)
    assert picture.name == "rate_vs_dimension.png"
    assert picture.read_bytes().startswith(b"\x89PNG")
