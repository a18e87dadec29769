"""Makes an audit a test for pytest, unittest and other programs that call test functions:

    from dpzero_theory.audit.testing import private_loop

    @private_loop(records, Claim(...))
    def test_my_loop(records, seed, settings):
        return train(records, settings)

The decorated function is the loop to audit. The test fails if a check is violated, and says what was seen and how to
repair the loop. It is skipped if no check is violated, but a check that is needed to defend the claim could not be
made.
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
    """Return a decorator that turns a training loop into a test, a function without arguments that audits the loop.

    The loop is a function (records, seed, settings) -> an array of releases, or a mapping of outputs by name, as
    `conformance.check` describes it. The test raises AssertionError if a check is violated. If no check is violated,
    but a check that is needed to defend the claim could not be made, it raises `unittest.SkipTest`.

    Args:
        records: the claim's n records, as an array with one record in each row, or as a list of numbers, arrays,
            tensors or tuples of these.
        claim: what the loop's author claims about its privacy.
        view: what an attacker sees of a run; if None, `View()`, in which the loop's seed is public.
        settings: settings that the loop is given in addition to those of the claim, by its own names.
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
