"""Records of tokens and their losses, for engines that serve a causal language model; and models with LoRA adapters.

A record is a mapping of one of two forms. Tokens are indices of the model's vocabulary.

    {"input_ids": [...], "labels": [...]}     the loss is the mean of -log p over tokens whose label is not -100; all
                                              other labels are equal to input_ids
    {"options": [RECORD, ...], "right": k}    the loss is the cross-entropy of option k, where the logit of an option is
                                              the sum of log p over its labelled tokens

Tokens whose `attention_mask` is 0 are left out, so padding may be on either side.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from scipy.special import log_softmax
from torch import Tensor, nn

from dpzero_theory.check import Array

IGNORED = -100
"""The label of a token that does not count in a loss, as in torch and transformers."""


class Text(NamedTuple):
    """A sequence of tokens, whose log-probabilities are needed at some places.

    Attributes:
        ids: the tokens, as indices of the vocabulary, without padding.
        counted: the indices in `ids` of the tokens whose log-probabilities count in a loss, never 0.
    """

    ids: list[int]
    counted: list[int]


def texts_of(record: Mapping[str, Any]) -> list[Text]:
    """Return the token sequences of a record: one, or for a multiple-choice record one for each option.

    Args:
        record: a mapping with lists of integers `input_ids`, `labels` and, optionally, `attention_mask`; or a mapping
            with `options`, a list of such mappings. Tokens whose mask is 0 are left out. A token counts in the loss if
            its label is not -100 and it is not the first that is left.

    Raises:
        ValueError: there are no labels, or a label is neither -100 nor the token at its position.
    """
    return [_text(option) for option in record["options"]] if "options" in record else [_text(record)]


def _text(record: Mapping[str, Any]) -> Text:
    if "labels" not in record:
        raise ValueError("records must have labels: equal to input_ids to train on all tokens, -100 where none counts")
    ids, labels = list(map(int, record["input_ids"])), list(map(int, record["labels"]))
    mask = list(map(int, record.get("attention_mask", [1] * len(ids))))
    if not len(ids) == len(labels) == len(mask):
        raise ValueError(f"labels must be as many as input_ids; got {len(labels)} for {len(ids)}")
    kept = [(token, label) for token, label, seen in zip(ids, labels, mask, strict=True) if seen]
    counted = [place for place, (_, label) in enumerate(kept) if label != IGNORED and place]
    if any(kept[place][0] != kept[place][1] for place in counted):
        raise ValueError("labels must repeat input_ids or be -100, as an engine scores the tokens of a text")
    return Text([token for token, _ in kept], counted)


def loss_of(record: Mapping[str, Any], logs: Sequence[Array]) -> float:
    """Return the loss of a record from `logs`: for each of its texts, an array with log p of each counted token.

    The texts are those of `texts_of(record)`, and counted tokens those in `Text.counted`. The loss is the mean of -log
    p, or 0 without any. For a record with `options`, it is the cross-entropy of option record["right"], from 0, where
    the logit of an option is the sum of log p. Logarithms are natural.
    """
    if "options" in record:
        return -float(log_softmax([each.sum() for each in logs])[int(record["right"])])
    return -float(logs[0].mean()) if len(logs[0]) else 0.0


def losses_of_records(model: Callable[..., Any], records: Sequence[Mapping[str, Any]]) -> Tensor:
    """Return the losses of records of tokens by a causal language model of transformers, as float64 of shape
    (records,).

    Texts are evaluated one by one, without padding. With `collate=list` this is also a loss function for runs without
    an engine. It has no derivative. The result is on the CPU.

    Args:
        model: the model, or a function that takes `input_ids` of shape (1, tokens) and returns an object with `logits`.
        records: mappings with `input_ids` and `labels`, whose loss is the mean of -log p over the tokens whose label is
            not -100; or mappings with `options`, a list of such mappings, and `right`, the index of the right option,
            whose loss is the cross-entropy of that option, where an option's logit is the sum of its log p.

    Raises:
        ValueError: a record has no labels, or a label is neither -100 nor the token at its position.
    """
    device = next(model.parameters()).device if isinstance(model, nn.Module) else torch.device("cpu")
    found = []
    for record in records:
        logs = []
        for text in texts_of(record):
            ids = torch.tensor([text.ids], device=device)
            tokens = model(input_ids=ids).logits.float().log_softmax(-1)[0, :-1].gather(1, ids[0, 1:, None])[:, 0]
            logs.append(tokens.detach().double().cpu().numpy()[np.array(text.counted, np.int64) - 1])
        found.append(loss_of(record, logs))
    return torch.tensor(found, dtype=torch.float64)


def adapted(model: str, config: Any) -> nn.Module:
    """Return a causal language model of transformers with trainable LoRA adapters, whose frozen weights take no memory.

    The adapters are float32 on the CPU, the frozen weights on the meta device. Such a module can be trained with an
    engine. What transformers and peft raise is raised, such as OSError if the model is not found.

    Args:
        model: a folder with the model's configuration, or a name on the Hugging Face hub.
        config: peft's LoraConfig. The adapters get LoRA's usual initial values, with which they change nothing.
    """
    from peft import get_peft_model
    from transformers import AutoConfig, AutoModelForCausalLM

    with torch.device("meta"):
        base = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(model))
    found: nn.Module = get_peft_model(base, config, low_cpu_mem_usage=False)
    for name, parameter in list(found.named_parameters()):
        if parameter.requires_grad:
            where, _, last = name.rpartition(".")
            values = torch.zeros(parameter.shape)
            if "lora_A" in name:
                nn.init.kaiming_uniform_(values, a=5**0.5)
            setattr(found.get_submodule(where), last, nn.Parameter(values))
    return found


def base_of(module: Any) -> tuple[str, Any]:
    """Return the folder or hub name that the base model of a module with one adapter came from, and its LoraConfig.

    Raises ValueError unless `module` is a causal language model of transformers with LoRA factors of peft.
    """
    configs = getattr(module, "peft_config", {})
    config = configs.get("default") if isinstance(configs, dict) else None
    name = str(getattr(getattr(module, "config", None), "_name_or_path", ""))
    if config is None or not name or len(configs) != 1:
        raise ValueError(
            "module must be a causal language model of transformers with a LoRA adapter of peft (get_peft_model) for"
            f" this engine; got {type(module).__name__}"
        )
    return name, config
