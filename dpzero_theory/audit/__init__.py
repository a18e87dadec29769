"""Test whether a private training loop does what it claims: `dpzero_theory.audit(train, records, claim, view)`.

The package itself can be called, with the arguments of `conformance.check`, which `help(audit.conformance.check)`
documents: (train, records, claim, view=None, settings=None, *, variations=None, checks=(), runs=200,
false_alarm=1e-6) -> AuditReport. A `claim.Claim` says what the loop's author claims of its privacy, and a `claim.View`
what an attacker sees of a run. `bounds` has lower bounds on epsilon from guesses.
"""

import sys
from types import ModuleType
from typing import Any


class _CallableModule(ModuleType):
    # Python looks for __call__ in the class of an object, so a package can be called only if its class is replaced
    def __call__(self, *arguments: Any, **options: Any) -> Any:
        # Imported here, so that the package can be named without loading what an audit needs
        from dpzero_theory.audit.conformance import check

        return check(*arguments, **options)


sys.modules[__name__].__class__ = _CallableModule
