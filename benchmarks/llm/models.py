"""Masked, causal and encoder models by path or id, pretrained or with random weights."""

import argparse
import re
import tomllib
from dataclasses import dataclass
from functools import cache
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
from benchmarks.problems.encoder import minilm_folder
from dpzero_theory import check

MINILM = "minilm"
"""The name of the sentence encoder of 22.7 million weights that is installed with the extra `dev`, so nothing is
downloaded."""
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


def load(
    name: str, *, kind: str | None = None, dtype: str = "float32", device: str = "cpu", tokenizer: str | None = None
) -> LanguageModel:
    """Load a pretrained model in evaluation mode, with its tokenizer.

    name: `minilm`, a name of `PRETRAINED` such as `smollm2`, a folder, or an id of Hugging Face. kind: one of
    `tasks.KINDS`; None for the kind that the model was trained as. dtype: that of its weights, a key of `DTYPES`.
    device: where it is put. tokenizer: a folder or an id; None for the model's own. Raises ValueError for an unknown
    kind or dtype.
    """
    place = _place(name)
    chosen = kind or _kind(AutoConfig.from_pretrained(place))
    family = _FAMILIES[check.choice("kind", chosen, _FAMILIES)]
    module = family.from_pretrained(place, dtype=DTYPES[check.choice("dtype", dtype, DTYPES)])
    return LanguageModel(_ready(module).to(device), load_tokenizer(tokenizer or name), chosen)


def load_tokenizer(name: str) -> Any:
    """Return the tokenizer of a model that `load` knows by this name."""
    return AutoTokenizer.from_pretrained(_place(name))


def random_model(
    config: PreTrainedConfig, kind: str, *, seed: int, dtype: str = "float32", device: str = "cpu"
) -> nn.Module:
    """Return a model of this kind (one of `tasks.KINDS`) in evaluation mode, with random weights that are drawn with
    `seed`. It is made on `device` in `dtype` (a key of `DTYPES`), without a copy in main memory. config: its sizes, as
    transformers keeps them."""
    torch.manual_seed(seed)
    with torch.device(device):
        module: nn.Module = _FAMILIES[check.choice("kind", kind, _FAMILIES)].from_config(
            config, dtype=DTYPES[check.choice("dtype", dtype, DTYPES)]
        )
    return _ready(module)


def configuration(name: str) -> tuple[PreTrainedConfig, str]:
    """Return the configuration with this name, and its kind. name: one of sizes.toml, a folder, or an id of Hugging
    Face."""
    sizes = _sizes()
    if name in sizes:
        entry = dict(sizes[name])
        return AutoConfig.for_model(entry.pop("model_type"), **{k: v for k, v in entry.items() if k != "kind"}), str(
            entry["kind"]
        )
    config = AutoConfig.from_pretrained(_place(name))
    return config, _kind(config)


def _place(name: str) -> str:
    if name in PRETRAINED:
        return str(pretrained_folder(name))
    return str(minilm_folder()) if name == MINILM else name


def _ready(module: Any) -> nn.Module:
    module.config.use_cache = False
    ready: nn.Module = module.eval()
    return ready


def _kind(config: PreTrainedConfig) -> str:
    architecture = " ".join(getattr(config, "architectures", None) or ())
    return "masked" if "MaskedLM" in architecture else "causal" if "CausalLM" in architecture else "encoder"


@cache
def _sizes() -> dict[str, dict[str, Any]]:
    return tomllib.loads((Path(__file__).parent / "sizes.toml").read_text())
