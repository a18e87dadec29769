"""Validation of arguments. An error message is one line that names the argument, the rule and the value.

The functions raise `ValueError`, never `TypeError`, so a caller has one exception to catch. Values are never changed to
fit a rule. `PreconditionError`, a kind of ValueError, is raised if every argument is in its range, but together they
have no answer.
"""

import inspect
import math
from collections.abc import Callable, Collection, Mapping
from dataclasses import fields
from difflib import get_close_matches
from functools import wraps
from typing import Any, ParamSpec, TypeVar, get_args

import numpy as np
from numpy.typing import ArrayLike, NDArray

Array = NDArray[np.float64]
_P = ParamSpec("_P")
_T = TypeVar("_T")
_NUMBERS = (int, float, np.integer, np.floating)
_KINDS = {int: "an integer", float: "a number", str: "a text", bool: "true or false", dict: "an object", list: "a list"}
"""What error messages call the Python type of a JSON value."""


class PreconditionError(ValueError):
    """Raised if every argument is in its range, but there is no answer for them together.

    In most cases an assumption of a theorem is not met. Other cases are a target that no value of the searched
    parameter meets, or every value; data that do not allow a measurement (such as losses without a slope); and an
    optional package that is not installed.
    """


def _bounds(name: str, above: float, at_least: float, below: float, at_most: float) -> str:
    low = f"{_exact(above)} < " if at_least == -math.inf else f"{_exact(at_least)} <= "
    high = f" < {_exact(below)}" if at_most == math.inf else f" <= {_exact(at_most)}"
    return f"{name}{high}" if low == "-inf < " and high != " < inf" else f"{low}{name}{high}"


def _exact(number: float) -> str:
    short = f"{number:g}"  # six digits, which may not be exact
    return short if float(short) == number else repr(float(number))


def shown(value: object) -> str:
    """Returns the repr of `value` for an error message, cut to 60 characters."""
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."


def printable(text: str) -> str:
    """Returns `text` in one line of printable ASCII characters, with an escape sequence for every other character.

    Text from a file can then hold no line break, no control sequence of a terminal and no look-alike letter.
    """
    return "".join(c if " " <= c <= "~" else c.encode("unicode_escape").decode("ascii") for c in text)


def real(
    name: str,
    value: object,
    *,
    above: float = -math.inf,
    at_least: float = -math.inf,
    below: float = math.inf,
    at_most: float = math.inf,
) -> float:
    """Returns `value` as a finite float with above < value < below and at_least <= value <= at_most.

    Any other value raises ValueError: NaN, an infinity, a string, a boolean, a complex number, an integer too large for
    a float. `name` is the name of the argument in the error message.
    """
    if isinstance(value, _NUMBERS) and not isinstance(value, bool):
        try:
            x = float(value)
        except OverflowError:
            x = math.inf
        if math.isfinite(x) and above < x < below and at_least <= x <= at_most:
            return x
    rule = _bounds(name, above, at_least, below, at_most)
    raise ValueError(f"{name} must be a finite number with {rule}; got {shown(value)}")


def integer(name: str, value: Any, *, at_least: int = 1, at_most: int = 10**18) -> int:
    """Returns `value` as an int with at_least <= value <= at_most; integral floats such as 1e4 are accepted.

    Any other value, such as 2.5, a boolean or NaN, raises ValueError. The error message calls it `name`.
    """
    number = isinstance(value, _NUMBERS) and not isinstance(value, bool)
    if number and at_least <= value <= at_most and value == math.floor(value):
        return int(value)
    raise ValueError(f"{name} must be an integer with {at_least} <= {name} <= {at_most}; got {shown(value)}")


def choice(name: str, value: object, options: Collection[str]) -> str:
    """Returns `value` if it is one of the texts `options`; else raises ValueError.

    The error message names the argument, `name`, and lists the options.
    """
    if isinstance(value, str) and value in options:
        return value
    raise ValueError(f"{name} must be one of {', '.join(map(printable, options))}; got {shown(value)}")


_OTHER_WORDS = {
    **dict.fromkeys(("lr", "learning_rate", "alpha", "eta"), "step_size"),
    **dict.fromkeys(("max_grad_norm", "clip_norm", "l2_norm_clip", "clipping_threshold"), "clip"),
    **dict.fromkeys(("batch_size", "lot_size"), "expected_batch"),
    **dict.fromkeys(("epochs", "iterations", "num_train_epochs"), "steps"),
    **dict.fromkeys(("eps", "epsilon", "noise_multiplier", "sigma"), "target_epsilon"),
    **dict.fromkeys(("lam", "lambda_", "mu", "zo_eps"), "smoothing"),
    **dict.fromkeys(("neighbours", "neighbors", "neighbouring", "adjacency"), "relation"),
    **dict.fromkeys(("wd", "decay"), "weight_decay"),
    **dict.fromkeys(("collate_fn", "data_collator"), "collate"),
    **dict.fromkeys(("optimizer", "optim"), "update"),
}
"""Names that other libraries or papers use for a setting, each with this library's name, which the error message for an
unknown setting suggests."""


def settings(given: Mapping[str, object], known: Collection[str], required: Collection[str] = ()) -> None:
    """Raises ValueError if a user's settings have an unknown name, or lack a required one.

    Args:
        given: the settings, values by name.
        known: the allowed names. The error message for an unknown name suggests the nearest allowed name.
        required: the names that must be in `given`.
    """
    for name, value in given.items():
        if name not in known:
            rest = [word for word in known if str(name) in word.split("_")] if len(str(name)) > 1 else []
            other = [word for word in [_OTHER_WORDS.get(str(name).lower(), "")] if word in known]
            near = [*other, *rest, *get_close_matches(str(name), known, 1, 0.6)]
            meant = f"did you mean {near[0]}?" if near else f"settings are {', '.join(known)}"
            raise ValueError(f"unknown setting {name}; {meant} (got {name}={shown(value)})")
    if missing := [name for name in required if name not in given]:
        raise ValueError(f"{', '.join(missing)} must be given: there is no default")


def names_of(function: Callable[..., object]) -> tuple[list[str], list[str]]:
    """Returns two lists: the names of all arguments of `function`, and the names of those without a default.

    If the function takes keyword arguments of a TypedDict (`**options: Unpack[Options]`), its entries are included.
    """
    known, required = [], []
    for name, argument in inspect.signature(function).parameters.items():
        if argument.kind is argument.VAR_KEYWORD:
            (kind,) = get_args(argument.annotation)
            known += list(kind.__annotations__)
            required += [word for word in kind.__annotations__ if word in kind.__required_keys__]
        else:
            known.append(name)
            required += [name] if argument.default is argument.empty else []
    return known, required


def named(function: Callable[_P, _T]) -> Callable[_P, _T]:
    """Decorates `function` so that an unknown or missing argument name raises a ValueError with a helpful message.

    The message may suggest a name, such as "did you mean clip?" for `max_grad_norm`. Without this decorator Python
    raises TypeError. Too many positional arguments still raise TypeError.
    """
    known, required = names_of(function)

    @wraps(function)
    def call(*args: _P.args, **kwargs: _P.kwargs) -> _T:
        settings({**dict(zip(known, args, strict=False)), **kwargs}, known, required)
        return function(*args, **kwargs)

    return call


def entries(name: str, value: object, types: Mapping[str, type], optional: Collection[str] = ()) -> dict[str, Any]:
    """Returns `value` if it is a JSON object (a dict) with the right entries; else raises ValueError.

    Args:
        name: what the error message calls the object.
        value: the object.
        types: the type of each allowed entry, by the entry's name: int, float, str, bool, dict or list. An entry of
            type float may be an integer; otherwise types must be exact, and a bool is not an integer.
        optional: the names of entries that may be missing.
    """
    if not isinstance(value, dict):
        raise ValueError(f"{name} must be an object; got {shown(value)}")
    for key in dict.fromkeys((*types, *value)):
        if key not in types:
            raise ValueError(f"{name} must have no entry {shown(key)}")
        if key not in value and key not in optional:
            raise ValueError(f"{name} must have an entry {key}")
        kind = types[key]
        if key in value and type(value[key]) is not kind and not (kind is float and type(value[key]) is int):
            raise ValueError(f"{key} must be {_KINDS[kind]}; got {shown(value[key])}")
    return value


def types_of(kind: type) -> dict[str, type]:
    """Returns the type of each field of the dataclass `kind`, by name, for the argument `types` of `entries`.

    Fields whose type is not a class, such as `int | None`, are left out; the caller has to add a type for them.
    """
    return {field.name: field.type for field in fields(kind) if isinstance(field.type, type)}


def real_array(
    name: str,
    value: ArrayLike,
    *,
    above: float = -math.inf,
    at_least: float = -math.inf,
    below: float = math.inf,
    at_most: float = math.inf,
) -> Array:
    """Returns `value` as a float64 array of finite entries x with above < x < below and at_least <= x <= at_most.

    The array may have any shape, and may be empty. Any other value raises ValueError, with the argument's name `name`
    and the first entry that breaks the rule. Arrays of booleans, texts or objects are refused.
    """
    raw = np.asarray(value)
    wrong = value
    if raw.dtype.kind in "fiu":
        x = raw.astype(np.float64)
        good = np.isfinite(x) & (x > above) & (x < below) & (x >= at_least) & (x <= at_most)
        if good.all():
            return x
        wrong = x[~good].flat[0].item()
    raise ValueError(f"{name} must be finite with {_bounds(name, above, at_least, below, at_most)}; got {shown(wrong)}")


def precondition(holds: bool, statement: str) -> None:
    """Raises PreconditionError with the message `statement` unless `holds` is true."""
    if not holds:
        raise PreconditionError(statement)
