"""Data for the synthetic and logistic problems: the paper's Gaussian samples, and counts of hashed words."""

import re
import zlib

import numpy as np
from scipy.sparse import csr_array

from dpzero_theory import check
from dpzero_theory.check import Array


def gaussian_data(rng: np.random.Generator, n: int, d: int) -> Array:
    """Draw the paper's synthetic data: n samples in d dimensions, every coordinate from N(1, 1).

    They are drawn with `rng`. Returns an array of shape (n, d). Raises ValueError unless n >= 1 and d >= 1.
    """
    shape = (check.integer("n", n), check.integer("d", d))
    if not isinstance(rng, np.random.Generator):
        raise ValueError(f"rng must be a numpy.random.Generator; got {type(rng).__name__}")
    data = rng.standard_normal(shape)
    data += 1
    return data


def hashed_words(sentences: list[str], d: int) -> csr_array:
    """Count the words of each sentence in d - 1 hashed bins, and append a constant 1.

    Returns a sparse array of shape (number of sentences, d), d >= 2. A word's bin is crc32(word) mod (d - 1): the map
    is fixed before any data is seen, so unlike a vocabulary it reveals nothing about the data. Raises ValueError for
    another d.
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
