"""Does a training loop do what it claims? `check` audits anyone's (`conformance`), of a `Claim` and a `View` (`claim`).

`bounds` are empirical lower bounds on privacy. Modules are loaded when first used.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dpzero_theory.audit.claim import Claim, View
    from dpzero_theory.audit.conformance import check

__all__ = ["Claim", "View", "check"]

_HOMES = {"Claim": "claim", "View": "claim", "check": "conformance"}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
