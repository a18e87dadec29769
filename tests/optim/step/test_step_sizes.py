"""Tests of named schedules of step sizes, beside those of transformers."""

import pytest
import torch
from transformers import get_scheduler

from dpzero_theory.optim.step.update import step_sizes

STEPS = 20


@pytest.mark.parametrize("name", ["linear", "cosine"])
@pytest.mark.parametrize("warm_up", [0, 5])
def test_after_the_warm_up_they_are_transformers(name: str, warm_up: int) -> None:
    """transformers begins the warm-up at 0, so that the first step does nothing; ours does not."""
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=0.5)
    theirs = get_scheduler(name, optimizer, num_warmup_steps=warm_up, num_training_steps=STEPS)
    found = []
    for _ in range(STEPS):
        found.append(theirs.get_last_lr()[0])
        optimizer.step()
        theirs.step()
    ours = step_sizes(0.5, STEPS, f"{name}:{warm_up}")
    assert ours[warm_up:] == pytest.approx(found[warm_up:], rel=1e-12)
    assert list(ours[:warm_up]) == pytest.approx([0.5 * (t + 1) / (warm_up + 1) for t in range(warm_up)])


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ((0.5, STEPS, "polynomial"), "schedule must be one of constant, linear, cosine; got 'polynomial'"),
        ((0.5, STEPS, "linear:-1"), "schedule must be linear or linear:W"),
        ((0.5, STEPS, "linear:20"), "warm-up must be"),
        ((lambda t: 0.5, STEPS, "linear"), "schedule must be constant where step_size is a function"),
        ((-0.5, STEPS, "linear"), "step_size must be"),
    ],
)
def test_what_is_no_schedule_is_refused(given: tuple[object, int, str], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        step_sizes(*given)  # type: ignore[arg-type]
