import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

transformers = pytest.importorskip("transformers", reason="the hf extra is not installed")

from safetensors.torch import load_file  # noqa: E402

from dpzero_theory.optim.files.transcript import read  # noqa: E402
from dpzero_theory.optim.trainers.trainer import DPZeroTrainer  # noqa: E402
from dpzero_theory.optim.verify import main  # noqa: E402
from dpzero_theory.privacy.ledger import LedgerError  # noqa: E402

PRIVATE: dict[str, Any] = {
    "target_epsilon": 4.0, "target_delta": 1e-5, "steps": 6, "expected_batch": 12, "clip": 1.0, "step_size": 1e-3,
    "smoothing": 1e-3, "relation": "add-remove", "sampling": "full", "micro_batch": 5,
}  # fmt: skip
ROWS = [{"input_ids": [1 + i % 7, 2, 3 + i % 4], "attention_mask": [1, 1, 1], "labels": i % 2} for i in range(12)]


def model() -> torch.nn.Module:
    torch.manual_seed(0)
    sizes = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 8}
    config = transformers.BertConfig(vocab_size=12, max_position_embeddings=8, **sizes)
    found = transformers.BertForSequenceClassification(config)
    for name in ("word_embeddings", "position_embeddings", "token_type_embeddings"):
        getattr(found.bert.embeddings, name).requires_grad_(False)
    return found


class StopAt(transformers.TrainerCallback):  # type: ignore[misc, name-defined]
    def __init__(self, step: int) -> None:
        self.step, self.logs = step, []

    def on_step_end(self, args: Any, state: Any, control: Any, **unused: Any) -> None:
        control.should_training_stop |= state.global_step == self.step

    def on_log(self, args: Any, state: Any, control: Any, logs: dict[str, float], **unused: Any) -> None:
        self.logs.append(logs)


def trainer(folder: Path, callback: StopAt, **changes: Any) -> DPZeroTrainer:
    return made(folder, private={**PRIVATE, **changes}, callbacks=[callback], save_steps=2, logging_steps=1)


def made(
    folder: Path,
    *,
    private: Any = PRIVATE,
    evaluated: Any = None,
    callbacks: Any = (),
    options: Any = (),
    **fields: Any,
) -> DPZeroTrainer:
    """Return a trainer. evaluated: the data set for evaluations. options: further arguments of the trainer itself.
    fields: of the training arguments."""
    common = {"report_to": "none", "use_cpu": True, "disable_tqdm": True}
    arguments = transformers.TrainingArguments(str(folder), **{**common, **fields})
    given = {"eval_dataset": evaluated, "callbacks": list(callbacks), "private": private, **dict(options)}
    collate = transformers.default_data_collator
    return DPZeroTrainer(model(), arguments, train_dataset=ROWS, data_collator=collate, **given)


def test_training_stops_resumes_and_ends_at_the_target(tmp_path: Path) -> None:
    """The weights at the end are those of the transcript, to the bit."""
    first, changes = StopAt(3), {"step_size": lambda release: 0.1 / (release + 1)}
    assert trainer(tmp_path, first, **changes).train().global_step == 3
    assert sorted(path.name for path in tmp_path.iterdir()) == ["_dpzero", "checkpoint-2"]
    assert [set(logs) for logs in first.logs] == [{"epsilon", "step_size", "released", "epoch"}] * 3
    with pytest.raises(FileExistsError, match=r"resume_from_checkpoint=True to go on .* or another output_dir"):
        trainer(tmp_path, first, **changes).train()
    with pytest.raises(ValueError, match="clip must be that of the run that is resumed"):
        trainer(tmp_path, first, **{**changes, "clip": 2.0}).train(resume_from_checkpoint=True)
    last = trainer(tmp_path, StopAt(-1), **changes)
    outcome = last.train(resume_from_checkpoint=str(tmp_path / "checkpoint-2"))
    assert outcome.global_step == 6
    assert 3.9 < outcome.metrics["epsilon"] <= 4.0
    again = model()
    read(tmp_path / "_dpzero" / "run.sqlite").replayed(again)
    moved = {name for name, value in again.state_dict().items() if not torch.equal(value, model().state_dict()[name])}
    assert moved
    assert all(torch.equal(value, last.model.state_dict()[name]) for name, value in again.state_dict().items())


def test_the_model_card_has_the_statement_that_verify_writes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made = trainer(tmp_path, StopAt(3))
    with pytest.raises(ValueError, match=r"^create_model_card must come after train"):
        made.create_model_card()
    made.train()
    made.create_model_card(model_name="A model")
    card = (tmp_path / "README.md").read_text()
    capsys.readouterr()
    assert main([str(tmp_path), "--full"]) == 0
    assert capsys.readouterr().out.partition("\n\nchecked\n")[0] in card
    assert "# A model" in card
    assert "tags: [differential-privacy, dpzero]" in card.split("---")[1]
    assert "steps made            3 recorded" in card


def test_a_checkpoint_that_was_cut_short_is_passed_over_or_named(tmp_path: Path) -> None:
    trainer(tmp_path, StopAt(5)).train()
    (tmp_path / "checkpoint-4" / "dpzero.pt").unlink()
    last = trainer(tmp_path, StopAt(-1))
    assert last._last_complete_checkpoint() == str(tmp_path / "checkpoint-2")
    assert last.train(resume_from_checkpoint=True).global_step == 6
    (tmp_path / "checkpoint-6" / "dpzero.pt").write_bytes(b"PK damaged\n")
    with pytest.raises(ValueError, match=r"dpzero.pt must be a checkpoint of this run; name an earlier one") as found:
        trainer(tmp_path, StopAt(-1)).train(resume_from_checkpoint=True)
    assert "\n" not in str(found.value)


def test_a_copied_folder_goes_on_when_that_is_said(tmp_path: Path) -> None:
    trainer(tmp_path / "a", StopAt(3)).train()
    shutil.copytree(tmp_path / "a", tmp_path / "b")
    with pytest.raises(LedgerError, match="a copy"):
        trainer(tmp_path / "b", StopAt(-1)).train(resume_from_checkpoint=True)
    assert trainer(tmp_path / "b", StopAt(-1), resume="moved").train(resume_from_checkpoint=True).global_step == 6


def test_a_trainer_hands_out_nothing_of_the_records(tmp_path: Path) -> None:
    """A trainer writes nothing of the records to any file, and leaves nothing in the module.

    One record's labels raise an error, and a layer keeps the first batch in a buffer. The safetensors of checkpoints,
    those of the best model and of `save_model` are read.
    """
    rows = [dict(row) for row in ROWS]
    rows[5]["labels"] = 99

    def remembers(part: Any, arguments: Any, output: Any) -> None:
        if not part.seen.any():
            part.seen.copy_(output.detach().flatten(0, 1).mean(0))
        part.largest = torch.maximum(part.largest, output.max())

    trained = made(
        tmp_path / "out", evaluated=[{**row, "input_ids": [11, 11, 11]} for row in ROWS], save_steps=2, eval_steps=2,
        eval_strategy="steps", load_best_model_at_end=True, metric_for_best_model="loss",
    )  # fmt: skip
    trained.train_dataset = rows
    embeddings = trained.model.bert.embeddings
    embeddings.register_buffer("seen", torch.zeros(8))
    embeddings.register_buffer("largest", torch.tensor(0.0))
    embeddings.register_forward_hook(remembers)
    held = [(embeddings.seen, torch.zeros(8)), (embeddings.largest, torch.tensor(0.0))]
    trained.get_eval_dataloader = lambda *unused: []  # type: ignore[method-assign]
    trained._evaluate = lambda *unused, **named: {"eval_loss": 1.0}
    assert trained.train().global_step == PRIVATE["steps"]
    trained.save_model(str(tmp_path / "last"))
    assert main([str(tmp_path / "out")]) == 0
    files = [*tmp_path.rglob("model.safetensors")]
    assert len(files) >= 3
    for file in files:
        saved = load_file(file)
        assert not saved["bert.embeddings.seen"].any()
        assert not saved["bert.embeddings.largest"].any()
    assert all(torch.equal(now, before) for now, before in held)


@pytest.mark.filterwarnings("ignore:after .* the run diverges:UserWarning")  # noise alone moves weights on 12 records
def test_settings_are_chosen_and_the_last_normalisation_trained(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The evaluation set is the public records; the printed settings repeat the run, and a resumed one keeps them."""
    monkeypatch.setattr("dpzero_theory.optim.public._PILOT", 0.3)
    others = [{**row, "input_ids": [9, 10, *row["input_ids"][2:]]} for row in ROWS]

    def auto(folder: Path, private: Any, callback: StopAt) -> DPZeroTrainer:
        found = made(
            folder, private=private, evaluated=others, callbacks=[callback], save_strategy="no", disable_tqdm=False
        )
        found.model.requires_grad_(True)
        return found

    stopped = auto(tmp_path / "auto", "auto", StopAt(3))
    stopped.train()
    said = capsys.readouterr().err
    plan = stopped.run.plan
    assert "from 12 public records" in said
    assert f"{stopped.run.descent().verdict}\nmean loss of public records: " in said
    assert (plan.steps, plan.expected_batch) == (62, 3.0)
    assert plan.epsilon(1e-5).upper == pytest.approx(2, abs=0.01)
    assert all("output.LayerNorm" in name or "classifier" in name for name in stopped.run.weights.names)
    again = auto(tmp_path / "auto", "auto", StopAt(-1))
    assert again.train(resume_from_checkpoint=True).global_step == 62
    assert again.run.plan == plan
    program = said[said.index("for name") : said.index("# and give the trainer private=private")]
    explicit = auto(tmp_path / "again", PRIVATE, StopAt(1))
    given: dict[str, Any] = {"model": explicit.model}
    exec(program, given)
    explicit._private = given["private"]
    explicit.train()
    assert explicit.run.plan == plan
    assert explicit.run.weights.names == stopped.run.weights.names


@pytest.mark.filterwarnings("ignore:epsilon 50 protects hardly anything")  # so that the noise hides no divergence
def test_a_run_that_diverges_is_warned_of(tmp_path: Path) -> None:
    diverging = {"step_size": 1e4, "target_epsilon": 50.0, "steps": 40}
    with pytest.warns(UserWarning, match=r"after \d+ of 40 steps the run diverges: .*; .* divide step_size by about"):
        trainer(tmp_path, StopAt(-1), **diverging).train()
