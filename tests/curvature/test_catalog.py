"""Tests of the models that can be named on the command line of the curvature measurement."""

import pytest

from dpzero_theory.curvature import tasks
from dpzero_theory.curvature.catalog import load


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
    mine = load("tests.curvature.test_catalog:own_task", "somewhere", 20, 0)
    assert (mine.known, mine.least_loss) == ("", 0.0)


@pytest.mark.parametrize(
    ("model", "data", "message"),
    [
        ("mlp-digits", "digits", "model must be mlp-digits:WIDTH with an integer WIDTH; got 'mlp-digits'"),
        ("mlp-digits:0", "digits", "model must be an integer with 1 <= model"),
        ("mlp-digits:3", "toy", "data must be 'digits' for mlp-digits:3; got 'toy'"),
        ("tests.curvature.test_catalog:absent", "x", "model must be one of .* has no attribute 'absent'"),
        ("resnet", "digits", "model must be one of mlp-digits:WIDTH, .*; got 'resnet'"),
    ],
)
def test_what_is_not_there_is_refused(model: str, data: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        load(model, data, None, 0)
