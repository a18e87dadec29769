import gc
import logging
import os
import sys
import tempfile
import warnings
from pathlib import Path

import numpy as np
import torch

from dpzero_theory.audit.watch import watch, working_folder


def test_prints_logs_and_streams_below_python_are_seen(tmp_path: Path) -> None:
    with watch(tmp_path) as seen:
        print("said")
        print("warned", file=sys.stderr)
        logging.getLogger("any").warning("logged")
        os.write(1, b"below ")
        os.write(2, b"and beside\n")
    printed = seen.shown["printed"]
    assert isinstance(printed, str)
    assert all(word in printed for word in ("said\n", "warned\n", "logged\n", "below and beside\n"))


def test_files_are_seen_here_and_elsewhere(tmp_path: Path) -> None:
    here, there = tmp_path / "here", tmp_path / "there"
    here.mkdir()
    there.mkdir()
    with watch(here) as seen:
        Path("part").mkdir()
        Path("part/log.txt").write_text("a")
        (there / "out.bin").write_bytes(b"b")
        (there / "gone").write_text("c")
        (there / "gone").unlink()
        with (there / "out.bin").open("rb") as file:
            file.read()
    assert seen.shown["file part/log.txt"] == b"a"
    assert seen.shown[f"file {there / 'out.bin'}".replace(*_numbers(there))] == b"b"
    assert len(seen.shown) == 4
    assert list(here.iterdir()) == []
    assert (there / "out.bin").exists()


def _numbers(path: Path) -> tuple[str, str]:
    """Returns a path as text, and with each number or temporary name in it replaced by #.

    The folders in which pytest runs tests have numbers in their names.
    """
    import re

    return str(path), re.sub(r"tmp\w{8}|\d+", "#", str(path))


def test_names_that_change_are_one_place(tmp_path: Path) -> None:
    found = []
    for loss in (0.25, 0.5):
        with watch(tmp_path) as seen:
            Path(f"weights_{loss}.txt").write_text("x")
            Path(tempfile.mkstemp(dir=".")[1]).write_text("y")
        found.append(seen.shown)
    assert found[0].keys() == found[1].keys() == {"printed", "names of files", "file weights_#.#.txt", "file #"}
    assert [str(shown["names of files"]) for shown in found] == ["tmp weights_0.25.txt", "tmp weights_0.5.txt"]


def test_streams_and_the_place_come_back_after_an_exception(tmp_path: Path, capfd: object) -> None:
    before = Path.cwd()
    try:
        with watch(tmp_path):
            raise KeyError("any")
    except KeyError:
        pass
    assert Path.cwd() == before
    os.write(1, b"free\n")
    assert "free" in capfd.readouterr().out  # type: ignore[attr-defined]


def test_a_working_folder_is_gone_with_its_owner() -> None:
    class Owner:
        pass

    owner = Owner()
    folder = working_folder(owner)
    assert list(folder.iterdir()) == []
    del owner
    gc.collect()
    assert not folder.exists()


def test_warnings_of_users_are_seen_and_of_libraries_are_not(tmp_path: Path) -> None:
    with watch(tmp_path) as seen:
        for _ in range(2):
            warnings.warn("loss 0.25", stacklevel=1)
        warnings.warn("old", DeprecationWarning, stacklevel=1)
        _ = np.array([1.0]) / 0
    printed = str(seen.shown["printed"])
    assert printed.count("UserWarning: loss 0.25") == 2
    assert "old" not in printed
    assert "divide" not in printed


def test_what_torch_saves_elsewhere_is_seen(tmp_path: Path) -> None:
    here, there = tmp_path / "here", tmp_path / "last.pt"
    here.mkdir()
    save = torch.save
    with watch(here) as seen:
        torch.save({"sum": torch.ones(3)}, there)
    assert any(name.startswith("file ") and name.endswith("last.pt") for name in seen.shown)
    assert torch.save is save
