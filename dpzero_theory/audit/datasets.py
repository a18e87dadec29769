"""Makes neighbouring data sets, and extreme records by which an audit tests how a loop clips.

Records are an array with one record in each row, or a list of numbers, arrays, tensors or tuples of these. No function
changes its arguments, but a result may share memory with them.
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
    """Return a copy of the records in which the record at index `place` is replaced by `record`."""
    copy = records.copy() if isinstance(records, np.ndarray) else list(records)
    copy[place] = record
    return copy


def removed(records: Records, place: int) -> Records:
    """Return a copy of the records without the record at index `place` >= 0."""
    if isinstance(records, np.ndarray):
        return np.delete(records, place, axis=0)
    return [*records[:place], *records[place + 1 :]]


def filled(records: Records, record: Any) -> Records:
    """Return a data set with as many records as `records`, all of them equal to `record`."""
    if isinstance(records, np.ndarray):
        return np.broadcast_to(np.asarray(record, dtype=records.dtype), records.shape).copy()
    return [record] * len(records)


def _as_array(record: Any) -> NDArray[Any]:
    return np.asarray(record.detach().cpu() if hasattr(record, "new_tensor") else record)


def _changed(record: Any, change: Callable[[NDArray[Any]], Any]) -> Any:
    # Returns a record with its floating-point numbers, arrays and tensors mapped by `change`, which gets NumPy arrays
    if isinstance(record, tuple | list):
        return type(record)(_changed(part, change) for part in record)
    if hasattr(record, "new_tensor") and record.is_floating_point():
        return record.new_tensor(change(_as_array(record)))
    if isinstance(record, np.ndarray | np.floating) and record.dtype.kind == "f":
        found = np.asarray(change(np.asarray(record)), dtype=record.dtype)
        return found if isinstance(record, np.ndarray) else found[()]
    return float(change(np.asarray(record))) if isinstance(record, float) else record


def scaled(record: Any, factor: float) -> Any:
    """Return a record, or a data set, with all floating-point numbers times `factor`. Integers are not changed."""
    return _changed(record, lambda x: x * factor)


def mirrored(record: Any) -> Any:
    """Return a record with its floating-point numbers negated, except for those that may be a label.

    For a tuple of two or more parts, only the first part is negated. For a NumPy array of two or more numbers, all but
    the last one (in row-major order) are negated. For any other record all numbers are negated.
    """
    if isinstance(record, tuple) and len(record) > 1:
        return (scaled(record[0], -1.0), *record[1:])
    if isinstance(record, np.ndarray) and record.dtype.kind == "f" and record.size > 1:
        turned = -record
        turned.flat[-1] = record.flat[-1]
        return turned
    return scaled(record, -1.0)


def numbers(record: Any) -> list[float]:
    """Return the floating-point numbers of a record as a list. Integers and other values are left out.

    Arrays and tensors are read in row-major order, and tuples and lists, which may be nested, part by part.
    """
    if isinstance(record, tuple | list):
        return [number for part in record for number in numbers(part)]
    array = _as_array(record)
    return [float(x) for x in array.ravel()] if array.dtype.kind == "f" else []


def extremes(records: Records) -> Iterator[Any]:
    """Yield ten records with which an audit replaces others: a middle one of `records`, and nine made from the first
    one.

    The nine are the first record times -1, 1e3, -1e3, 1e6 and -1e6; times 1e3 and negated except for its label
    (`mirrored`); two with normal random numbers of standard deviation 1e3 (`random_like`); and the first record times
    0.
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
    """Return `record` with each floating-point number replaced by `factor` times a standard normal number from `draw`.

    Integers are not changed. `draw` is advanced.
    """
    return _changed(record, lambda x: factor * draw.normal(size=x.shape))


def poisoned(record: Any) -> Iterator[Any]:
    """Yield 9 forms of `record` with NaN, infinity or huge numbers, whose contribution a loop must still clip.

    All floating-point numbers are replaced by NaN, or by infinity; the first one alone, or the last one alone, by NaN,
    infinity or -infinity; or all by the largest finite number of their type, with their signs. If the record has one
    floating-point number, only the 3 forms that replace all are yielded; if it has none, nothing is.
    """
    # A loop may handle some forms and not others: one infinite number may make a loss infinite, and several make it
    # NaN; squares of the largest finite numbers overflow
    last = len(numbers(record)) - 1
    every, ends = range(last + 1), dict.fromkeys((0, last))
    if every:
        yield from (_with(record, every, value) for value in (np.nan, np.inf))
        for place in ends if last else ():
            yield from (_with(record, (place,), value) for value in (np.nan, np.inf, -np.inf))
        yield _with(record, every, None)


def _with(record: Any, places: Container[int], value: float | None) -> Any:
    place = count()  # The index of a floating-point number in the record, in the order of `numbers`

    def change(x: NDArray[Any]) -> NDArray[Any]:
        chosen = np.array([next(place) in places for _ in range(x.size)], dtype=bool).reshape(x.shape)
        # `value` None means the largest finite number of the type, with the sign of the number that it replaces
        return np.where(chosen, np.copysign(np.finfo(x.dtype).max, x) if value is None else value, x)

    return _changed(record, change)
