"""Tests that the settings run on further seeds are the best ones of the first seed."""

import pandas as pd

from benchmarks.sweeps.dpgd_seeds import best


def test_the_best_by_either_measurement_once() -> None:
    rows = pd.DataFrame(
        {
            "steps": [10, 20, 40, 80],
            "step_size": [0.1, 0.1, 0.3, 0.3],
            "clip": [1.0, 3.0, 1.0, 3.0],
            "gradient_train_last": [4.0, 1.0, 2.0, 3.0],
            "gradient_train_tau": [1.0, 2.0, 3.0, 4.0],
        }
    )
    assert best(rows, 1) == ((20, 0.1, 3.0), (10, 0.1, 1.0))
    assert best(rows, 2) == ((20, 0.1, 3.0), (40, 0.3, 1.0), (10, 0.1, 1.0))
