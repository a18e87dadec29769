"""The public shape of a run's directions: how much longer they are along one weight than along another.

A plan with a shape has the directions u = c 2^e v, entry by entry, in place of the directions v of its law, in the
differences and in the steps. So E[u u^T] is the diagonal matrix B with the entries c^2 4^e, and not I. The exponents e
are integers: an entry of a vector of weights has one, and of a matrix each row and each column has one, whose sum is
that of an entry. So a direction a b^T of low rank stays one: its signs a and b are multiplied by powers of 2. Products
with powers of 2 are exact, so that shaped directions have the same bits on every device, as others have.

A shape is a text of JSON, which `losses.shaping.public_shape` makes and a plan holds:

    scale       c > 0
    exponents   for each trainable parameter its rows' exponents as letters, a to y for -12 to 12, and, if it has two
                axes or more, after a space its columns'
    records     digests of the public records from which it was measured, 32 hexadecimal digits each
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
"""Exponents are from -12 to 12, so that the powers of 2 and their products are numbers in half precision."""
_ZERO = ord("m")
Exponents = NDArray[np.int64]


class Shape:
    """The shape of a run's directions: numbers by which the coordinates of a random vector are multiplied.

    Args:
        text: the shape as a text, which `losses.shaping.public_shape` returns.
        direction: the name of the law of the random vectors, such as "rademacher".

    Attributes:
        scale: the number c > 0 by which all coordinates of a direction are multiplied.
        exponents: for each parameter, by name, the exponents e of its rows and of its columns: entry (i, j) of a
            direction is also multiplied by 2^(e_i + e_j). A vector has no columns, and its rows are its entries. Of
            three or more axes, all but the first are flattened into columns.
        records: the digests of the public records from which the shape was measured (`identity.inputs_digest`).
        smallest, largest: the smallest and the largest mean square (c 2^e)^2 of a coordinate, where e is e_i + e_j in a
            matrix. `theory.problem.Problem.shaped` takes them.

    Raises:
        ValueError: a text that `public_shape` has not made, or a law whose vectors are scaled to one length.
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
        """Raise ValueError unless the shape is of trainable parameters with these names and shapes."""
        given = {
            name: (shape[0], math.prod(shape[1:])) if len(shape) > 1 else (math.prod(shape), 0)
            for name, shape in zip(names, shapes, strict=True)
        }
        own = {name: (len(rows), len(columns)) for name, (rows, columns) in self.exponents.items()}
        if list(own.items()) != list(given.items()):
            raise ValueError(f"shape must be of the weights that are trained, {given!r:.80}; got one of {own!r:.80}")


def text_of(scale: float, exponents: Mapping[str, tuple[Exponents, Exponents]], records: Sequence[str]) -> str:
    """Return the text of a shape, from which `Shape` reads it. The arguments are the attributes of `Shape`."""
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
