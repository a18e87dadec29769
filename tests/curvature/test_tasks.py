"""Tests of the cross-entropies, by hand, and of the network on digits."""

import math

import torch
from torch import nn

from dpzero_theory import datasets
from dpzero_theory.curvature.tasks import cross_entropy, mlp_digits


def test_cross_entropies_are_minus_the_log_of_the_share_of_the_label() -> None:
    values = torch.tensor([[1.0, 2.0, 0.5], [0.0, 0.0, 0.0]])
    losses = cross_entropy(nn.Identity(), (values, torch.tensor([1, 2])))
    share = math.exp(2.0) / (math.exp(1.0) + math.exp(2.0) + math.exp(0.5))
    torch.testing.assert_close(losses, torch.tensor([-math.log(share), math.log(3.0)]))


def test_the_network_on_digits_is_fixed_by_its_seed_and_leaves_the_generator_alone() -> None:
    torch.manual_seed(11)
    expected = torch.rand(1)
    torch.manual_seed(11)
    task = mlp_digits(4, 100, 1)
    assert torch.equal(torch.rand(1), expected)
    weights = torch.cat([p.reshape(-1) for p in task.module.parameters()])
    assert (weights.shape, weights.dtype) == ((75 * 4 + 10,), torch.float64)
    again = torch.cat([p.reshape(-1) for p in mlp_digits(4, 100, 1).module.parameters()])
    assert torch.equal(weights, again)
    ((features, labels),) = task.batches
    pixels, digit = datasets.digits(seed=1)
    assert torch.equal(features, torch.as_tensor(pixels[:100]))
    assert labels.tolist() == digit[:100].tolist()
    whole = mlp_digits(4, None, 1)
    assert sum(len(part) for _, part in whole.batches) == 1797
    assert not any(part.training for part in whole.module.modules())
