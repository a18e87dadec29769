"""One run on two processes, which share each batch.  torchrun --nproc-per-node 2 examples/two_ranks.py"""

import torch
import torch.distributed as dist
from torch.utils.data import TensorDataset

from dpzero_theory.optim import make_private_with_epsilon

dist.init_process_group("gloo")
features = torch.randn(1000, 20, generator=torch.Generator().manual_seed(0))
data = TensorDataset(features, (features[:, 0] > 0).long())
model = torch.nn.Linear(20, 2)  # rank 0's initial weights are everyone's
run = make_private_with_epsilon(
    model, lambda module, batch: torch.nn.functional.cross_entropy(module(batch[0]), batch[1], reduction="none"), data,
    target_epsilon=2, target_delta=1e-5, relation="add-remove", sampling="poisson", expected_batch=200,
    steps=50, clip=1.0, step_size=0.1, smoothing=1e-3, folder="out/two-ranks",
)  # fmt: skip
run.run()
correct = float((model(features).argmax(1) == data.tensors[1]).float().mean())
epsilon = run.get_epsilon(1e-5)  # asked of every rank, known to rank 0
if dist.get_rank() == 0:
    print(f"epsilon {epsilon:.3f}, {100 * correct:.0f}% of the training records right")
dist.barrier()  # so that no rank leaves while another still hears from it
dist.destroy_process_group()

# It prints:
# epsilon 2.000, 80% of the training records right
