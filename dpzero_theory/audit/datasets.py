"""Makes neighbouring data sets, and extreme records with which an audit tests a loop's clipping.

Records are an array with one record a row, or a list whose entries are numbers, arrays, tensors, or tuples of these.
Records of another kind can be exchanged for one another, but cannot be scaled. Functions change nothing that they are
given, though what they return may share memory with it; `random_like` draws from the generator that it gets.
"""

from collections.abc import Callable, Container, Iterator
from itertools import count
from typing import Any

import numpy as np
from numpy.typing import NDArray

Records = Any  # The records of a data set: an array with one record a row, or a list
_SCALES = (-1.0, 1e3, -1e3, 1e6, -1e6)  # The factors by which `extremes` scales the first record
_EXTREMES_SEED = 2026  # The function `extremes` draws its random records with this seed


def replaced(records: Records, place: int, record: Any) -> Records:
    """Return a copy of the records in which the record at index `place` is `record`."""
    copy = records.copy() if isinstance(records, np.ndarray) else list(records)
    copy[place] = record
    return copy


def removed(records: Records, place: int) -> Records:
    """Return a copy of the records without the record at index `place` >= 0."""
    if isinstance(records, np.ndarray):
        return np.delete(records, place, axis=0)
    return [*records[:place], *records[place + 1 :]]


def filled(records: Records, record: Any) -> Records:
    """Return a data set of the size of `records` in which every record is `record`."""
    if isinstance(records, np.ndarray):
        return np.broadcast_to(np.asarray(record, dtype=records.dtype), records.shape).copy()
    return [record] * len(records)


def _as_array(record: Any) -> NDArray[Any]:
    return np.asarray(record.detach().cpu() if hasattr(record, "new_tensor") else record)


def _changed(record: Any, change: Callable[[NDArray[Any]], Any]) -> Any:
    # A record is a number, an array, a tensor, or a tuple or list of these; `change` gets floating-point ones as arrays
    if isinstance(record, tuple | list):
        return type(record)(_changed(part, change) for part in record)
    if hasattr(record, "new_tensor") and record.is_floating_point():
        return record.new_tensor(change(_as_array(record)))
    if isinstance(record, np.ndarray | np.floating) and record.dtype.kind == "f":
        found = np.asarray(change(np.asarray(record)), dtype=record.dtype)
        return found if isinstance(record, np.ndarray) else found[()]
    return float(change(np.asarray(record))) if isinstance(record, float) else record


def scaled(record: Any, factor: float) -> Any:
    """Return a record, or records, with the floating-point numbers times `factor`; integers stay as they are."""
    return _changed(record, lambda x: x * factor)


def mirrored(record: Any) -> Any:
    """Return the record with its floating-point numbers negated, except for what may be a label.

    Of a tuple of several parts only the first one is negated, all of it. Of a NumPy array of several numbers all are
    negated but the last one (row-major). All of any other record is negated: a number, a tensor, a list.
    """
    if isinstance(record, tuple) and len(record) > 1:
        return (scaled(record[0], -1.0), *record[1:])
    if isinstance(record, np.ndarray) and record.dtype.kind == "f" and record.size > 1:
        turned = -record
        turned.flat[-1] = record.flat[-1]
        return turned
    return scaled(record, -1.0)


def numbers(record: Any) -> list[float]:
    """Return the floating-point numbers of a record in order, without integers and all else.

    Those of an array or tensor are in row-major order; those of a tuple or list, which may be nested, follow part by
    part.
    """
    if isinstance(record, tuple | list):
        return [number for part in record for number in numbers(part)]
    array = _as_array(record)
    return [float(x) for x in array.ravel()] if array.dtype.kind == "f" else []


def extremes(records: Records) -> Iterator[Any]:
    """Yield ten records that are tried in place of others: the middle one of `records`, and nine forms of the first.

    These are the first record times -1, 1e3, -1e3, 1e6, -1e6 and 0; the first record times 1e3 with all but its label
    negated (`mirrored`); and two whose floating-point numbers are random, of standard deviation 1e3 (`random_like`). A
    loop must clip the large ones, in whichever direction they pull.
    """
    first = records[0]
    yield records[len(records) // 2]
    for factor in _SCALES:
        yield scaled(first, factor)
    yield mirrored(scaled(first, 1e3))
    draw = np.random.default_rng(_EXTREMES_SEED)
    for factor in (1e3, -1e3):
        yield random_like(first, draw, factor)
    yield scaled(first, 0.0)


def random_like(record: Any, draw: np.random.Generator, factor: float) -> Any:
    """Return `record` with random numbers in place of its floating-point numbers; integers stay as they are.

    The numbers are `factor` times standard normal numbers, which the generator `draw` draws.
    """
    return _changed(record, lambda x: factor * draw.normal(size=x.shape))


def poisoned(record: Any) -> Iterator[Any]:
    """Yield 9 forms of `record` from which a loop must still make a clipped contribution.

    In two all floating-point numbers are NaN, or infinity; in three the first alone is NaN, infinity or -infinity; in
    three the last alone; and in one each is the largest finite number of its type, with its own sign, whose square
    overflows. With one such number only the forms that change all are yielded, which are 3; without any, none.
    """
    # A loop may handle some forms only: one infinite number may make a loss infinite where several make it NaN, and the
    # largest finite numbers have infinite squares
    last = len(numbers(record)) - 1
    every, ends = range(last + 1), dict.fromkeys((0, last))
    if every:
        yield from (_with(record, every, value) for value in (np.nan, np.inf))
        for place in ends if last else ():
            yield from (_with(record, (place,), value) for value in (np.nan, np.inf, -np.inf))
        yield _with(record, every, None)


def _with(record: Any, places: Container[int], value: float | None) -> Any:
    place = count()  # Floating-point numbers are counted from 0, in the order of `numbers`

    def change(x: NDArray[Any]) -> NDArray[Any]:
        chosen = np.array([next(place) in places for _ in range(x.size)], dtype=bool).reshape(x.shape)
        # None stands for the largest finite number of the type, with the sign of the number that it replaces
        return np.where(chosen, np.copysign(np.finfo(x.dtype).max, x) if value is None else value, x)

    return _changed(record, change)
