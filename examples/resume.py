"""An interrupted run goes on where it was.  python examples/resume.py, twice; or press Ctrl-C in the first"""

from pathlib import Path

import torch
from torch.utils.data import TensorDataset

from dpzero_theory.optim import make_private_with_epsilon

features = torch.randn(1000, 20, generator=torch.Generator().manual_seed(0))
data = TensorDataset(features, (features[:, 0] > 0).long())
model = torch.nn.Linear(20, 2)
torch.nn.init.zeros_(model.weight)  # a run goes on from the weights that it was begun with
torch.nn.init.zeros_(model.bias)


def losses(module, batch):
    return torch.nn.functional.cross_entropy(module(batch[0]), batch[1], reduction="none")


run = make_private_with_epsilon(
    model, losses, data, folder="out/resume", resume=Path("out/resume").exists(),
    target_epsilon=2, target_delta=1e-5, relation="add-remove", sampling="poisson", expected_batch=200,
    steps=50, clip=1.0, step_size=0.1, smoothing=1e-3,
)  # fmt: skip
for _ in range(min(run.releases_left, 30)):  # the power goes after 30 releases
    run.step()
print(f"{run.releases_left} releases left, epsilon {run.get_epsilon(1e-5):.3f}, however the run ends")
run.close()

# It prints:
# 20 releases left, epsilon 2.000, however the run ends
