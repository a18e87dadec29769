"""Opacus's engine audited, at its defaults.  python examples/audit_opacus.py [CHECK ...]"""

import sys

import numpy as np
import torch
from opacus import PrivacyEngine
from torch import nn
from torch.utils.data import DataLoader, Dataset

import dpzero_theory as dz


class Asked(Dataset):  # a data set that notes which records are read, and so the batches
    def __init__(self, records):
        self.rows, self.asked = torch.tensor(records, dtype=torch.float32), []

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, index):
        self.asked.append(int(index))
        return self.rows[index, :-1], self.rows[index, -1]


def train(records, seed, settings):
    data, model, out = Asked(records), nn.Linear(5, 1), {"releases": [], "clean": [], "batches": []}
    module, optimizer, loader = PrivacyEngine().make_private(
        module=model, optimizer=torch.optim.SGD(model.parameters(), lr=settings["step_size"]),
        data_loader=DataLoader(data, batch_size=int(settings["batch"])),
        noise_multiplier=settings["noise_multiplier"], max_grad_norm=settings["clip"],
    )  # fmt: skip

    def note(optimizer):
        size = optimizer.expected_batch_size * optimizer.accumulated_iterations
        out["releases"].append(torch.cat([p.grad.flatten() for p in optimizer.params]).numpy().copy())
        out["clean"].append((torch.cat([p.summed_grad.flatten() for p in optimizer.params]) / size).numpy())
        out["batches"].append(sorted(data.asked))
        data.asked.clear()

    optimizer.attach_step_hook(note)
    data.asked.clear()  # the engine has read a record that is in no batch
    while len(out["releases"]) < settings["steps"]:
        for features, target in loader:
            optimizer.zero_grad()
            ((module(features)[:, 0] - target) ** 2).mean().backward()
            optimizer.step()
            if len(out["releases"]) == settings["steps"]:
                break
    return out


records = np.random.default_rng(0).normal(size=(48, 6))  # five features and a target
step = dz.Step(noise=2.0, sampling=dz.Poisson(12 / 48), relation="add-remove")
claim = dz.Claim.of(step, 12, n=48, clip=1.0, delta=1e-5)
view, settings = dz.View(seed="public"), {"step_size": 0.1}
print(dz.audit(train, records, claim, view, settings, checks=sys.argv[1:], runs=24).text())

# It prints:
# Violated: noise-from-seed, sensitivity, batches-secret.
# ...
