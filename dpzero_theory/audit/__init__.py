"""Tests whether a private training loop does what its author claims. The package can be called:

    dpzero_theory.audit(train, records, claim, view=None, settings=None, *, variations=None, checks=(), runs=200,
                        false_alarm=1e-6)

returns an `AuditReport`; `help(dpzero_theory.audit.conformance.check)` describes the arguments. A `claim.Claim` says
what is claimed, and a `claim.View` what an attacker sees of a run. `bounds` has lower bounds on epsilon from an
attacker's guesses.
"""

import sys
from types import ModuleType
from typing import Any


class _CallableModule(ModuleType):
    # Python looks up __call__ in the class of an object, so the package's class is replaced by this one
    def __call__(self, *arguments: Any, **options: Any) -> Any:
        # Imported at the first call, so that importing this package loads little
        from dpzero_theory.audit.conformance import check

        return check(*arguments, **options)


sys.modules[__name__].__class__ = _CallableModule
