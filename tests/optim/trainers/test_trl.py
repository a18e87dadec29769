"""TRL's trainers trained privately, on a tiny language model of 13 words."""

import math
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch

trl = pytest.importorskip("trl", reason="the trl extra is not installed")

from datasets import Dataset  # noqa: E402
from tokenizers import Tokenizer, models, pre_tokenizers  # noqa: E402
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast  # noqa: E402

from dpzero_theory.optim.files.statement import statement  # noqa: E402
from dpzero_theory.optim.files.transcript import read  # noqa: E402
from dpzero_theory.optim.losses.task_losses import losses_for, preference_losses  # noqa: E402
from dpzero_theory.optim.trainers.trl import DPZeroDPOTrainer, DPZeroSFTTrainer  # noqa: E402
from tests.optim.trainers.test_trainer import StopAt  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore:.*gradient_checkpointing` is deprecated")  # TRL's own
WORDS = ["<pad>", "<eos>", "<unk>", "a", "b", "c", "d", "name", "eats", "place", "good", "bad", "."]
ARGUMENTS: dict[str, Any] = {"report_to": "none", "use_cpu": True, "disable_tqdm": True, "save_strategy": "no"}
PRIVATE: dict[str, Any] = {
    "target_epsilon": 8.0, "target_delta": 1e-3, "steps": 4, "expected_batch": 4, "clip": 1.0, "step_size": 0.3,
    "smoothing": 1e-2, "relation": "add-remove", "sampling": "full",
}  # fmt: skip
TEXTS = [{"prompt": f"name {w}", "completion": f" eats {w} ."} for w in "abcd"]
PAIRS = [{"prompt": f"name {w}", "chosen": f" good {w} .", "rejected": " bad ."} for w in "aabbccdd"]


@pytest.fixture(autouse=True)
def quiet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Keeps the caches of `datasets` in the test's folder, and fails where TRL would tell its makers of its use."""
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", tmp_path / "cache")
    monkeypatch.setenv("TQDM_DISABLE", "1")

    def told(*args: Any, **options: Any) -> None:
        raise AssertionError("telemetry was sent")

    monkeypatch.setattr("trl.trainer.base_trainer.send_telemetry", told)


def tokenizer() -> PreTrainedTokenizerFast:
    words = Tokenizer(models.WordLevel({word: i for i, word in enumerate(WORDS)}, unk_token="<unk>"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    return PreTrainedTokenizerFast(tokenizer_object=words, pad_token="<pad>", eos_token="<eos>", unk_token="<unk>")


def model() -> LlamaForCausalLM:
    torch.manual_seed(0)
    sizes = {"hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2}
    return LlamaForCausalLM(
        LlamaConfig(
            vocab_size=len(WORDS), num_key_value_heads=2, max_position_embeddings=16, pad_token_id=0, eos_token_id=1,
            initializer_range=0.5, **sizes,
        )
    )  # fmt: skip


def tuned(folder: Path, rows: Any = TEXTS, changes: Any = (), **options: Any) -> DPZeroSFTTrainer:
    arguments = trl.SFTConfig(str(folder), **{**ARGUMENTS, **dict(changes)})
    options = {"private": PRIVATE, "processing_class": tokenizer(), **options}
    return DPZeroSFTTrainer(model(), arguments, train_dataset=Dataset.from_list(rows), **options)


def preferred(folder: Path, changes: Any = (), rows: Any = PAIRS, **options: Any) -> DPZeroDPOTrainer:
    arguments = trl.DPOConfig(str(folder), **{**ARGUMENTS, **dict(changes)})
    expected = {"expected_batch": 4 if "owner" in options else 8}
    options = {"private": PRIVATE | expected, "processing_class": tokenizer(), **options}
    return DPZeroDPOTrainer(model(), arguments, train_dataset=Dataset.from_list(rows), **options)


def test_a_text_s_loss_is_that_of_trl_s_trainer_on_it_alone(tmp_path: Path) -> None:
    rows = [*TEXTS, {"prompt": "name", "completion": " a a b . d ."}]
    trainer = tuned(tmp_path / "run", rows)
    batch = trainer.data_collator([trainer.train_dataset[i] for i in range(len(rows))])
    trainer.model.eval()
    with torch.no_grad():
        found = losses_for(trainer.model)(trainer.model, batch)
        alone = [trainer.data_collator([trainer.train_dataset[i]]) for i in range(len(rows))]
        theirs = torch.stack([trl.SFTTrainer.compute_loss(trainer, trainer.model, one) for one in alone])
    assert torch.allclose(torch.as_tensor(found), theirs, rtol=1e-5)
    assert (batch["labels"] != -100).sum(1).tolist() == [4, 4, 4, 4, 7]  # the completions, with their end


def test_the_losses_of_pairs_are_on_average_those_of_trl_s_trainer(tmp_path: Path) -> None:
    trainer = preferred(tmp_path / "run", {"beta": 0.7})
    batch = trainer.data_collator([trainer.train_dataset[i] for i in range(8)])
    with torch.no_grad():
        for weight in trainer.model.parameters():
            weight += 0.3 * torch.randn_like(weight)  # away from the reference model
        trainer.model.eval()
        found = torch.as_tensor(preference_losses(0.7)(trainer.model, batch))
        theirs = trl.DPOTrainer.compute_loss(trainer, trainer.model, dict(batch))
    assert found.shape == (8,)
    assert found.std() > 1e-3
    assert found.mean().item() == pytest.approx(theirs.item(), rel=1e-4)


def test_both_trainers_make_the_releases_of_their_plans(tmp_path: Path) -> None:
    for trainer in (tuned(tmp_path / "texts"), preferred(tmp_path / "pairs")):
        found = trainer.train()
        assert found.global_step == 4
        assert found.metrics["epsilon"] <= 8
        trainer.create_model_card()
        folder = Path(trainer.args.output_dir)
        assert "(8, 0.001)" in (folder / "README.md").read_text()
        assert trainer.run.plan.n == len(trainer.train_dataset)


def test_entries_of_one_owner_are_one_unit(tmp_path: Path) -> None:
    trainer = preferred(tmp_path / "run", owner="prompt")
    trainer.train()
    assert trainer.run.plan.n == 4  # eight pairs of four prompts
    assert "user" in statement(read(Path(tmp_path, "run", "_dpzero"))).text()


def test_a_stopped_run_goes_on_with_the_same_reference(tmp_path: Path) -> None:
    preferred(tmp_path / "run", {"save_strategy": "steps", "save_steps": 1}, callbacks=[StopAt(2)]).train()
    again = preferred(tmp_path / "run", {"save_strategy": "steps", "save_steps": 1})
    assert again.train(resume_from_checkpoint=True).global_step == 4


@pytest.mark.parametrize(
    ("make", "rows", "column"), [(tuned, TEXTS, "completion"), (preferred, PAIRS, "chosen")], ids=["texts", "pairs"]
)
@pytest.mark.parametrize("changes", [{}, {"owner": "who"}], ids=["entries", "owners"])
def test_what_is_published_does_not_depend_on_the_length_of_an_entry(
    make: Any, rows: Any, column: str, changes: dict[str, Any], tmp_path: Path
) -> None:
    rows = [{**row, "who": f"{i}"} for i, row in enumerate(rows)]
    long = {**rows[0], "prompt": " ".join("abcdabcdabcd")}  # of which no token with a loss is left
    private, plans = {**PRIVATE, "sampling": "poisson", "expected_batch": 2}, []
    for number, given in enumerate(([*rows, rows[0]], [*rows, long])):
        folder, said = tmp_path / str(number), pytest.warns(UserWarning, match="^1 of .* entries have no token with a")
        with said if number else nullcontext():
            trainer = make(folder, rows=given, changes={"max_length": 8}, private=private, **changes)
        trainer.train()
        plans.append(trainer.run.plan)
    assert plans[0] == plans[1]
    assert plans[0].n == len(rows) + (not changes)
    batch = trainer.data_collator([trainer.train_dataset[len(rows)]] if not changes else trainer.train_dataset[0][1:])
    trainer.model.eval()
    with torch.no_grad():
        before = trainer._losses(trainer.model, batch)
        for weight in trainer.model.parameters():
            weight += 0.3 * torch.randn_like(weight)
        assert torch.equal(trainer._losses(trainer.model, batch), before)  # so its difference is 0


def on(rows: Any) -> Any:
    """Returns a function that makes a trainer of texts on `rows`."""

    def work(folder: Path) -> None:
        arguments = trl.SFTConfig(str(folder), max_length=16, **ARGUMENTS)
        DPZeroSFTTrainer(model(), arguments, train_dataset=rows, processing_class=tokenizer(), private=PRIVATE)

    return work


def sft(**changes: Any) -> Any:
    return lambda folder: tuned(folder, changes=changes)


def dpo(**changes: Any) -> Any:
    return lambda folder: preferred(folder, changes)


LONG = [{**pair, "prompt": " ".join("abcdabcdabcd")} for pair in PAIRS]
DATA = Dataset.from_list(TEXTS)
REFUSED: list[tuple[Any, str]] = [
    (sft(packing=True), "packing must be left at False in SFTConfig: a record must have rows of its own"),
    (sft(learning_rate=1e-3), "learning_rate must be left at 2e-05 in SFTConfig: give step_size"),
    (sft(loss_type="dft"), "loss_type must be left at 'nll' in SFTConfig: give losses"),
    (dpo(loss_type=["ipo"]), r"loss_type must be left at \['sigmoid'\] in DPOConfig: give losses"),
    (dpo(beta=math.nan), "beta must be"),
    (lambda folder: preferred(folder, private="auto"), "eval_dataset must hold public pairs, .*; got None"),
    (
        lambda folder: preferred(folder, private="auto", eval_dataset=DATA, public_evaluation=True),
        "eval_dataset must hold public pairs, .* public_evaluation: public_data .*; got None",
    ),
    (
        lambda folder: tuned(folder, owner="who"),
        r"owner must be a column of train_dataset .prompt, completion.; got 'who'",
    ),
    (
        lambda folder: DPZeroSFTTrainer(model(), trl.DPOConfig(str(folder), **ARGUMENTS), private=PRIVATE),
        "args must be a SFTConfig; got DPOConfig",
    ),
    (
        lambda folder: preferred(folder, {"max_length": 8}, rows=LONG),
        r"^the data must have entries that TRL keeps .*; got none$",
    ),
    (
        on(Dataset.from_list([])),
        r"train_dataset must be a datasets.Dataset with entries.* \(Dataset.from_list\(rows\);",
    ),
    (on(TEXTS), r"without streaming\); got list"),
    (on(Dataset.from_list([{"words": "a"}])), "got KeyError 'text' with its columns words"),
    (
        lambda _: preference_losses()(model(), {"input_ids": torch.ones(2, 3)}),
        "ref_chosen_logps and ref_rejected_logps must be in a batch",
    ),
]


@pytest.mark.parametrize(("work", "said"), REFUSED, ids=[said[:40] for _, said in REFUSED])
def test_what_a_private_run_does_not_use_is_one_line(work: Any, said: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=said) as found:
        work(tmp_path / "run")
    assert "\n" not in str(found.value)
    assert not (tmp_path / "run" / "_dpzero").exists()


def test_owners_stay_with_their_entries_where_trl_shuffles_them(tmp_path: Path) -> None:
    trainer = tuned(tmp_path / "run", TEXTS * 4, {"shuffle_dataset": True}, owner="prompt")
    words = [{text["input_ids"][1] for text in trainer.train_dataset[user]} for user in range(4)]
    assert sorted(map(list, words)) == [[WORDS.index(word)] for word in "abcd"]


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
}  # fmt: skip
"""Data of each format, and the places of the tokens with a loss."""


@pytest.mark.parametrize("kind", SUPERVISED)
def test_every_format_of_texts_is_trained_on(kind: str, tmp_path: Path) -> None:
    rows, expected = SUPERVISED[kind]
    trainer = tuned(tmp_path / "run", rows * 4, processing_class=talking())
    assert labels(trainer) == [expected] * 4
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


@pytest.mark.filterwarnings("ignore:after .* the run diverges:UserWarning")  # noise moves weights most on few records
@pytest.mark.parametrize("make", [tuned, preferred])
def test_settings_are_chosen_and_layers_below_run_once(
    make: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Public records are prepared as the private ones are, and the run's frozen layer sees each entry once."""
    monkeypatch.setattr("dpzero_theory.optim.public._PILOT", 0.3)
    word = {"prompt": "name d", "completion": " eats b .", "chosen": " good d .", "rejected": " bad a ."}
    names = ("prompt", "completion") if make is tuned else ("prompt", "chosen", "rejected")
    others = Dataset.from_list([{name: word[name] for name in names}] * 8)
    goal = {"settings": "auto", "target_epsilon": 8.0, "target_delta": 1e-3, "expected_batch": 4.0, "steps": 20}
    trainer = make(tmp_path / "run", private=goal, eval_dataset=others)
    if make is preferred:
        trainer._private["expected_batch"] = 4.0
    calls = 0

    def count(*unused: Any) -> None:
        nonlocal calls
        calls += 1

    trainer.model.model.layers[0].mlp.register_forward_hook(count)
    trainer.train()
    assert "from 8 public records" in capsys.readouterr().err
    assert trainer.run.weights.names == ("model.norm.weight",)
    assert trainer.run.plan.steps == 20
    entries = 4 + 1 if make is tuned else len({str(row) for row in PAIRS}) + 1
    assert calls < 60 + 4 * entries
