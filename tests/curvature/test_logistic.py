"""Tests of logistic regression: its constants are bounds.

What is measured beside them agrees with dense linear algebra.
"""

import math
from pathlib import Path

import numpy as np
import pytest

from dpzero_theory import datasets
from dpzero_theory.curvature.logistic import logistic


def test_constants_are_bounds_that_hold_for_all_data() -> None:
    file = logistic("digits", None, 0, "public")
    assert file.constants == {
        "d": 65, "r": 1, "lipschitz": 1, "smoothness": 0.25, "gap": pytest.approx(math.log(2)),
        "loss_bound": pytest.approx(2 * math.log(2)), "sample_rank": 1,
    }  # fmt: skip
    assert file.measurements["kind"] == "bound"
    assert file.caveats[0].startswith("bounds, not estimates")


def test_what_is_measured_is_the_second_moment_of_the_rows_of_norm_one() -> None:
    """The measured matrix is the Hessian bound H = (1/4n) sum_i a_i a_i^T with rows a_i of norm 1.

    The rows are the first 200 of the shuffled digits.
    """
    features, _ = datasets.binary_digits(seed=3)
    rows = features[:200] / np.linalg.norm(features[:200], axis=1, keepdims=True)
    values = np.linalg.eigvalsh(rows.T @ rows) / (4 * 200)
    found = logistic("digits", 200, 3, "public").measurements
    assert found["samples"] == 200
    assert found["norm"] == pytest.approx(values[-1], rel=1e-9)
    assert found["trace"] == pytest.approx(0.25, rel=1e-9)
    assert found["effective_rank"] == pytest.approx(0.25 / values[-1], rel=1e-9)


def test_sentences_are_read_from_a_folder(tmp_path: Path) -> None:
    (tmp_path / "sst2_train.tsv").write_text("a fine film\t1\na dull film\t0\nfine\t1\n")
    file = logistic(str(tmp_path), 2, 0, "synthetic")
    assert (file.constants["d"], file.measurements["samples"], file.data) == (1 << 14, 2, "synthetic")
