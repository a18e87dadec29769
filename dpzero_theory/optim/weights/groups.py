"""Groups of parameters with step size and smoothing of their own.

A group is a pattern of parameters' names (as of `fnmatch`) with two numbers a >= 0 and s > 0. Where a run has step size
alpha and smoothing lambda, the group's parameters have the step size a alpha, and are evaluated at x +- s lambda u. The
first pattern that matches a name counts.

Let D be the diagonal matrix of the s. A record gives (f(x + lambda D u) - f(x - lambda D u))/(2 lambda), which is
about <D grad f(x), u>, and is clipped and noised as always. The estimate of a group's gradient is that number times u,
divided by s, so that its mean is the gradient whatever s is. In the coordinates D^-1 x this is the step without groups,
with the step sizes a alpha/s^2.
"""

from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase

from dpzero_theory import check

Group = tuple[str, float, float]
"""A triple (pattern, a, s), where a is the factor of the step size and s that of the smoothing."""
Given = Mapping[str, float | tuple[float, float]]
"""What users give, a mapping from patterns to a, or to (a, s)."""


def groups_of(given: Given | None) -> tuple[Group, ...]:
    """Return the groups that a user has given, as triples (pattern, a, s) in the order given; none for None.

    The pattern is one of parameters' names. Their step size is multiplied by a, and their smoothing by s. A value that
    is one number is a, and s is then 1. Raises ValueError for anything but a mapping whose values are a number or two
    numbers; `require` checks their range.
    """
    if given is None:
        return ()
    if not isinstance(given, Mapping):
        raise ValueError(f"groups must be a mapping from patterns of parameters' names; got {check.shown(given)}")
    return tuple((str(pattern), *_pair(pattern, value)) for pattern, value in given.items())


def _pair(pattern: str, value: object) -> tuple[float, float]:
    found = value if isinstance(value, tuple | list) else (value, 1.0)
    if len(found) != 2:
        raise ValueError(f"groups[{pattern!r}] must be a number or two, of step size and smoothing; got {value!r}")
    return found[0], found[1]


def require(groups: Sequence[Group]) -> None:
    """Raise ValueError for a group with numbers out of range: the factors must be a >= 0 and s > 0."""
    for pattern, step_size, smoothing in groups:
        check.real(f"groups[{pattern!r}], step size", step_size, at_least=0)
        check.real(f"groups[{pattern!r}], smoothing", smoothing, above=0)


def factors(groups: Sequence[Group], names: Sequence[str]) -> list[tuple[float, float]]:
    """Return the factors (a of the step size, s of the smoothing) of each parameter.

    They are those of the first group whose pattern matches the parameter's name, and (1, 1) where none does.

    Args:
        groups: the groups, in the order given.
        names: the parameters' names.

    Raises:
        ValueError: a group whose pattern matches no name.
    """
    for pattern, *_ in groups:
        if not any(fnmatchcase(name, pattern) for name in names):
            raise ValueError(f"groups must match trainable parameters' names; got {pattern!r}, which matches none")
    return [next(((a, s) for pattern, a, s in groups if fnmatchcase(name, pattern)), (1.0, 1.0)) for name in names]


def described(groups: Sequence[Group]) -> str:
    """Return the groups in words, as ", PATTERN: step size x A, smoothing x S" one after the other; "" if there are
    none."""
    return "".join(f", {pattern}: step size x {a:g}, smoothing x {s:g}" for pattern, a, s in groups)
