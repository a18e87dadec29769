"""Private adapters on a base of 8-bit integers.  python examples/quantised_base.py [MODEL]

The base needs a forward alone, so any kernel will do; here a linear layer that keeps integers and a scale for each row.
MODEL must be of BERT's kind: its attention has linear layers called query and value, with biases.
"""

import sys

import torch
from reviews import minilm_folder, reviews
from torch import nn
from transformers import AutoModelForSequenceClassification, AutoTokenizer, default_data_collator

from dpzero_theory.optim import losses_for, make_private_with_epsilon


class Adapted(nn.Module):
    """A linear layer of 8-bit integers, frozen, and a trained matrix of rank 4 beside it."""

    def __init__(self, layer: nn.Linear) -> None:
        super().__init__()
        scale = layer.weight.detach().abs().amax(1, keepdim=True) / 127
        self.register_buffer("integers", (layer.weight.detach() / scale).round().to(torch.int8))
        self.register_buffer("scale", scale)
        self.bias = nn.Parameter(layer.bias.detach(), requires_grad=False)
        self.down = nn.Parameter(torch.randn(4, layer.in_features) / layer.in_features**0.5)
        self.up = nn.Parameter(torch.zeros(layer.out_features, 4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        weight = self.integers.to(x.dtype) * self.scale
        return nn.functional.linear(x, weight, self.bias) + x @ self.down.T @ self.up.T


name = sys.argv[1] if sys.argv[1:] else str(minilm_folder())
tokenizer = AutoTokenizer.from_pretrained(name)
model = AutoModelForSequenceClassification.from_pretrained(name, num_labels=2).requires_grad_(False)
for part in [part for part in model.modules() if hasattr(part, "query")]:
    part.query, part.value = Adapted(part.query), Adapted(part.value)
records = reviews(200)
ids = tokenizer(records["text"], padding="max_length", max_length=16, truncation=True)
data = [{"labels": y, **{key: ids[key][i] for key in ids}} for i, y in enumerate(records["label"])]
run = make_private_with_epsilon(
    model, losses_for(model), data, collate=default_data_collator, folder="out/quantised",
    target_epsilon=2, target_delta=1e-5, relation="add-remove", sampling="poisson", expected_batch=50,
    steps=20, clip=1.0, step_size=1e-2, smoothing=1e-2,
)  # fmt: skip
run.run()
print(f"epsilon {run.get_epsilon(1e-5):.3f} for {run.weights.d} adapter weights on integers")

# It prints:
# epsilon 2.000 for 36864 adapter weights on integers
