"""Tests of the losses of each task: they are transformers' own on one record at a time, whatever the batch."""

from typing import Any

import numpy as np
import pytest
import torch

transformers = pytest.importorskip("transformers", reason="the hf extra is not installed")


from dpzero_theory.optim.losses.task_losses import losses_for  # noqa: E402

SIZES = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 8}
BERT = {"vocab_size": 20, "max_position_embeddings": 12, **SIZES}
T5 = {"vocab_size": 20, "d_model": 8, "d_kv": 4, "d_ff": 8, "num_layers": 1, "num_heads": 2}


def bert(name: str, **changes: Any) -> Any:
    return getattr(transformers, f"BertFor{name}")(transformers.BertConfig(**BERT, **changes))


MODELS = {
    "one of three": lambda: bert("SequenceClassification", num_labels=3),
    "a number": lambda: bert("SequenceClassification", num_labels=1, problem_type="regression"),
    "tags": lambda: bert("TokenClassification", num_labels=3),
    "masked": lambda: bert("MaskedLM"),
    "causal": lambda: transformers.OPTForCausalLM(
        transformers.OPTConfig(
            vocab_size=20, ffn_dim=8, word_embed_proj_dim=8, max_position_embeddings=12, hidden_size=8,
            num_hidden_layers=1, num_attention_heads=2,
        )
    ),
    "seq2seq": lambda: transformers.T5ForConditionalGeneration(transformers.T5Config(**T5, decoder_start_token_id=0)),
    "seq2seq of bart": lambda: transformers.BartForConditionalGeneration(
        transformers.BartConfig(
            vocab_size=20, d_model=8, encoder_layers=1, decoder_layers=1, encoder_attention_heads=2,
            decoder_attention_heads=2, encoder_ffn_dim=8, decoder_ffn_dim=8, max_position_embeddings=12,
        )
    ),
}  # fmt: skip


def model(name: str) -> Any:
    torch.manual_seed(3)
    return MODELS[name]().eval()


def batch(name: str) -> dict[str, torch.Tensor]:
    """Returns a padded batch of three records of 6, 4 and 2 tokens for the task `name`.

    It has labels at all tokens but the second.
    """
    generator = torch.Generator().manual_seed(5)
    ids = torch.randint(3, 20, (3, 6), generator=generator)
    mask = torch.tensor([[1] * 6, [1] * 4 + [0] * 2, [1] * 2 + [0] * 4])
    found = {"input_ids": ids * mask + (1 - mask), "attention_mask": mask}
    if name == "one of three":
        return {**found, "labels": torch.tensor([0, 2, 1])}
    if name == "a number":
        return {**found, "labels": torch.tensor([0.5, -1.0, 2.0])}
    labels = torch.randint(0, 3 if name == "tags" else 20, (3, 6), generator=generator)
    return {**found, "labels": torch.where((mask == 1) & (torch.arange(6) != 1), labels, -100)}


@pytest.mark.parametrize("name", MODELS)
def test_a_loss_is_that_of_the_record_alone(name: str) -> None:
    module, given = model(name), batch(name)
    with torch.no_grad():
        found = losses_for(module)(module, given)
        alone = [float(module(**{key: value[i : i + 1] for key, value in given.items()}).loss) for i in range(2)]
    assert found.shape == (3,)
    torch.testing.assert_close(found[:2], torch.tensor(alone), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", ["tags", "masked", "causal", "seq2seq"])
def test_a_record_without_a_labelled_place_loses_nothing(name: str) -> None:
    module, given = model(name), batch(name)
    given["labels"][1] = -100
    with torch.no_grad():
        assert float(losses_for(module)(module, given)[1]) == 0
        for measure in ("error", "expected-error"):
            assert float(losses_for(module, measure)(module, given)[1]) == 0


@pytest.mark.parametrize("name", [name for name in MODELS if name != "a number"])
def test_the_error_is_the_share_of_wrong_answers_and_the_expected_one_their_mean_chance(name: str) -> None:
    module, given = model(name), batch(name)
    inputs = {key: value for key, value in given.items() if key != "labels"}
    if name.startswith("seq2seq"):
        inputs["decoder_input_ids"] = module.prepare_decoder_input_ids_from_labels(labels=given["labels"])
    with torch.no_grad():
        found, logits = losses_for(module, "error")(module, given), module(**inputs).logits
        expected = losses_for(module, "expected-error")(module, given)

    def missed(scores: torch.Tensor, label: int) -> float:
        chances = np.exp(scores.double().numpy())
        return float(1 - chances[label] / chances.sum())

    for i, labels in enumerate(given["labels"]):
        if labels.dim() == 0:
            wrong, chances = [int(logits[i].argmax()) != int(labels)], [missed(logits[i], int(labels))]
        else:
            ahead = int(name == "causal")
            places = [k for k in range(ahead, 6) if int(labels[k]) != -100]
            wrong = [int(logits[i, k - ahead].argmax()) != int(labels[k]) for k in places]
            chances = [missed(logits[i, k - ahead], int(labels[k])) for k in places]
        assert float(found[i]) == pytest.approx(sum(wrong) / max(len(wrong), 1))
        assert float(expected[i]) == pytest.approx(sum(chances) / max(len(chances), 1), rel=1e-5)


# This ignores a warning of peft, which reads an attribute that transformers renames.
@pytest.mark.filterwarnings("ignore::FutureWarning")
def test_a_model_of_peft_is_known_by_what_it_wraps() -> None:
    peft = pytest.importorskip("peft", reason="the dev extra is not installed")
    for config in (
        peft.LoraConfig(task_type="CAUSAL_LM", r=2, target_modules=["q_proj"]),
        peft.PrefixTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=3),
    ):
        module, given = peft.get_peft_model(model("causal"), config).eval(), batch("causal")
        with torch.no_grad():
            found = losses_for(module)(module, given)
            alone = [float(module(**{key: value[i : i + 1] for key, value in given.items()}).loss) for i in range(2)]
        torch.testing.assert_close(found[:2], torch.tensor(alone), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", ["masked", "causal"])
def test_a_language_model_computes_the_logits_of_labelled_tokens_alone(name: str) -> None:
    module, given, seen = model(name), batch(name), []
    given["labels"][:, :3] = -100
    hook = module.get_output_embeddings().register_forward_hook(
        lambda _, args, output: seen.append(tuple(output.shape))
    )
    with torch.no_grad():
        found = losses_for(module)(module, given)
        hook.remove()
        alone = [module(**{key: value[i : i + 1] for key, value in given.items()}).loss for i in range(2)]
    fewer = name == "masked" or hasattr(transformers.modeling_utils, "slice_logits_to_keep")  # transformers 5
    assert seen == [(3, 3, 20) if fewer else (3, 6, 20)]
    torch.testing.assert_close(found[:2], torch.stack(alone), rtol=1e-5, atol=1e-6)


# This ignores a warning of peft, which reads an attribute that transformers renames.
@pytest.mark.filterwarnings("ignore::FutureWarning")
def test_virtual_tokens_before_the_text_are_refused() -> None:
    peft = pytest.importorskip("peft", reason="the dev extra is not installed")
    config = peft.PromptTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=2)
    module = peft.get_peft_model(model("causal"), config).eval()
    with pytest.raises(ValueError, match="virtual tokens are not supported"):
        losses_for(module)(module, batch("causal"))


@pytest.mark.parametrize("name", ["one of three", "tags", "causal"])
@pytest.mark.parametrize("wrong", [-1, 20])
def test_a_label_that_is_no_class_is_its_own_records_alone(name: str, wrong: int) -> None:
    """A label that is no class makes only its own record's loss not a number, which counts as 0.

    The losses of the other records stay what they were.
    """
    module, given = model(name), batch(name)
    with torch.no_grad():
        whole = losses_for(module)(module, given)
        given["labels"].view(3, -1)[1, -3 if name != "one of three" else 0] = wrong
        found = losses_for(module)(module, given)
    assert found.isnan().tolist() == [False, True, False]
    assert torch.equal(found[::2], whole[::2])
    with torch.no_grad():
        chance = losses_for(module, "expected-error")(module, given)
        given["labels"].view(3, -1)[1, -3 if name != "one of three" else 0] = 0
        known = losses_for(module, "expected-error")(module, given)
    assert float(chance[1]) > float(known[1])
    assert torch.equal(chance[::2], known[::2])


NUMBERS = {"problem_type": "regression"}


@pytest.mark.parametrize(
    ("config", "labels"),
    [
        ({"num_labels": 3}, torch.tensor([0, 2], dtype=torch.int32)),
        ({"num_labels": 3}, torch.tensor([[0], [2]])),
        ({"num_labels": 3, **NUMBERS}, torch.tensor([[0.5, 2.0, 1.0], [0.0, -1.0, 0.3]])),
        ({"num_labels": 1}, torch.tensor([[0.5], [2.0]])),
        ({"num_labels": 1}, torch.tensor([3, -2])),
    ],
    ids=str,
)
def test_a_classifier_takes_the_forms_of_labels_that_transformers_takes(config: Any, labels: torch.Tensor) -> None:
    torch.manual_seed(3)
    module = bert("SequenceClassification", **config).eval()
    given = {"input_ids": torch.randint(3, 20, (2, 6)), "labels": labels}
    one = labels if labels.dtype.is_floating_point or "problem_type" not in config else labels.float()
    one = one.long() if labels.dtype == torch.int32 else one.float() if config["num_labels"] == 1 else one
    with torch.no_grad():
        found = losses_for(module)(module, given)
        rows = [{"input_ids": given["input_ids"][i : i + 1], "labels": one[i : i + 1]} for i in range(2)]
        theirs = torch.stack([module(**row).loss for row in rows])
    torch.testing.assert_close(found, theirs, rtol=1e-5, atol=1e-6)


IDS = {"input_ids": torch.randint(3, 20, (3, 6), generator=torch.Generator().manual_seed(1))}
LABELS: list[tuple[Any, Any, str]] = [
    (lambda: model("causal"), {}, r"batches must hold labels, .*; got input_ids: use a collator .*mlm=False"),
    (lambda: model("causal"), None, "batches must be mappings with labels"),
    (lambda: model("causal"), torch.tensor([0, 1, 0]), r"labels must be of shape \(records, tokens\)"),
    (lambda: model("causal"), torch.ones(3, 6), "labels must be integers, numbers of classes; got torch.float32"),
    (lambda: model("tags"), torch.ones(3, 3), r"labels must be of shape \(3, 6\) .*; got \(3, 3\): .* word_ids"),
    (
        lambda: bert("SequenceClassification", num_labels=2, **NUMBERS),
        torch.tensor([0, 1, 0]),
        r"labels must be of shape \(3, 2\) .* problem_type='regression'",
    ),
    (lambda: model("one of three"), torch.tensor([[1, 0, 1]] * 3), r"labels must be of shape \(3,\)"),
    (
        lambda: bert("SequenceClassification", problem_type="multi_label_classification"),
        IDS,
        "losses must be given for a",
    ),
    (lambda: torch.nn.Linear(2, 2), torch.zeros(3), "losses must be given for a model .*; got Linear"),
    (lambda: bert("QuestionAnswering"), torch.zeros(3), "losses must be given for .*; got BertForQuestionAnswering"),
]


@pytest.mark.parametrize(("make", "labels", "said"), LABELS, ids=[said[:40] for _, _, said in LABELS])
def test_labels_and_models_that_do_not_fit_are_one_line(make: Any, labels: Any, said: str) -> None:
    given = {**IDS, "labels": labels} if isinstance(labels, torch.Tensor) else labels
    given = (IDS["input_ids"], IDS["input_ids"]) if given is None else {**IDS, **given}
    module = make()
    with pytest.raises(ValueError, match=f"^{said}") as found:
        losses_for(module)(module, given)
    assert "\n" not in str(found.value)


def test_measures_that_do_not_fit_are_one_line() -> None:
    for name, measure, said in (
        ("a number", "error", "must be 'cross-entropy' where"),
        ("causal", "f1", "must be one"),
    ):
        with pytest.raises(ValueError, match=f"^measure {said}"):
            losses_for(model(name), measure)
