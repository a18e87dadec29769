"""Tiny random language models whose curvature is measured; they need the extra `hf`."""

import torch
from torch import Tensor, nn

from dpzero_theory import check
from dpzero_theory.curvature import tasks
from dpzero_theory.curvature.tasks import Task, cross_entropy

SAMPLES = 256  # The number of samples that are measured if the user gives no number


def load(model: str, data: str, samples: int | None, seed: int) -> Task:
    """Returns the task with this name: "roberta-tiny", "opt-tiny", or a name of `dpzero_theory.curvature.tasks`. The
    other arguments are those of `tasks.load`."""
    if model.endswith("-tiny"):
        return tiny(model.removesuffix("-tiny"), samples, seed)
    return tasks.load(model, data, samples, seed)


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
    ids = torch.randint(5, 128, (samples or SAMPLES, 12), generator=generator)
    batches = list(zip(torch.split(ids, 64), torch.split(ids[:, 3] % 2, 64), strict=True))
    return Task(module=module, losses=cross_entropy, batches=batches, known="synthetic")
