"""Opacus calibrates and reports with certified numbers.  python examples/in_opacus.py"""

import torch
from opacus import PrivacyEngine
from torch.utils.data import DataLoader, TensorDataset

import dpzero_theory.privacy.opacus  # noqa: F401  registers the accountant "certified"

data = DataLoader(TensorDataset(torch.randn(200, 5), torch.randn(200, 1)), batch_size=20)
model = torch.nn.Linear(5, 1)
engine = PrivacyEngine(accountant="certified")
model, optimizer, data = engine.make_private_with_epsilon(
    module=model, optimizer=torch.optim.SGD(model.parameters(), 0.05), data_loader=data, max_grad_norm=1.0,
    target_epsilon=2.0, target_delta=1e-5, epochs=2,
)  # fmt: skip
for x, y in (batch for _ in range(2) for batch in data):
    optimizer.zero_grad()
    torch.nn.functional.mse_loss(model(x), y).backward()
    optimizer.step()
print(f"noise {optimizer.noise_multiplier:.4f}, epsilon {engine.get_epsilon(delta=1e-5):.6f}")

# It prints:
# noise 1.3623, epsilon 1.999552
