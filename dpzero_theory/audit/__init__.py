"""Test whether a private training loop does what it claims: `dpzero_theory.audit(train, records, claim, view)`.

The package itself can be called, and works with any training loop. `conformance.check` is the function behind the call
and documents the arguments; `claim.Claim` says what the loop claims, and `claim.View` what an attacker sees. `bounds`
has empirical lower bounds on privacy. Modules are loaded when they are first used.
"""

import sys
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dpzero_theory.audit.claim import Claim, View
    from dpzero_theory.audit.conformance import check

__all__ = ["Claim", "View", "check"]

_HOMES = {
    "Claim": "claim",
    "View": "claim",
    "check": "conformance",
}  # For each name that the package offers, the module in the package that defines it


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)


class _CallableModule(ModuleType):
    """The class of this package, which makes it callable: `audit(...)` is `conformance.check(...)`."""

    def __call__(self, *arguments: Any, **options: Any) -> Any:
        return self.check(*arguments, **options)


sys.modules[__name__].__class__ = _CallableModule
