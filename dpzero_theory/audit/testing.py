"""An audit as a test, for pytest, unittest and whatever else calls functions.

    from dpzero_theory.audit.testing import private_loop

    @private_loop(records, Claim(...), seconds=60)
    def test_my_loop(records, seed, settings):
        return train(records, settings)          # the loop, as `audit.loop` describes it

The decorated function has no arguments. It audits the loop, and fails with the violated checks, what was seen and how
to mend them. It is skipped, with the reasons, where nothing is violated but a required check could not be made.
"""

from collections.abc import Callable, Collection, Mapping
from typing import Any
from unittest import SkipTest

from dpzero_theory import check
from dpzero_theory.audit.claim import Claim, View
from dpzero_theory.audit.conformance import every
from dpzero_theory.audit.datasets import Records
from dpzero_theory.audit.loop import Train
from dpzero_theory.audit.spec import Spec


def private_loop(
    records: Records,
    claim: Claim,
    view: View | None = None,
    *,
    settings: Mapping[str, Any] | None = None,
    variations: Mapping[str, Mapping[str, Any]] | None = None,
    waivers: Mapping[str, str] | None = None,
    require: Collection[str] = ("core",),
    **how: Any,
) -> Callable[[Train], Callable[[], None]]:
    """Return a decorator that turns a loop into a test without arguments.

    Args:
        records, claim, view, settings, variations, waivers: see `spec.Spec`.
        require: names of checks that must have been made; "core" stands for the core checks, and "none" for none.
        how: further keyword arguments of `conformance.check`, such as seconds, runs, checks and false_alarm.

    Raises:
        ValueError: a waiver or a required name that is no check.
        AssertionError: by the test, where a check is violated and not waived.
        unittest.SkipTest: by the test, where a required check could not be made.
    """
    for name in require:
        check.choice("require", name, ["core", "none", *(one.name for one in every())])

    def decorated(train: Train) -> Callable[[], None]:
        spec = Spec(train, records, claim, view or View(), settings or {}, variations or {}, waivers or {})

        def test() -> None:
            report = spec.audit(**how)
            if report.unwaived:
                raise AssertionError(f"violated: {', '.join(report.unwaived)}\n\n{report.text()}")
            if missing := report.untested_of(require):
                said = "; ".join(f"{name}: {report[name].says}" for name in missing)
                raise SkipTest(f"required checks could not be made: {said}")

        for name in ("__name__", "__doc__", "__module__"):
            setattr(test, name, getattr(train, name, None) or getattr(test, name))
        return test

    return decorated
