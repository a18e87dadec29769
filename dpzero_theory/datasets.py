"""The data sets of the experiments, from installed packages and local files: nothing is downloaded."""

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from dpzero_theory.check import Array, PreconditionError


def digits(seed: int | None = None) -> tuple[Array, NDArray[np.int64]]:
    """Returns scikit-learn's handwritten digits: pixels in [0, 1], of shape (1797, 64), and the digit of each image.

    With an integer `seed` the images are shuffled; with None they have scikit-learn's order. PreconditionError is
    raised where scikit-learn is not installed.
    """
    try:
        from sklearn.datasets import load_digits
    except ImportError:
        raise PreconditionError("digits need scikit-learn (the demo extra)") from None
    pixels, digit = load_digits(return_X_y=True)
    order = slice(None) if seed is None else np.random.default_rng(seed).permutation(len(digit))
    return pixels[order] / 16.0, digit[order]


def binary_digits(seed: int | None = None) -> tuple[Array, Array]:
    """Returns scikit-learn's handwritten digits with two classes: features of shape (1797, 65), and labels +1 and -1.

    The label is +1 for a digit of 5 or more and -1 for a smaller one. The features are the 64 pixels, in [0, 1], and a
    constant 1. With an integer `seed` the images are shuffled; with None they have scikit-learn's order.
    PreconditionError is raised where scikit-learn is not installed.
    """
    pixels, digit = digits(seed)
    return np.hstack([pixels, np.ones((len(pixels), 1))]), np.where(digit >= 5, 1.0, -1.0)


def sst2(path: Path) -> tuple[list[str], Array]:
    """Reads sentences and their labels from a file of SST-2, in the form of the GLUE benchmark.

    `path` is a file of lines `sentence<TAB>label`, label 0 or 1, with or without the header `sentence<TAB>label`.
    Returns the list of sentences, and an array with -1 for label 0 and +1 for label 1. Raises FileNotFoundError, and
    ValueError naming the first line that does not fit.
    """
    sentences: list[str] = []
    labels: list[float] = []
    with path.open(encoding="utf-8") as lines:
        for number, line in enumerate(lines, start=1):
            sentence, tab, label = line.rstrip("\n").rpartition("\t")
            if number == 1 and (sentence, label) == ("sentence", "label"):
                continue
            if not tab or label not in ("0", "1"):
                raise ValueError(f"{path}, line {number}: need sentence<TAB>0 or sentence<TAB>1; got {line[:60]!r}")
            sentences.append(sentence)
            labels.append(1.0 if label == "1" else -1.0)
    if not sentences:
        raise ValueError(f"{path}: holds no labelled sentences")
    return sentences, np.array(labels)
