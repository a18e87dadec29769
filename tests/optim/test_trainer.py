from pathlib import Path
from typing import Any

import pytest
import torch

transformers = pytest.importorskip("transformers", reason="the hf extra is not installed")

from dpzero_theory.optim.trainer import DPZeroTrainer, classification_losses  # noqa: E402
from dpzero_theory.optim.transcript import replay  # noqa: E402

PRIVATE: dict[str, Any] = {
    "target_epsilon": 4.0,
    "target_delta": 1e-5,
    "steps": 6,
    "expected_batch": 12,
    "clip": 1.0,
    "step_size": 1e-3,
    "smoothing": 1e-3,
    "relation": "add-remove",
    "sampling": "full",
    "micro_batch": 5,
}
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
    arguments = transformers.TrainingArguments(
        str(folder), save_steps=2, logging_steps=1, report_to="none", use_cpu=True, disable_tqdm=True
    )
    return DPZeroTrainer(
        model(),
        arguments,
        train_dataset=ROWS,
        data_collator=transformers.default_data_collator,
        callbacks=[callback],
        private={**PRIVATE, **changes},
    )


def test_training_stops_resumes_and_ends_at_the_target(tmp_path: Path) -> None:
    first = StopAt(3)
    assert trainer(tmp_path, first).train().global_step == 3
    assert sorted(path.name for path in tmp_path.iterdir()) == ["checkpoint-2", "dpzero"]
    assert [set(logs) for logs in first.logs] == [{"epsilon", "epoch"}] * 3
    with pytest.raises(FileExistsError):
        trainer(tmp_path, first).train()
    with pytest.raises(ValueError, match="clip must be that of the run that is resumed"):
        trainer(tmp_path, first, clip=2.0).train(resume_from_checkpoint=True)
    last = trainer(tmp_path, StopAt(-1))
    outcome = last.train(resume_from_checkpoint=str(tmp_path / "checkpoint-2"))
    assert outcome.global_step == 6
    assert 3.9 < outcome.metrics["epsilon"] <= 4.0
    again = model()
    replay(tmp_path / "dpzero" / "transcript.bin", again)
    moved = {name for name, value in again.state_dict().items() if not torch.equal(value, model().state_dict()[name])}
    assert moved
    assert all(torch.equal(value, last.model.state_dict()[name]) for name, value in again.state_dict().items())


def test_pure_epsilon_is_trained_for(tmp_path: Path) -> None:
    outcome = trainer(tmp_path, StopAt(-1), noise="laplace", target_delta=0.0).train()
    assert 3.9 < outcome.metrics["epsilon"] <= 4.0


def test_sharding_is_refused(tmp_path: Path) -> None:
    refused = trainer(tmp_path, StopAt(-1))
    refused.is_fsdp_enabled = True
    with pytest.raises(ValueError, match="does not shard: use torch's fully_shard"):
        refused.train()
    assert not (tmp_path / "dpzero").exists()


def test_classification_losses_are_one_for_each_record() -> None:
    batch = transformers.default_data_collator(ROWS[:5])
    found = classification_losses(model().eval(), batch)
    assert found.shape == (5,)
    alone = classification_losses(model().eval(), transformers.default_data_collator(ROWS[:1]))
    torch.testing.assert_close(found[:1], alone)
