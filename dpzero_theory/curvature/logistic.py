"""Logistic regression, whose constants in the paper's theorems hold for all weights.

They hold for all data with rows of norm 1, too.
"""

from pathlib import Path

import numpy as np

from dpzero_theory import datasets
from dpzero_theory.problem_file import ProblemFile
from dpzero_theory.synthetic.data import hashed_words
from dpzero_theory.synthetic.problems import LogisticRegression

FEATURES = 1 << 14  # The dimension d of a sentence's feature vector: the counts of hashed words, and a constant 1


def logistic(data: str, samples: int | None, seed: int, declared: str) -> ProblemFile:
    """Returns the problem file of logistic regression on the digits, or on hashed words of the sentences of SST-2.

    The constants (Lipschitz constant 1, smoothness 1/4, effective ranks 1, gap log 2 at the start x0 = 0) hold whatever
    the data. Only the effective rank of the Hessian bound depends on it, which is reported among the measurements.
    Raises ValueError for a file with other content, and OSError where it cannot be read.

    Args:
        data: "digits", or a folder with the file sst2_train.tsv.
        samples: how many samples are used; all if None.
        seed: draws the samples.
        declared: whether the data is "public", "synthetic" or "private".
    """
    if data == "digits":
        features, labels = datasets.binary_digits(seed)
        problem = LogisticRegression(features[:samples], labels[:samples])
    else:
        sentences, labels = datasets.sst2(Path(data) / "sst2_train.tsv")
        chosen = np.random.default_rng(seed).permutation(len(labels))[:samples]
        problem = LogisticRegression(hashed_words([sentences[i] for i in chosen], FEATURES), labels[chosen])
    gap = problem.gap(np.zeros(problem.d))
    return ProblemFile(
        constants={
            "d": problem.d,
            "r": problem.r,
            "lipschitz": problem.lipschitz,
            "smoothness": problem.smoothness,
            "gap": gap,
            "loss_bound": 2 * gap,
            "sample_rank": 1.0,
        },
        caveats=(
            "bounds, not estimates: L, ell, r, sample_rank and gap hold for every data set whose rows are scaled to "
            "norm 1 and for all weights, from x0 = 0",
            f"loss_bound is {2 * gap:.4g}, twice the loss at x0 = 0, and holds only while the run stays below it",
        ),
        data=declared,
        measurements={
            "samples": problem.n,
            "kind": "bound",
            "trace": problem.trace,
            "norm": problem.spectral_norm,
            "effective_rank": problem.effective_rank,
        },
    )
