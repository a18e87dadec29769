"""Lazy imports: names that a package offers from its modules, each imported when the name is first used."""

import sys
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from typing import Any


def lazily(package: str, names: Mapping[str, Sequence[str]]) -> Callable[[str], Any]:
    """Returns a function to assign to `__getattr__` in a package's `__init__.py`, which imports names on first use.

    The function raises AttributeError for a name that the package does not offer, and passes on errors of the import.

    Args:
        package: the package's full name, `__name__` in its `__init__.py`.
        names: for each module, by its dotted name below the package, the names in it that the package offers, as in
            {"audit.claim": ["Claim", "View"]}. A child module is itself offered if it is listed under its own name, as
            in {"audit": ["audit"]}.
    """
    homes = {name: module for module, offered in names.items() for name in offered}

    def look_up(name: str) -> Any:
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        module = import_module(f"{package}.{homes[name]}")
        value = module if name == homes[name] else getattr(module, name)
        setattr(sys.modules[package], name, value)  # The next use finds the name without this function
        return value

    return look_up
