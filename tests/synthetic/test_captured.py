"""Tests that a loop recorded as a CUDA graph gives what the loop gives."""

import numpy as np
import pytest
import torch

from dpzero_theory.synthetic.captured import Captured
from dpzero_theory.synthetic.products import step_loop


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_a_captured_loop_gives_what_the_loop_gives_for_new_values_and_shapes() -> None:
    captured = Captured(step_loop)
    for seed, (steps, n, count) in enumerate([(5, 50, 3), (5, 50, 3), (2, 50, 4)]):
        rng = np.random.default_rng(seed)
        given = [
            torch.as_tensor(values, device="cuda")
            for values in (
                np.sort(rng.standard_normal((steps, n)), axis=1),
                rng.standard_normal((steps, n + 1)),
                rng.standard_normal((steps, count)),
                rng.standard_normal((steps, steps)),
                rng.random(count),
                rng.random((steps, count)),
                rng.standard_normal((steps, count)),
            )
        ]
        torch.testing.assert_close(captured(*given), step_loop(*given), rtol=1e-12, atol=1e-12)
    assert len(captured._recorded) == 2
