"""Data for the synthetic and logistic problems: the paper's Gaussian sample, digits, hashed sentences."""

import re
import zlib
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array

from dpzero_theory import check

__all__ = ["digits", "gaussian_data", "hashed_words", "read_labelled_sentences"]

Array = NDArray[np.float64]


def gaussian_data(rng: np.random.Generator, n: int, d: int) -> Array:
    """Draw the paper's synthetic data: shape (n, d), every coordinate from N(1, 1). Raises ValueError."""
    shape = (check.integer("n", n), check.integer("d", d))
    if not isinstance(rng, np.random.Generator):
        raise ValueError(f"rng must be a numpy.random.Generator; got {type(rng).__name__}")
    data = rng.standard_normal(shape)
    data += 1
    return data


def digits() -> tuple[Array, Array]:
    """Load scikit-learn's handwritten digits as a two-class task: is the digit 5 or more?

    Returns features of shape (1797, 65), pixels in [0, 1] and a constant 1, and labels in {-1, +1}. Needs
    scikit-learn (the `demo` extra); nothing is downloaded.
    """
    from sklearn.datasets import load_digits

    pixels, digit = load_digits(return_X_y=True)
    features = np.hstack([pixels / 16.0, np.ones((len(pixels), 1))])
    return features, np.where(digit >= 5, 1.0, -1.0)


def read_labelled_sentences(path: str | Path) -> tuple[list[str], Array]:
    """Read lines `sentence<TAB>label`, label 0 or 1, with or without the header `sentence<TAB>label`.

    The layout of SST-2 as the GLUE benchmark distributes it. Returns the sentences and labels in {-1, +1}.
    Raises FileNotFoundError, and ValueError naming the first line that does not fit.
    """
    sentences: list[str] = []
    labels: list[float] = []
    with open(path, encoding="utf-8") as lines:
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


def hashed_words(sentences: list[str], d: int) -> csr_array:
    """Count the words of each sentence in d - 1 hashed bins, and append a constant 1: shape (n, d).

    A word's bin is crc32(word) mod (d - 1): the map is fixed before any data is seen, so unlike a vocabulary
    it reveals nothing about the data. d >= 2. Raises ValueError.
    """
    bins = check.integer("d", d, at_least=2, at_most=2**31) - 1
    starts, columns = [0], list[int]()
    for sentence in sentences:
        words = re.findall(r"[a-z0-9]+", sentence.lower())
        columns += [zlib.crc32(word.encode()) % bins for word in words]
        columns.append(bins)
        starts.append(len(columns))
    counts = csr_array((np.ones(len(columns)), columns, starts), shape=(len(sentences), bins + 1))
    counts.sum_duplicates()
    return counts
