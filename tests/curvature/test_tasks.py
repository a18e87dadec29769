"""Tests of the cross-entropies, by hand, and of the network on digits."""

import math

import pytest
import torch
from torch import nn

from dpzero_theory import datasets
from dpzero_theory.curvature import tasks
from dpzero_theory.curvature.tasks import cross_entropy, load, mlp_digits


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


def own_task(data: str, samples: int | None, seed: int) -> tasks.Task:
    """A user's own model for MODULE:FUNCTION: a small network whose data is not known to be public or synthetic."""
    task = tasks.mlp_digits(2, samples, seed)
    return tasks.Task(module=task.module, losses=task.losses, batches=task.batches)


def other_task(data: str, samples: int | None, seed: int) -> str:
    return data


def test_names_and_functions_of_ones_own() -> None:
    network = load("mlp-digits:3", "digits", 20, 0)
    assert sum(p.numel() for p in network.module.parameters()) == 75 * 3 + 10
    assert (network.known, [len(labels) for _, labels in network.batches]) == ("public", [20])
    mine = load("tests.curvature.test_tasks:own_task", "somewhere", 20, 0)
    assert (mine.known, mine.least_loss) == ("", 0.0)


@pytest.mark.parametrize(
    ("model", "data", "message"),
    [
        ("mlp-digits", "digits", "model must be mlp-digits:WIDTH with an integer WIDTH; got 'mlp-digits'"),
        ("mlp-digits:0", "digits", "model must be an integer with 1 <= model"),
        ("mlp-digits:3", "toy", "data must be 'digits' for mlp-digits:3; got 'toy'"),
        ("tests.curvature.test_tasks:absent", "x", "model must be one of .* has no attribute 'absent'"),
        ("resnet", "digits", "model must be one of mlp-digits:WIDTH, .*; got 'resnet'"),
    ],
)
def test_what_is_not_there_is_refused(model: str, data: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        load(model, data, None, 0)
