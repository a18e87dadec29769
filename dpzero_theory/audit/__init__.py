"""Test whether a private training loop does what it claims: `dpzero_theory.audit(train, records, claim, view)`.

The package itself can be called, and works with any training loop. `conformance.check` is the function behind the call
and documents the arguments; a `claim.Claim` says what the loop's author claims of its privacy, and a `claim.View` what
an attacker sees of a run. `bounds` has lower bounds on epsilon from guesses.
"""

import sys
from types import ModuleType
from typing import Any


class _CallableModule(ModuleType):
    """The class of this package, which makes it callable: `audit(...)` is `conformance.check(...)`."""

    def __call__(self, *arguments: Any, **options: Any) -> Any:
        # Imported here, so that the package can be named without loading what an audit needs
        from dpzero_theory.audit.conformance import check

        return check(*arguments, **options)


sys.modules[__name__].__class__ = _CallableModule
