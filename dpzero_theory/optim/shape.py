"""How much longer the random directions of a run are along one trained weight than along another: the run's *shape*.

A run without a shape moves along random vectors v with E[v v^T] = I. A run with a shape moves along vectors u whose
entry i is c 2^(e_i) v_i, so that E[u u^T] is the diagonal matrix of the numbers (c 2^(e_i))^2. The exponents e_i are
integers: each entry of a vector of weights has its own, and an entry of a matrix has the sum of its row's exponent and
its column's, so a matrix a b^T of rank 1 keeps it. Powers of 2 multiply exactly, with the same bits on every device.

A shape is public. `losses.shaping.public_shape` computes it from public records, as a text of JSON:

    scale       the number c > 0
    exponents   for each trainable parameter, by name, the exponents of its rows as letters, a to y for -12 to 12, and,
                if it has two axes or more, after a space those of its columns
    records     digests of the public records, 32 hexadecimal digits each
"""

import json
import math
import re
from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from dpzero_theory import check
from dpzero_theory.sphere import DIRECTIONS

LARGEST = 12
"""Exponents are integers from -LARGEST to LARGEST, so that their powers of 2 can be represented in half precision."""
_ZERO = ord("m")  # The letter for exponent 0
Exponents = NDArray[np.int64]


class Shape:
    """Factors for the coordinates of a run's random vectors, which make these longer along some weights.

    Args:
        text: the factors as a text, which `losses.shaping.public_shape` returned.
        direction: the name of the distribution of the random vectors, such as "rademacher".

    Attributes:
        scale: c > 0, a factor of all coordinates.
        exponents: for each trainable parameter, by name, two arrays of integers, the exponents e of its rows and of its
            columns. Coordinate (i, j) has the factor c 2^(e_i + e_j). A parameter with one axis has one row for each
            entry, and no columns, so that coordinate i has the factor c 2^(e_i). Of three or more axes all but the
            first are flattened into columns.
        records: digests of the public records from which the factors were computed (`identity.inputs_digest`).
        smallest, largest: the squares of the smallest and of the largest factor, which are the mean squares of
            coordinates. `theory.problem.Problem.shaped` takes them.

    Raises:
        ValueError: `public_shape` has not made the text, or the distribution scales all vectors to one length.
    """

    def __init__(self, text: str, direction: str) -> None:
        if DIRECTIONS[direction].normalised:
            raise ValueError(f"direction must be rademacher, gaussian or low-rank with a shape; got {direction}")
        try:
            found = check.entries("shape", json.loads(text), {"scale": float, "exponents": dict, "records": list})
            self.scale = check.real("scale", found["scale"], above=0)
            self.exponents = {str(name): _exponents(letters) for name, letters in found["exponents"].items()}
            self.records = frozenset(map(str, found["records"]))
            smallest, largest = (
                end(sum(int(end(part)) for part in pair if len(part)) for pair in self.exponents.values())
                for end in (min, max)
            )
        except (ValueError, TypeError, RecursionError):
            raise ValueError(f"shape must be what public_shape returned; got {text!r:.60}") from None
        self.smallest, self.largest = (math.ldexp(self.scale, e) ** 2 for e in (smallest, largest))

    def require(self, names: Sequence[str], shapes: Sequence[tuple[int, ...]]) -> None:
        """Raise ValueError unless the text was made for trainable parameters with these names and shapes, in order."""
        given = {
            name: (shape[0], math.prod(shape[1:])) if len(shape) > 1 else (math.prod(shape), 0)
            for name, shape in zip(names, shapes, strict=True)
        }
        own = {name: (len(rows), len(columns)) for name, (rows, columns) in self.exponents.items()}
        if list(own.items()) != list(given.items()):
            raise ValueError(f"shape must be of the weights that are trained, {given!r:.80}; got one of {own!r:.80}")


def text_of(scale: float, exponents: Mapping[str, tuple[Exponents, Exponents]], records: Sequence[str]) -> str:
    """Return the text, in JSON, from which `Shape` reads `scale`, the number c > 0; `exponents`, for each trainable
    parameter by name the integers of its rows and of its columns (an empty array for a parameter with one axis); and
    `records`, digests of the public records in hexadecimal digits."""
    letters = {
        name: " ".join("".join(chr(_ZERO + int(e)) for e in part) for part in pair if len(part))
        for name, pair in exponents.items()
    }
    return json.dumps({"scale": scale, "exponents": letters, "records": list(records)})


def _exponents(letters: str) -> tuple[Exponents, Exponents]:
    if not re.fullmatch("[a-y]+( [a-y]+)?", letters):
        raise ValueError
    rows, *columns = (np.frombuffer(part.encode(), np.uint8).astype(np.int64) - _ZERO for part in letters.split())
    return rows, columns[0] if columns else rows[:0]
