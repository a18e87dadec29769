"""OPT and RoBERTa models of two layers at any width, and where the pretrained ones are."""

from pathlib import Path
from typing import Any

from transformers import OPTConfig, RobertaConfig

from benchmarks.llm.models import LanguageModel, load
from benchmarks.pretrain.text import LONGEST, VOCABULARY
from dpzero_theory import check

FAMILIES = {"opt": "causal", "roberta": "masked"}
"""The families, and the kind of model that each is."""
LAYERS, HEAD = 2, 16


def config(family: str, width: int) -> Any:
    """Return the configuration of a model of the family "opt" or "roberta": heads of width 16, feed-forward layers four
    times as wide as the model, no dropout. width must be a multiple of 16, else ValueError is raised."""
    check.choice("family", family, FAMILIES)
    if check.integer("width", width) % HEAD:
        raise ValueError(f"width must be a multiple of {HEAD}; got {width}")
    shared = {
        "vocab_size": VOCABULARY, "hidden_size": width, "num_hidden_layers": LAYERS,
        "num_attention_heads": width // HEAD, "max_position_embeddings": LONGEST + 8, "attention_dropout": 0.0,
        "bos_token_id": 0, "pad_token_id": 1, "eos_token_id": 2,
    }  # fmt: skip
    if family == "opt":
        return OPTConfig(ffn_dim=4 * width, word_embed_proj_dim=width, dropout=0.0, **shared)
    del shared["attention_dropout"]
    return RobertaConfig(
        intermediate_size=4 * width,
        type_vocab_size=1,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
        **shared,
    )


def folder_of(parent: Path, family: str, width: int) -> Path:
    """Return the folder below `parent` of the pretrained model of this family ("opt" or "roberta") and width, which
    need not exist. It has weights and tokenizer as transformers keeps them."""
    return parent / f"{family}-{width}"


def pretrained(parent: Path, family: str, width: int) -> LanguageModel:
    """Return the pretrained model of this family and width from the folder `parent`. Raises ValueError where `python -m
    benchmarks.pretrain` has not made it there."""
    place = folder_of(parent, family, width)
    if not (place / "config.json").exists():
        raise ValueError(f"models must be made first: python -m benchmarks.pretrain --family {family} --width {width}")
    return load(str(place))
