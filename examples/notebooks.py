"""Runs the notebooks of this folder and writes into each what its cells print.  python examples/notebooks.py [NAME]

Every notebook runs in an empty folder of its own. A cell's output is what it prints; nothing needs Jupyter.
"""

import contextlib
import io
import json
import os
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent


def outputs(notebook: dict) -> list[str]:
    """Run the code cells of a notebook (its JSON as a dictionary) in the current folder, one after the other, and
    return the text that each of them prints."""
    names: dict = {"__name__": "notebook"}
    found = []
    for cell in notebook["cells"]:
        if cell["cell_type"] == "code":
            with contextlib.redirect_stdout(io.StringIO()) as told:
                exec("".join(cell["source"]), names)
            found.append(told.getvalue())
    return found


def written(path: Path, printed: list[str]) -> None:
    """Write the texts in `printed`, one for each code cell in order, into the notebook file at `path` as the cells'
    outputs."""
    notebook, left = json.loads(path.read_text()), list(printed)
    for number, cell in enumerate(cell for cell in notebook["cells"] if cell["cell_type"] == "code"):
        text = left[number].splitlines(keepends=True)
        cell["execution_count"] = number + 1
        cell["outputs"] = [{"output_type": "stream", "name": "stdout", "text": text}] if text else []
    path.write_text(json.dumps(notebook, indent=1, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    sys.path.insert(0, str(HERE))
    for path in sorted(HERE.glob("*.ipynb")):
        if path.stem in (sys.argv[1:] or [path.stem]):
            with tempfile.TemporaryDirectory() as folder:
                os.chdir(folder)
                found = outputs(json.loads(path.read_text()))
                os.chdir(HERE)
            written(path, found)
