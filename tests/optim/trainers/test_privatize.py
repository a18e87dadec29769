"""Trainers of others that become private: transformers' own, TRL's, and one with a loss of its own."""

from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest
import torch

trl = pytest.importorskip("trl", reason="the trl extra is not installed")

from datasets import Dataset  # noqa: E402
from transformers import Trainer, TrainingArguments, default_data_collator  # noqa: E402

from dpzero_theory.optim.trainers.own_loss import one_by_one  # noqa: E402
from dpzero_theory.optim.trainers.trainer import DPZeroTrainer, privatize  # noqa: E402
from dpzero_theory.optim.verify import main as verify  # noqa: E402
from tests.optim.trainers import test_trl  # noqa: E402
from tests.optim.trainers.test_trainer import PRIVATE, ROWS, model  # noqa: E402
from tests.optim.trainers.test_trl import ARGUMENTS, PAIRS, TEXTS, quiet, tokenizer  # noqa: E402

__all__ = ["quiet"]
pytestmark = pytest.mark.filterwarnings("ignore:.*gradient_checkpointing` is deprecated")  # TRL's own
OFF = {"bf16": False, "gradient_checkpointing": None, "activation_checkpointing": False}
SETTINGS = test_trl.PRIVATE


class Weighted(Trainer):  # type: ignore[misc]
    """A Trainer with a loss of its own, which keeps and logs what it sees."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.seen: dict[str, list[float]] = defaultdict(list)

    def compute_loss(self, model: Any, inputs: Any, return_outputs: bool = False, **unused: Any) -> Any:
        outputs = model(input_ids=inputs["input_ids"], attention_mask=inputs["attention_mask"])
        each = torch.nn.functional.cross_entropy(outputs.logits, inputs["labels"], reduction="none")
        loss = (each * (1 + inputs["labels"])).mean()
        self.seen["loss"].append(float(loss.detach()))
        self.last = loss
        self.log({"secret": float(loss.detach())})
        return (loss, outputs) if return_outputs else loss


class Contrastive(Weighted):
    def compute_loss(self, model: Any, inputs: Any, return_outputs: bool = False, **unused: Any) -> Any:
        hidden = model(input_ids=inputs["input_ids"], attention_mask=inputs["attention_mask"]).logits
        return torch.nn.functional.cross_entropy(hidden @ hidden.T, torch.arange(len(hidden)))


class OwnStep(Weighted):
    def training_step(self, *unused: Any, **named: Any) -> Any:
        raise AssertionError


def plain(folder: Path, kind: Any = Trainer, **options: Any) -> Any:
    arguments = TrainingArguments(str(folder), report_to="none", use_cpu=True, disable_tqdm=True, save_strategy="no",
                                  logging_steps=1)  # fmt: skip
    return kind(model(), arguments, train_dataset=ROWS, data_collator=default_data_collator, **options)


def texts(folder: Path, rows: Any = TEXTS, **changes: Any) -> Any:
    arguments = trl.SFTConfig(str(folder), **{**ARGUMENTS, **OFF, **changes})
    data = Dataset.from_list(rows)
    return trl.SFTTrainer(test_trl.model(), arguments, train_dataset=data, processing_class=tokenizer())


def pairs(folder: Path, **changes: Any) -> Any:
    once = {"precompute_ref_log_probs": True, "precompute_ref_batch_size": 1}
    arguments = trl.DPOConfig(str(folder), **{**ARGUMENTS, **OFF, **once, **changes})
    data = Dataset.from_list(PAIRS)
    return trl.DPOTrainer(test_trl.model(), args=arguments, train_dataset=data, processing_class=tokenizer())


@pytest.fixture(autouse=True)
def telemetry(quiet: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("trl.trainer.base_trainer.send_telemetry", lambda *unused, **named: None)  # it is TRL's here


@pytest.mark.parametrize(
    ("make", "private", "rows"),
    [
        (plain, PRIVATE, None),
        (lambda folder: plain(folder, Weighted), {**PRIVATE, "isolation": "exact", "micro_batch": 1}, None),
        (lambda folder: plain(folder, Weighted), PRIVATE, None),
        (lambda folder: plain(folder, compute_loss_func=lambda out, labels, **_: out.logits.mean()), PRIVATE, None),
        (texts, SETTINGS, TEXTS),
        (pairs, {**SETTINGS, "expected_batch": 8}, PAIRS),
    ],
    ids=["transformers", "own loss alone", "own loss", "loss function", "texts", "pairs"],
)  # fmt: skip
def test_a_trainer_of_any_class_becomes_private(make: Any, private: Any, rows: Any, tmp_path: Path) -> None:
    given = make(tmp_path)
    kind = type(given)
    trainer = privatize(given, private=private, train_dataset=rows)
    assert trainer is given
    assert isinstance(trainer, DPZeroTrainer)
    assert isinstance(trainer, kind)
    before = {name: value.clone() for name, value in trainer.model.named_parameters()}
    assert trainer.train().global_step == private["steps"]
    assert any(not torch.equal(before[name], value) for name, value in trainer.model.named_parameters())
    assert verify([str(tmp_path)]) == 0
    again = privatize(make(tmp_path), private=private, train_dataset=rows)
    assert again.train(resume_from_checkpoint=True).global_step == private["steps"]
    moved = zip(again.model.parameters(), trainer.model.parameters(), strict=True)
    assert all(torch.equal(one, other) for one, other in moved)


def test_a_loss_of_ones_own_is_that_of_each_record_and_leaves_nothing(tmp_path: Path) -> None:
    trainer = privatize(plain(tmp_path, Weighted), private=PRIVATE)
    losses, collate = one_by_one(trainer, ROWS)
    trainer.model.eval()
    found = losses(trainer.model, collate(ROWS)).tolist()
    alone = [plain(tmp_path, Weighted).compute_loss(trainer.model, default_data_collator([row])).item() for row in ROWS]
    assert found == pytest.approx(alone, rel=1e-6)
    trainer.train()
    assert not trainer.seen
    assert not hasattr(trainer, "last")
    assert {name for logs in trainer.state.log_history for name in logs} == {"epoch", "epsilon", "released", "step",
                                                                             "step_size"}  # fmt: skip


def trained(folder: Path) -> Any:
    found = plain(folder)
    found.state.global_step = 3
    return found


LONG = [*TEXTS, {**TEXTS[0], "prompt": " ".join("abcdabcdabcd")}]
REFUSED: list[tuple[Any, dict[str, Any], str]] = [
    (lambda _: 3, {}, "trainer must be a transformers.Trainer that is not private yet; got int"),
    (lambda folder: privatize(plain(folder), private=PRIVATE), {}, "trainer must be .* not private yet; got Private"),
    (trained, {}, "trainer must not have trained yet; got one after 3 steps"),
    (lambda folder: plain(folder, OwnStep), {}, "PrivateOwnStep must have no training_step of its own"),
    (lambda folder: plain(folder, optimizers=(object(), None)), {}, "optimizers and .* must be left out"),
    (plain, {"private": {**PRIVATE, "clips": 1}}, "unknown setting clips"),
    (texts, {}, "train_dataset must be given, .* max_length = 1024 cuts away"),
    (lambda folder: texts(folder, LONG, max_length=8), {"train_dataset": LONG},
     "trainer must keep each of its 5 entries; got 4"),
    (lambda folder: texts(folder, bf16=True), {"train_dataset": TEXTS}, "bf16 must be left at False in SFTConfig"),
    (lambda folder: pairs(folder, precompute_ref_batch_size=4), {"train_dataset": PAIRS},
     "precompute_ref_batch_size must be left at 1 in DPOConfig: make the trainer with it"),
]  # fmt: skip


@pytest.mark.parametrize(("make", "options", "said"), REFUSED, ids=[said[:40] for *_, said in REFUSED])
def test_what_cannot_become_private_is_one_line(make: Any, options: Any, said: str, tmp_path: Path) -> None:
    trainer = make(tmp_path)
    kind = type(trainer)
    with pytest.raises(ValueError, match=f"^{said}") as found:
        privatize(trainer, **{"private": PRIVATE, **options})
    assert "\n" not in str(found.value)
    assert type(trainer) is kind


def test_a_loss_that_is_no_records_own_is_refused_before_anything_is_paid(tmp_path: Path) -> None:
    trainer = privatize(plain(tmp_path, Contrastive), private=PRIVATE)
    with pytest.raises(ValueError, match=r"^compute_loss must be a mean of the records' own losses; got"):
        trainer.train()
    assert not (tmp_path / "_dpzero").exists()
