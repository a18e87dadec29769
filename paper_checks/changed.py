"""A check run again with one of its inputs changed, and everything as before afterwards."""

import ast
import inspect
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from types import ModuleType

from paper_checks import registry, rows, tables
from paper_checks.sites import (
    SWAPS,
    Change,
    check_node,
    constants_in,
    definitions_in,
    function_of,
    imports_of,
    operators_in,
    source_of,
    tree_of,
)


def verdict(id: str) -> str:
    """The verdict of a check as it is registered now: 'failed' if the library disagrees, 'crashed' for other errors."""
    try:
        return registry.registered()[id](False).verdict
    except registry.Disagreement:
        return "failed"
    except Exception:
        return "crashed"


@contextmanager
def changed(change: Change | None, id: str) -> Iterator[None]:
    """The check `id` registered as it is with the change, or loaded again without, and everything as before afterwards.

    Raises ValueError where the source no longer has what the change changes.
    """
    before, home = dict(registry._CHECKS), function_of(id).__module__
    modules = {name: module for name, module in sys.modules.items() if name.startswith("paper_checks.")}
    numbers = _numbers(change) if change and change.kind == "table" else []
    kept, edited = list(numbers), dict[str, ast.Module]()
    try:
        if change and change.kind == "table":
            numbers[change.index] = float(change.new)
        elif change and change.kind == "rows":
            setattr(rows, "read", _scaled(change.place, float(change.new)))  # noqa: B010  mypy knows no assignment to it
        elif change:
            place, _, name = change.place.partition(":")
            edited[place] = _edited(change, place, name)
        _load(home, edited)
        yield
    finally:
        numbers[:] = kept
        rows.read = _read
        registry._CHECKS.clear()
        registry._CHECKS.update(before)
        for own, module in modules.items():
            _install(own, module)


def _numbers(change: Change) -> list[float]:
    label, _, name = change.place.partition("/")
    content = tables.load()[label][name]
    numbers: list[float] = content["values"] if isinstance(content, dict) else content
    return numbers


def _edited(change: Change, module: str, name: str) -> ast.Module:
    tree = ast.parse(source_of(module))
    node = definitions_in(tree).get(name) or check_node(tree, function_of(name))
    if change.index < 0:
        operator = operators_in(node)[-1 - change.index]
        old = ast.unparse(operator)
        operator.op = SWAPS[type(operator.op)]()
    else:
        constant = list(constants_in(node))[change.index]
        assert isinstance(constant.value, int | float)
        old, number = f"{constant.value:g}", float(change.new)
        whole = isinstance(constant.value, int) and number.is_integer()
        constant.value = int(number) if whole else number
    if old != change.old:
        raise ValueError(f"{change.place} has {old} where the change expects {change.old}")
    return tree


def _install(name: str, module: ModuleType) -> None:
    sys.modules[name] = module
    package, _, own = name.rpartition(".")
    setattr(sys.modules[package], own, module)


def _load(home: str, edited: Mapping[str, ast.Module]) -> None:
    """Execute `home` again, and what it imports of the checks and formulas as far as that depends on `edited`."""
    registry._CHECKS.clear()

    @cache
    def fresh(name: str) -> bool:
        again = [fresh(other) for other in sorted(set(imports_of(name).values()))]
        if name != home and name not in edited and not any(again):
            return False
        module = ModuleType(name)
        module.__file__ = inspect.getsourcefile(sys.modules[name])
        _install(name, module)
        exec(compile(edited.get(name, tree_of(name)), str(module.__file__), "exec"), module.__dict__)
        return True

    fresh(home)


_read = rows.read


@cache
def _rows(folder: str) -> list[dict[str, str]]:
    return list(_read(folder))


def _scaled(place: str, factor: float) -> Callable[[str], Iterator[dict[str, str]]]:
    folder, _, pick = place.partition("/")
    column, _, value = pick.partition("=")
    measured = ("gradient", "loss", "dev", "test", "to_non_private", "peak_to", "ratio")

    def altered(name: str) -> Iterator[dict[str, str]]:
        for row in _rows(name):
            if name == folder and row[column] == value:
                row = {k: _times(v, factor) if k.startswith(measured) else v for k, v in row.items()}
            yield row

    return altered


def _times(text: str, factor: float) -> str:
    return f"{float(text) * factor:.17g}" if text and text != "none" else text
