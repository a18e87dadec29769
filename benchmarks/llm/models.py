"""Masked and causal models and sentence encoders by path or id, and the sizes of the paper's models."""

import argparse
import re
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn
from transformers import (
    AutoConfig,
    AutoModel,
    AutoModelForCausalLM,
    AutoModelForMaskedLM,
    AutoTokenizer,
    PreTrainedConfig,
)

from benchmarks.pretrained import PRETRAINED, pretrained_folder
from dpzero_theory import check

DTYPES = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}

_ID = re.compile(r"[A-Za-z0-9][\w.-]*(/[A-Za-z0-9][\w.-]*)?")
_FAMILIES = {"masked": AutoModelForMaskedLM, "causal": AutoModelForCausalLM, "encoder": AutoModel}


@dataclass(frozen=True)
class LanguageModel:
    """A module in evaluation mode, its tokenizer and its kind, one of `tasks.KINDS`."""

    module: nn.Module
    tokenizer: Any
    kind: str

    @property
    def pad(self) -> int:
        """The token id that fills prompts up to one length; an arbitrary one where the tokenizer has none."""
        return int(self.tokenizer.pad_token_id or 0)


def model_name(text: str) -> str:
    """A type for `add_argument`: a name or id such as FacebookAI/roberta-large, or a folder that is there."""
    if _ID.fullmatch(text) or Path(text, "config.json").is_file() or Path(text, "tokenizer.json").is_file():
        return text
    rule = "must be a folder with a model or an id of Hugging Face, OWNER/NAME"
    raise argparse.ArgumentTypeError(f"{rule}; got {check.shown(text)}")


def load(name: str, *, dtype: str = "float32", device: str = "cpu") -> LanguageModel:
    """Load a pretrained model in evaluation mode, with its tokenizer.

    name: a name of `PRETRAINED` such as `smollm2`, a folder, or an id of Hugging Face. dtype: that of its weights, a
    key of `DTYPES`. device: where it is put. Raises ValueError for an unknown dtype.
    """
    place = str(pretrained_folder(name)) if name in PRETRAINED else name
    architectures = " ".join(getattr(AutoConfig.from_pretrained(place), "architectures", None) or ())
    kind = "masked" if "MaskedLM" in architectures else "causal" if "CausalLM" in architectures else "encoder"
    module: Any = _FAMILIES[kind].from_pretrained(place, dtype=DTYPES[check.choice("dtype", dtype, DTYPES)])
    module.config.use_cache = False
    return LanguageModel(module.eval().to(device), AutoTokenizer.from_pretrained(place), kind)


def configuration(size: str) -> PreTrainedConfig:
    """Return the configuration with this name in sizes.toml, or of the folder or id of Hugging Face that it names."""
    sizes = tomllib.loads((Path(__file__).parent / "sizes.toml").read_text())
    return AutoConfig.for_model(**sizes[size]) if size in sizes else AutoConfig.from_pretrained(size)
