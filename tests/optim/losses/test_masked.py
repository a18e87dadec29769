from pathlib import Path
from typing import Any

import pytest
import torch

transformers = pytest.importorskip("transformers", reason="the hf extra is not installed")

from dpzero_theory.optim.losses.masked import Masked  # noqa: E402
from dpzero_theory.optim.losses.users import by_user  # noqa: E402
from dpzero_theory.optim.trainers.trainer import DPZeroTrainer  # noqa: E402
from tests.benchmarks.llm.tiny import tokenizer  # noqa: E402

PRIVATE: dict[str, Any] = {
    "target_epsilon": 8.0, "target_delta": 1e-5, "steps": 2, "expected_batch": 4, "clip": 1.0, "step_size": 1e-3,
    "smoothing": 1e-3, "relation": "replace-one", "sampling": "full",
}  # fmt: skip


def records(count: int = 8) -> list[dict[str, Any]]:
    words = tokenizer("encoder")
    texts = [f"a fine , moving film . It was {'great' * (1 + i % 3)} and great" for i in range(count)]
    return [{"input_ids": words(text)["input_ids"], "who": i % 4} for i, text in enumerate(texts)]


def collator(**options: Any) -> Any:
    return transformers.DataCollatorForLanguageModeling(tokenizer("encoder"), mlm_probability=0.4, **options)


def model() -> Any:
    torch.manual_seed(0)
    sizes = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 8}
    config = transformers.BertConfig(vocab_size=len(tokenizer("encoder")), max_position_embeddings=64, **sizes)
    return transformers.BertForMaskedLM(config)


def trainer(folder: Path, data: Any, collate: Any) -> DPZeroTrainer:
    arguments = transformers.TrainingArguments(str(folder), report_to="none", use_cpu=True, disable_tqdm=True)
    private = {**PRIVATE, "expected_batch": len(data)}
    return DPZeroTrainer(model(), arguments, train_dataset=data, data_collator=collate, private=private)


def without_owner() -> list[dict[str, Any]]:
    return [{"input_ids": record["input_ids"]} for record in records()]


@pytest.mark.parametrize("options", [{}, {"seed": 3}])
def test_a_record_has_one_mask_a_step_whoever_is_beside_it(options: dict[str, Any]) -> None:
    data = Masked(without_owner(), collator(**options))
    state = torch.get_rng_state()
    for seed in (1, 2**64 - 1):
        one, again = data.drawn(3, seed), data.drawn(3, seed)
        assert all(torch.equal(one[name], again[name]) for name in one)
    assert torch.equal(state, torch.get_rng_state())
    masks = {tuple(data.drawn(3, seed)["labels"].tolist()) for seed in range(30)}
    assert len(masks) > 20
    hidden = torch.cat([(data.drawn(3, seed)["labels"] != -100).float()[1:-1] for seed in range(400)])
    assert abs(hidden.mean() - 0.4) < 6 * (0.24 / len(hidden)) ** 0.5
    own = data.drawn(0, 5)
    for others in ([], [data.drawn(1, 5)], [data.drawn(i, 5) for i in range(1, 8)]):
        batch = data.collate([own, *others])
        length = len(own["input_ids"])
        assert torch.equal(batch["input_ids"][0, :length], own["input_ids"])
        assert torch.equal(batch["labels"][0, :length], own["labels"])
        assert (batch["labels"][0, length:] == -100).all()
        assert not batch["attention_mask"][0, length:].any()


@pytest.mark.filterwarnings("ignore:'pin_memory' argument")
@pytest.mark.filterwarnings("ignore:smoothing = ")
def test_the_trainer_takes_a_masking_collator(tmp_path: Path) -> None:
    made = trainer(tmp_path / "records", without_owner(), collator())
    made.train()
    assert made.run.get_epsilon(1e-5) <= 8
    users = trainer(tmp_path / "users", by_user(records(), "who", at_most=1), collator())
    users.train()
    users.create_model_card()
    card = (tmp_path / "users" / "README.md").read_text()
    assert "private for each user" in card
    assert "n                     4 users" in card
