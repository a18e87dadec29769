"""Names that a package offers from its modules, each imported when the name is first used."""

import sys
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from typing import Any


def lazily(package: str, names: Mapping[str, Sequence[str]]) -> Callable[[str], Any]:
    """Return the function `__getattr__` for the module of a package, which looks up its names in other modules.

    That function raises AttributeError for a name that the package does not offer, and what the import of the name's
    module raises.

    Args:
        package: the package's full name, `__name__` in its module.
        names: for each module, by its dotted name below the package, the names in it that the package offers, as in
            {"audit.claim": ["Claim", "View"]}. With the package's own child `audit` listed under its own name, as in
            {"audit": ["audit"]}, the module itself is offered.
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
