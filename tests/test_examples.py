"""Tests that every example and notebook runs as a reader would start it, on tiny models."""

import importlib
import json
import re
import runpy
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForSequenceClassification

from tests import forks
from tests.benchmarks.llm.tiny import tiny, tokenizer
from tests.optim.trainers.test_arguments import Hub

pytest.importorskip("transformers", reason="the hf extra is not installed")
pytest.importorskip("datasets", reason="the dev extra is not installed")

EXAMPLES = Path(__file__).resolve().parent.parent / "examples"
HELPERS = {"reviews.py", "notebooks.py"}
KINDS = {"causal_lm.py": "causal", "sft.py": "causal", "dpo.py": "causal"}


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The folder of a tiny pretrained model with its tokenizer, for each kind of model."""
    folders = {}
    for kind in ("encoder", "causal"):
        folder = tmp_path_factory.mktemp(kind)
        model = tiny(kind).module
        if kind == "encoder":
            model = AutoModelForSequenceClassification.from_config(model.config)
        model.save_pretrained(folder)  # type: ignore[operator]
        tokenizer(kind).save_pretrained(folder)
        folders[kind] = str(folder)
    return folders


def started(
    name: str, arguments: list[str], folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> str:
    """Runs the example called `name` in `folder` with these arguments, and returns what it prints."""
    monkeypatch.chdir(folder)
    monkeypatch.setattr(sys, "argv", [name, *arguments])
    monkeypatch.syspath_prepend(str(EXAMPLES))
    torch.manual_seed(0)
    runpy.run_path(str(EXAMPLES / name), run_name="__main__")
    return capsys.readouterr().out


def form(told: str) -> str:
    """Returns a text without its numbers, which change with the noise and the model."""
    return re.sub(r"-?\d[\d.,e-]*", "#", told).strip()


def as_committed(name: str, told: str) -> bool:
    """Whether the example `name` prints, as `told`, what stands at its end."""
    committed = (EXAMPLES / name).read_text().partition("# It prints:\n")[2].replace("# ", "")
    return form(" ".join(told.split())) == form(" ".join(committed.split()))


# The warning comes from peft, which reads an attribute that transformers renames.
@pytest.mark.filterwarnings("ignore::FutureWarning")
@pytest.mark.filterwarnings("ignore:'pin_memory' argument")
# Of a tiny model of random weights and few records losses hardly change, so rounding is visible, and so is noise.
@pytest.mark.filterwarnings("ignore:after .* the run diverges:UserWarning")
@pytest.mark.filterwarnings("ignore:smoothing = 0.001 makes rounding visible")
@pytest.mark.parametrize(
    "name",
    [
        "trainer.py",
        "lora.py",
        "causal_lm.py",
        "error_as_loss.py",
        "quantised_base.py",
        "auto.py",
        "users.py",
        "sft.py",
        "dpo.py",
    ],
)
def test_a_model_is_trained_and_its_cost_told(
    name: str, models: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    monkeypatch.setattr("dpzero_theory.optim.public._PILOT", 0.3)
    monkeypatch.syspath_prepend(str(EXAMPLES))
    texts = importlib.import_module("reviews")
    monkeypatch.setattr(texts, "reviews", lambda count, seed=0, made=texts.reviews: made(min(count, 200), seed))
    told = started(name, [models[KINDS.get(name, "encoder")]], tmp_path, monkeypatch, capsys)
    epsilon = float(told.rpartition("epsilon ")[2].split()[0].rstrip(","))
    target = 4.0 if name in ("causal_lm.py", "error_as_loss.py", "users.py") else 2.0
    assert 0.95 * target < epsilon <= target
    assert (tmp_path / "out").is_dir()
    assert as_committed(name, told)


def test_an_interrupted_run_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    told = started("resume.py", [], tmp_path, monkeypatch, capsys)
    assert told.startswith("20 releases left, epsilon 2.000, however the run ends")
    assert as_committed("resume.py", told)
    assert started("resume.py", [], tmp_path, monkeypatch, capsys).startswith("0 releases left, epsilon 2.000")


@pytest.mark.filterwarnings("ignore:'pin_memory' argument")
def test_a_push_takes_the_card_and_not_the_key(
    models: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    hub = Hub()

    def begin(self: Any, *_: Any, **named: Any) -> None:
        self.hub_model_id, self.push_in_progress = "me/mine", None

    monkeypatch.setattr("transformers.trainer.hf_api", lambda: hub)
    monkeypatch.setattr("transformers.Trainer.init_hf_repo", begin)
    started("push.py", ["me/mine", models["encoder"]], tmp_path, monkeypatch, capsys)
    ((_, files),) = hub.uploads
    assert {"README.md", "model.safetensors"} <= set(files)
    assert not [name for name in files if "key" in name or "dpzero" in name]
    assert re.search(r"\((1\.999\d*|2), 1e-05\)", (tmp_path / "out" / "push" / "README.md").read_text())


@pytest.mark.filterwarnings("ignore::UserWarning")  # The warnings come from Opacus, about its secure mode and its hooks
@pytest.mark.filterwarnings("ignore::FutureWarning")
def test_opacus_calibrates_and_reports(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    pytest.importorskip("opacus")
    told = started("in_opacus.py", [], tmp_path, monkeypatch, capsys)
    epsilon = float(told.partition("epsilon ")[2].split(",")[0])
    assert 1.98 < epsilon <= 2.0
    assert as_committed("in_opacus.py", told)


def test_dp_accounting_calibrates_with_ours(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    pytest.importorskip("dp_accounting")
    told = started("in_dp_accounting.py", [], tmp_path, monkeypatch, capsys)
    assert as_committed("in_dp_accounting.py", told)
    ours, theirs = lines = told.splitlines()
    noise = [float(told.partition("noise ")[2].split(",")[0]) for told in (ours, theirs)]
    epsilon = [float(told.rpartition(" ")[2]) for told in lines]
    assert 0.9999 * noise[0] <= noise[1] < 1.001 * noise[0]
    assert all(2 - 2e-3 < e <= 2 for e in epsilon)


def test_two_ranks_share_a_run(tmp_path: Path) -> None:
    """Ranks are started by accelerate, whose launcher is torchrun's."""
    settings = ("--num_processes=2", "--num_machines=1", "--mixed_precision=no", "--dynamo_backend=no")
    launcher = ("accelerate.commands.launch", "--multi_gpu", "--main_process_port=0", *settings)
    command = ("-m", *launcher, EXAMPLES / "two_ranks.py")
    done = forks.run(*command, folder=tmp_path, environment={"PYTHONPATH": str(EXAMPLES.parent)})
    assert done.returncode == 0, done.stderr[-2000:]
    (told,) = done.stdout.splitlines()
    assert as_committed("two_ranks.py", told)
    assert told.startswith("epsilon ")
    assert float(told.split()[1].rstrip(",")) <= 2.0


# The warnings come from Opacus, about its defaults, and from torch, about Opacus's hooks.
@pytest.mark.filterwarnings("ignore")
def test_opacus_is_audited(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    pytest.importorskip("opacus", reason="the dev extra is not installed")
    told = started("audit_opacus.py", ["noise-from-seed", "not-finite", "noise-size"], tmp_path, monkeypatch, capsys)
    assert told.startswith("Violated: noise-from-seed, not-finite.")


def test_a_search_pays_for_its_choice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    assert "epsilon" in started("private_search.py", ["search"], tmp_path, monkeypatch, capsys)


def test_every_example_is_listed_and_run() -> None:
    text, here = (EXAMPLES / "README.md").read_text(), Path(__file__).read_text()
    for path in EXAMPLES.glob("*.py"):
        assert path.name in HELPERS or f"| `{path.name}` |" in text
        assert path.name in HELPERS or f'"{path.name}"' in here


NOTEBOOKS = runpy.run_path(str(EXAMPLES / "notebooks.py"))
NEEDS = {"first_run": "sklearn", "defend_epsilon": "flint"}


@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("*.ipynb")), ids=lambda path: path.stem)
def test_a_notebook_prints_what_is_committed(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip(NEEDS[path.stem])
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(EXAMPLES))
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
