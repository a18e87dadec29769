"""An audit as a test, for pytest, unittest and whatever else calls functions.

    from dpzero_theory.audit.testing import private_loop

    @private_loop(records, Claim(...))
    def test_my_loop(records, seed, settings):
        return train(records, settings)          # the loop, as `audit.loop` describes it

The decorated function has no arguments. It audits the loop. If checks are violated it fails, and the message has what
was seen and how to mend it. It is skipped, with the reasons, if none is violated but one could not be made without
which the claim cannot be defended.
"""

from collections.abc import Callable, Mapping
from typing import Any
from unittest import SkipTest

from dpzero_theory.audit.claim import Claim, View
from dpzero_theory.audit.conformance import check
from dpzero_theory.audit.datasets import Records
from dpzero_theory.audit.loop import Train


def private_loop(
    records: Records, claim: Claim, view: View | None = None, settings: Mapping[str, Any] | None = None, **how: Any
) -> Callable[[Train], Callable[[], None]]:
    """Return a decorator that turns a loop into a test without arguments, which makes the audit when it is called.

    The loop is a function (records, seed, settings) -> the releases, an array of shape (T,) or (T, k) for T steps, or a
    mapping of outputs by name (see the module `audit.loop`). Its `settings` are a dictionary with all fields of the
    claim but `average`, such as "clip" (or the loop's name for it in `view.names`), and the argument `settings`. The
    test raises AssertionError if a check is violated, and `unittest.SkipTest` if none is but one could not be made
    without which the claim cannot be defended; otherwise it passes.

    Args:
        records: the claim's n records, an array with one record a row, or a list whose entries are numbers, arrays,
            tensors or tuples of these.
        claim: what the loop's author says of its privacy.
        view: what an attacker sees of a run; if None, `View()`, by which the seed is public.
        settings: further settings that the loop is given in addition to the claim's numbers, by its own names.
        how: further keyword arguments of `conformance.check`, such as runs, checks and variations.
    """

    def decorated(train: Train) -> Callable[[], None]:
        def test() -> None:
            report = check(train, records, claim, view, settings, **how)
            if report.violations:
                raise AssertionError(f"violated: {', '.join(report.violations)}\n\n{report.text()}")
            if missing := report.core_untested:
                said = "; ".join(f"{name}: {report[name].says}" for name in missing)
                raise SkipTest(f"core checks could not be made: {said}")

        for name in ("__name__", "__doc__", "__module__"):
            setattr(test, name, getattr(train, name, None) or getattr(test, name))
        return test

    return decorated
