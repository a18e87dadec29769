"""Records of tokens, their losses, and models with adapters, for engines that serve a causal language model.

A record is a mapping, and its tokens are numbers in the model's vocabulary:

    {"input_ids": [...], "labels": [...]}     the loss is the mean of -log p over the tokens whose label is not -100, as
                                              with `task_losses.losses_for`. The other labels repeat input_ids
    {"options": [RECORD, ...], "right": k}    the loss is the cross-entropy of option k, where the logit of an option is
                                              the sum of log p over its labelled tokens

Tokens at which `attention_mask` is 0 are left out, so that it does not matter on which side a tokenizer pads.
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
    """Tokens without padding, `ids`, and the indices in it of those whose log-probabilities count, `counted`. Index 0
    is never among these, since no token comes before it."""

    ids: list[int]
    counted: list[int]


def texts_of(record: Mapping[str, Any]) -> list[Text]:
    """Return the texts of a record, of which an engine scores tokens: for each `ids`, the tokens, and `counted`, the
    indices in them of those that count in the loss.

    Args:
        record: a mapping with lists of integers `input_ids`, `labels` and, optionally, `attention_mask`, which is one
            text; or a mapping with `options`, a list of such mappings, each of which is one text. Tokens whose mask is
            0 are left out first. A label of -100 says that its token does not count; nor does the first token left,
            whatever its label, as it follows no other.

    Raises:
        ValueError: a text has no labels, or a label that is neither the token at its place nor -100.
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
    """Return a record's loss: the mean of -log p over its counted tokens (those labelled, never a text's first one), 0
    without any; or, of a record with options, the cross-entropy of the option with the number record["right"], from 0,
    where an option's logit is the sum of log p over its counted tokens.

    `logs` has for each of the record's texts the log-probabilities log p (natural) of its counted tokens.
    """
    if "options" in record:
        return -float(log_softmax([each.sum() for each in logs])[int(record["right"])])
    return -float(logs[0].mean()) if len(logs[0]) else 0.0


def losses_of_records(model: Callable[..., Any], records: Sequence[Mapping[str, Any]]) -> Tensor:
    """Return the losses of records by a causal language model of transformers, text by text and so without padding.

    With `collate=list` it is also a loss function for runs without an engine. It has no derivative. Raises ValueError
    for records that `texts_of` refuses.

    Args:
        model: the model, or another function that takes `input_ids` and returns an object with `logits`.
        records: mappings with `input_ids` and `labels`, whose loss is the mean of -log p over the tokens whose label is
            not -100; or with `options`, a list of such mappings, and `right`, whose loss is the cross-entropy of the
            option with that number.

    Returns:
        The losses, float64 of shape (records,), on the CPU.
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
    """Return a causal language model of transformers with trainable adapters on the CPU (float32), whose frozen weights
    take no memory (meta device). Such a module can be trained with an engine, and needs no GPU.

    What transformers and peft raise is raised, such as OSError for a model that is not found.

    Args:
        model: a folder with the model's configuration, or a name on the Hugging Face hub.
        config: peft's LoraConfig. The adapters have the values with which LoRA begins: the second factor is 0.
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
    """Return the folder or name that the base of a model with one adapter was loaded from, and peft's LoraConfig.

    Raises ValueError for a module that is not a causal language model of transformers with LoRA factors of peft.
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
