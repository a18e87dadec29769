"""The sentences of SST-2 from a local file, and counts of hashed words."""

import re
import zlib
from pathlib import Path

import numpy as np
from scipy.sparse import csr_array

from dpzero_theory import check
from dpzero_theory.check import Array


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
