"""The accountant tests that Opacus and dp-accounting ship with, run on the certified accountant in place of theirs.

    python -m benchmarks.peers [--out DIR]

Nothing of their tests is copied: the test classes of the installed packages run, with every accountant class that they
name replaced by ours. A test that calibrates by bisection hundreds of times is left out and has a row that says so. A
test that fails because it holds another accountant's number or limits is listed with that reason. The exit status is 1
where a failure has no known reason.
"""

import importlib
import logging
import re
import unittest
import warnings
from argparse import Namespace
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from importlib.metadata import version
from typing import Any

from benchmarks.kit.experiment import Experiment
from benchmarks.kit.rows import read_rows


@dataclass(frozen=True)
class Peer:
    """Another package's test module, and what is known about it.

    package and module are their names. install is a function that puts this package's accountant into the loaded
    module. reasons maps parts of the names of tests that are known to fail to the reason why they do. left_out has
    parts of the ids of tests that are not run.
    """

    package: str
    module: str
    install: Callable[[Any], None]
    reasons: dict[str, str]
    left_out: tuple[str, ...] = ()


def _into_opacus(tests: Any) -> None:
    from opacus.accountants import registry

    from dpzero_theory.privacy.interop.opacus import CertifiedAccountant

    for name in ("RDPAccountant", "PRVAccountant"):
        if hasattr(tests, name):
            setattr(tests, name, CertifiedAccountant)
    for name in ("rdp", "prv"):
        registry._ACCOUNTANTS[name] = CertifiedAccountant


def _into_dp_accounting(tests: Any) -> None:
    from dpzero_theory.privacy.interop.dp_accounting import CertifiedAccountant

    tests.pld_privacy_accountant.PLDAccountant = CertifiedAccountant


RDP = "holds the Renyi accountant's number: ours is lower, and certified"
PRV = "holds the PRV accountant's upper bound to its last digits: ours is lower, and certified"
MORE = "holds that replace-one is refused for this event: it is accounted here"
TRUNCATED = "holds the epsilon of its own bound for truncated batches: ours, for a cap of 2 records, is above it"
GRID = "holds its own delta to 1e-6 of it: ours is an upper end 3e-4 above it, and the bracket holds it"
OTHER = "an event that is not accounted here, and refused"
PEERS = (
    Peer(
        "dp-accounting",
        "dp_accounting.pld.pld_privacy_accountant_test",
        _into_dp_accounting,
        {
            "composition_errors_for_neighboring_relation0": OTHER,
            "composition_errors_for_neighboring_relation4": OTHER,
            "composition_errors": MORE,
            "laplace_not_supported_for_replace_one": MORE,
            "mixture_of_gaussians": GRID,
            "randomized_response": OTHER,
            "rr_composition": OTHER,
            "truncated_subsampled": TRUNCATED,
            "zero_noise_multiplier5": OTHER,
            "zero_probability4": OTHER,
            "zero_probability5": OTHER,
        },
    ),
    Peer(
        "opacus",
        "opacus.tests.accountants_test",
        _into_opacus,
        {"rdp": RDP, "load_state_dict": RDP, "prv": PRV},
        ("get_noise_multiplier_overshoot",),
    ),
    Peer("opacus", "opacus.tests.prv_accountant", _into_opacus, {"test_values": PRV}),
)


def tests_of(module: Any) -> Iterator[unittest.TestCase]:
    """Yield every test of a loaded test module."""
    waiting: list[Any] = [unittest.defaultTestLoader.loadTestsFromModule(module)]
    while waiting:
        test = waiting.pop()
        if isinstance(test, unittest.TestCase):
            yield test
        else:
            waiting += list(test)


def outcome(test: unittest.TestCase, peer: Peer) -> dict[str, str]:
    """Run a test and return its row: whether it passed, was skipped, was left out or failed. For a failure the row also
    has the message and the known reason, which is "" if none is known. `peer` is the package that the test comes
    from."""
    if any(part in test.id() for part in peer.left_out):
        return {"outcome": "left out", "said": "", "reason": "hundreds of calibrations by bisection: minutes"}
    result = unittest.TestResult()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        test.run(result)
    wrong = result.failures + result.errors
    if not wrong:
        return {"outcome": "skipped" if result.skipped else "passed", "said": "", "reason": ""}
    said = [line for line in wrong[0][1].strip().splitlines() if line and not line.startswith(" ")][-1]
    name = re.findall(r"test_\w+", test.id())[-1]
    reason = next((why for part, why in peer.reasons.items() if part in name), "")
    return {"outcome": "failed", "said": said[:200], "reason": reason}


@cache
def _tests() -> dict[tuple[str, str], tuple[unittest.TestCase, Peer]]:
    """Return every test of the two packages by package and name, with this package's accountant in place of theirs."""
    logging.disable(logging.WARNING)
    found = {}
    for peer in PEERS:
        tests = importlib.import_module(peer.module)
        peer.install(tests)
        for test in sorted(tests_of(tests), key=lambda test: test.id()):
            found[peer.package, test.id()] = test, peer
    return found


def _report(options: Namespace) -> int:
    rows = read_rows(options.out).fillna("")
    for package, found in rows.groupby("package"):
        counts = found["outcome"].value_counts()
        print(f"{package!s}: " + ", ".join(f"{count} {name!s}" for name, count in counts.items()))
        for reason, group in found[found["outcome"] == "failed"].groupby("reason"):
            print(f"  {len(group)}: {reason!s}" if reason else f"  no reason: {', '.join(group['test'])}")
    print(f"rows: {options.out}")
    return int(((rows["outcome"] == "failed") & (rows["reason"] == "")).any())


EXPERIMENT = Experiment(
    name="peers",
    about=__doc__,
    key=("package", "version", "test"),
    fields=("outcome", "said", "reason"),
    cells=lambda options: ({"package": of, "version": version(of), "test": test} for of, test in _tests()),
    begun=lambda at: str(at["test"]),
    measure=lambda options, at: outcome(*_tests()[at["package"], at["test"]]),
    report=_report,
)
