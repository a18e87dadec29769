"""The command that trains privately from a YAML file, on the tiny language model of `test_trl`."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

pytest.importorskip("trl", reason="the trl extra is not installed")

from dpzero_theory.optim.trainers.__main__ import main
from transformers import AutoModelForCausalLM

from dpzero_theory.optim.files.statement import statement_of_folder
from tests.optim.trainers.test_trl import PAIRS, PRIVATE, TEXTS, model, quiet, tokenizer

__all__ = ["quiet"]
pytestmark = pytest.mark.filterwarnings("ignore:.*gradient_checkpointing` is deprecated")  # TRL's own


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a model and data, which is where the command runs."""
    monkeypatch.chdir(tmp_path)
    model().save_pretrained("model")
    tokenizer().save_pretrained("model")
    for name, rows in {"texts": TEXTS, "pairs": PAIRS, "wrong": [{"words": "a b"}]}.items():
        Path(f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return tmp_path


def written(data: str = "texts", **changes: Any) -> list[str]:
    """Write a file of fields, and return the words of the command line that name it."""
    fields = {
        "model_name_or_path": "model", "datasets": [{"path": "json", "data_files": f"{data}.jsonl"}],
        "output_dir": "out", "report_to": "none", "save_strategy": "no", "use_cpu": True, "disable_tqdm": True,
        "private": PRIVATE, **changes,
    }  # fmt: skip
    text = yaml.safe_dump({name: value for name, value in fields.items() if value is not None})
    Path("run.yaml").write_text(text.replace("0.001", "1e-3"))  # of which YAML makes a text
    return ["--config", "run.yaml"]


def test_a_model_is_tuned_on_texts_and_saved_with_its_statement(
    place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["sft", *written(max_length=5), "--output_dir", "other"]) == 0
    assert not Path("out").exists()
    assert capsys.readouterr().out.startswith("other: epsilon ")
    statement = statement_of_folder(Path("other", "_dpzero"))
    assert "(8, 0.001)" in statement.text()
    assert json.loads(Path("other", "privacy.json").read_text())
    before, after = (AutoModelForCausalLM.from_pretrained(name).state_dict() for name in ("model", "other"))
    assert any(not before[name].equal(after[name]) for name in before)


def test_pairs_with_an_adapter_an_owner_and_a_split(place: Path) -> None:
    adapter = {"use_peft": True, "lora_r": 2, "lora_target_modules": ["q_proj", "v_proj"]}
    given = written("pairs", **adapter, owner="prompt", test_split_size=0.25, eval_strategy="steps", eval_steps=2,
                    public_evaluation=True)  # fmt: skip
    private = {**PRIVATE, "sampling": "poisson", "expected_batch": 2, "target_delta": "1e-3"}
    assert main(["dpo", *given, "--private", json.dumps(private)]) == 0
    assert Path("out", "adapter_model.safetensors").exists()
    assert "user" in statement_of_folder(Path("out", "_dpzero")).text()


def test_a_stopped_run_goes_on(place: Path) -> None:
    given = written(test_split_size=0.25, save_strategy="steps", save_steps=1,
                    private={**PRIVATE, "expected_batch": 3})  # fmt: skip
    assert main(["sft", *given]) == 0
    assert main(["sft", *given, "--resume_from_checkpoint", "out/checkpoint-2"]) == 0


@pytest.mark.parametrize(
    ("changes", "words", "said"),
    [
        ({"text": "a: ["}, (), "while parsing"),
        ({"text": "- a\n"}, (), "mapping"),
        ({"private": None}, (), "private must be a mapping of settings"),
        ({"private": {k: v for k, v in PRIVATE.items() if k != "steps"}}, (), "steps must be given"),
        ({"private": {**PRIVATE, "clips": 1}}, (), "clips"),
        ({}, ("--private", "{clip"), "private must be a JSON mapping of settings; got '{clip'"),
        ({"learning_rate": 0.1}, (), "learning_rate must be left at"),
        ({"no_such_field": 3}, (), "--no_such_field 3 must not be given"),
        ({}, ("--max_length", "many"), "--max-length invalid"),
        ({"model_name_or_path": None}, (), "model_name_or_path must be given"),
        ({"model_name_or_path": "./nowhere"}, (), "nowhere"),
        ({"datasets": None}, (), "datasets or dataset_name must be given; got neither"),
        ({"data": "wrong"}, (), "train_dataset must have what TRL reads; got KeyError 'text' with its columns words"),
        ({"eval_strategy": "steps", "eval_steps": 1}, (), "the data must have a split 'test'; got train"),
        ({"owner": "writer"}, (), "owner must be a column of train_dataset"),
        ({"load_in_4bit": True}, (), "requires bitsandbytes"),
        ({"streaming": True}, (), "a stream: loaded without streaming); got IterableDataset"),
    ],
    ids=lambda value: str(value)[:30],
)
def test_what_is_wrong_is_one_line(
    changes: dict[str, Any], words: tuple[str, ...], said: str, place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given = written(**{name: value for name, value in changes.items() if name != "text"})
    if "text" in changes:
        Path("run.yaml").write_text(changes["text"])
    with pytest.raises(SystemExit) as stop:
        main(["sft", *given, *words])
    assert stop.value.code == 2
    line = capsys.readouterr().err.splitlines()[-1]
    assert line.startswith("python -m dpzero_theory.optim.trainers: ")
    assert said in line
    assert not Path("out", "_dpzero").exists()
