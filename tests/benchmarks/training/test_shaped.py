"""Tests of directions of another shape on a linear classifier: the metric, the change of coordinates, the rows."""

import numpy as np
import pytest
import torch

from benchmarks.kit.rows import RESULTS, read_rows
from benchmarks.training import shaped
from benchmarks.training.equal_tasks import HeadTask
from benchmarks.training.heads import Head, Linear, Normed, Part


def records(count: int, seed: int) -> Part:
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((count, 5)) * [3.0, 2.0, 1.0, 0.5, 0.2]
    return Part(torch.tensor(x), torch.tensor(rng.integers(0, 3, count)))


def work(head: Head | None = None) -> HeadTask:
    return HeadTask(head or Linear(torch.ones(3, 5).double(), 2.0), records(40, 0), records(30, 1), records(20, 2))


@pytest.mark.parametrize("power", shaped.POWERS)
def test_the_metric_is_a_power_of_the_second_moments(power: float) -> None:
    """Independently computed from the singular values of the records, with the share that is added to all."""
    x = records(200, 3).x
    _, sizes, right = np.linalg.svd(x.numpy(), full_matrices=False)
    values = sizes**2 / 200
    wanted = right.T @ np.diag((values + shaped.ADDED * values.mean()) ** power) @ right
    found = (shaped.root(x, power) @ shaped.root(x, power)).numpy()
    np.testing.assert_allclose(found / np.trace(found), wanted / np.trace(wanted), atol=1e-12)
    assert (x @ shaped.root(x, power)).square().sum() == pytest.approx(float(x.square().sum()))


def test_the_start_is_the_same_classifier_and_a_step_moves_it_by_the_metric() -> None:
    """Coordinates w of x = B^(1/2) w: the logits at the start stay, and a step by w's gradient is one by B times that
    of x."""
    plain, other = work(), shaped.shaped(work(), -1.0, 30)
    by = shaped.root(plain.chosen_by.x, -1.0)
    assert isinstance(plain.head, Linear)
    assert isinstance(other.head, Linear)
    torch.testing.assert_close(other.train.x @ other.head.weights.T, plain.train.x @ plain.head.weights.T)
    gradients = []
    for task, head in ((plain, plain.head), (other, other.head)):
        weights = head.weights.clone().requires_grad_()
        loss = torch.nn.functional.cross_entropy(2.0 * task.train.x @ weights.T, task.train.y)
        gradients.append(torch.autograd.grad(loss, weights)[0])
    torch.testing.assert_close(gradients[1] @ by, gradients[0] @ by @ by)


def test_power_zero_is_the_plain_mechanism() -> None:
    torch.testing.assert_close(shaped.shaped(work(), 0.0, 30).train.x, work().train.x)


def test_a_head_that_is_not_linear_is_refused() -> None:
    head = Normed(torch.ones(3, 5), torch.zeros(5), torch.ones(5), 1.0)
    with pytest.raises(TypeError, match="linear classifier"):
        shaped.shaped(work(head), -1.0, 30)


def test_reported_runs_took_no_part_in_the_choice() -> None:
    table = shaped.reported(read_rows(RESULTS / "shaped"))
    assert len(table) == len(shaped.EVALUATIONS) * (2 * len(shaped.POWERS) - 1)
    assert table["accuracy"].between(20, 90).all()
