"""Behaviours that TRL's own tests ask of its trainers, asked of the private ones: formats of data, labels, lengths."""

from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("trl", reason="the trl extra is not installed")

from datasets import Dataset

from tests.optim.trainers.test_trl import PAIRS, PRIVATE, TEXTS, preferred, quiet, tokenizer, tuned

__all__ = ["quiet"]
pytestmark = pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing` is deprecated")  # TRL's own
TEMPLATE = (
    "{% for message in messages %}{{ message['role'] }} {% if message['role'] == 'assistant' %}"
    "{% generation %}{{ message['content'] }} .{% endgeneration %}{% else %}{{ message['content'] }}{% endif %} "
    "{% endfor %}{% if add_generation_prompt %}assistant {% endif %}"
)


def talking() -> Any:
    found = tokenizer()
    found.chat_template = TEMPLATE
    return found


def said(role: str, content: str) -> list[dict[str, str]]:
    return [{"role": role, "content": content}]


def labels(trainer: Any) -> list[list[int]]:
    """Return, for each record, the positions of the tokens that have a loss."""
    rows = [trainer.data_collator([trainer.train_dataset[i]])["labels"][0] for i in range(len(trainer.train_dataset))]
    return [torch.nonzero(row != -100).flatten().tolist() for row in rows]


SUPERVISED: dict[str, tuple[list[dict[str, Any]], list[int]]] = {
    "text": ([{"text": "name a eats b"}], [0, 1, 2, 3, 4]),
    "prompt, completion": ([{"prompt": "name a", "completion": " eats b"}], [2, 3, 4]),
    "messages": ([{"messages": said("user", "a") + said("assistant", "b c")}], [0, 1, 2, 3, 4, 5]),
    "prompt, completion of messages": (
        [{"prompt": said("user", "a b"), "completion": said("assistant", "c")}], [4, 5],
    ),
    "tokens": ([{"input_ids": [3, 4, 5]}], [0, 1, 2]),
}  # fmt: skip
"""Data of each format, and the places of the tokens with a loss."""


@pytest.mark.parametrize("kind", SUPERVISED)
def test_every_format_of_texts_is_trained_on(kind: str, tmp_path: Path) -> None:
    rows, expected = SUPERVISED[kind]
    trainer = tuned(tmp_path / "run", rows * 4, processing_class=talking())
    assert labels(trainer) == [expected] * 4
    assert trainer.train().global_step == PRIVATE["steps"]


def test_only_what_an_assistant_says_may_have_a_loss(tmp_path: Path) -> None:
    turns = [*said("user", "a"), *said("assistant", "b"), *said("user", "c"), *said("assistant", "d")]
    trainer = tuned(
        tmp_path / "run", [{"messages": turns}] * 4, {"assistant_only_loss": True}, processing_class=talking()
    )
    assert labels(trainer) == [[3, 4, 8, 9]] * 4
    assert trainer.train().global_step == PRIVATE["steps"]


def test_lengths_are_cut_and_padded_as_asked(tmp_path: Path) -> None:
    rows = [{"text": "a b c d name eats"}, {"text": "a"}] * 2
    trainer = tuned(tmp_path / "run", rows, {"max_length": 5, "pad_to_multiple_of": 4})
    assert [len(row["input_ids"]) for row in trainer.train_dataset] == [5, 2] * 2
    assert trainer.data_collator(list(trainer.train_dataset))["input_ids"].shape == (4, 8)
    assert trainer.train().global_step == PRIVATE["steps"]


def test_a_function_may_make_the_texts(tmp_path: Path) -> None:
    rows = [{"who": who} for who in "abcd"]
    trainer = tuned(tmp_path / "run", rows, formatting_func=lambda row: f"name {row['who']}")
    assert [row["input_ids"] for row in trainer.train_dataset] == [[7, 3 + i, 1] for i in range(4)]
    assert trainer.train().global_step == PRIVATE["steps"]


def test_several_evaluation_sets_have_metrics_of_their_own(tmp_path: Path) -> None:
    sets = {name: Dataset.from_list([{**row, "completion": f" {name} ."} for row in TEXTS]) for name in ("good", "bad")}
    trainer = tuned(tmp_path / "run", eval_dataset=sets)
    trainer.train()
    found = trainer.evaluate()
    assert {"eval_good_loss", "eval_bad_loss"} <= set(found)
    assert found["eval_good_loss"] != found["eval_bad_loss"]


PREFERENCES: dict[str, list[dict[str, Any]]] = {
    "with the prompt inside": [{"chosen": "name a good .", "rejected": "name a bad ."}],
    "messages": [
        {
            "prompt": said("user", "a"), "chosen": said("assistant", "good"), "rejected": said("assistant", "bad"),
        }
    ],
}  # fmt: skip


@pytest.mark.parametrize("kind", PREFERENCES)
def test_every_format_of_pairs_is_trained_on(kind: str, tmp_path: Path) -> None:
    trainer = preferred(tmp_path / "run", rows=PREFERENCES[kind] * 8, processing_class=talking())
    batch = trainer.data_collator([trainer.train_dataset[0]])
    chosen, rejected = (batch["input_ids"][row][batch["completion_mask"][row] == 1].tolist() for row in (0, 1))
    assert (10 in chosen, 11 in chosen, 10 in rejected, 11 in rejected) == (True, False, False, True)
    assert trainer.train().global_step == PRIVATE["steps"]


def test_the_reference_may_be_another_model(tmp_path: Path) -> None:
    """The reference's log-probabilities are those of the model that is given, not of the one that is trained."""
    other = preferred(tmp_path / "other").model
    with torch.no_grad():
        for weight in other.parameters():
            weight.mul_(2.0)
    own, given = (preferred(tmp_path / name, **more) for name, more in (("own", {}), ("given", {"ref_model": other})))
    names = [name for name in own.train_dataset.column_names if name.startswith("ref_")]
    assert len(names) == 2
    assert all(own.train_dataset[0][name] != given.train_dataset[0][name] for name in names)
    assert given.train().global_step == PRIVATE["steps"]
    assert len(PAIRS) == given.run.plan.n
