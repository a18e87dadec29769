"""Tests that the notebooks run, on a tiny model in place of the pretrained one, and that their outputs are of today."""

import json
import runpy
from pathlib import Path

import pytest
import torch

pytest.importorskip("transformers", reason="the hf extra is not installed")

from tests.benchmarks.llm.tiny import llama
from tests.test_examples import EXAMPLES, form

NOTEBOOKS = runpy.run_path(str(EXAMPLES / "notebooks.py"))
NEEDS = {"first_run": "sklearn", "defend_epsilon": "flint", "language_model": "transformers"}


@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("*.ipynb")), ids=lambda path: path.stem)
def test_a_notebook_prints_what_is_committed(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip(NEEDS[path.stem])
    if path.stem == "language_model":
        tiny = llama()
        tiny.module.save_pretrained(tmp_path / "tiny")  # type: ignore[operator]
        tiny.tokenizer.save_pretrained(tmp_path / "tiny")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(EXAMPLES))
    monkeypatch.setenv("MODEL", str(tmp_path / "tiny"))
    torch.manual_seed(0)
    notebook = json.loads(path.read_text())
    cells = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    committed = ["".join(text for output in cell["outputs"] for text in output["text"]) for cell in cells]
    printed = NOTEBOOKS["outputs"](notebook)
    assert list(map(form, printed)) == list(map(form, committed))


def test_what_a_notebook_prints_is_written_into_it(tmp_path: Path) -> None:
    code = {"cell_type": "code", "source": ["x = 1\n", "print(x)"], "outputs": []}
    path = tmp_path / "small.ipynb"
    path.write_text(json.dumps({"cells": [{"cell_type": "markdown", "source": ["x"]}, code]}))
    NOTEBOOKS["written"](path, NOTEBOOKS["outputs"](json.loads(path.read_text())))
    written = json.loads(path.read_text())["cells"][1]
    assert written["outputs"] == [{"output_type": "stream", "name": "stdout", "text": ["1\n"]}]
