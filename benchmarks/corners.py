"""Random questions to the accountant, timed, beside the answers of an older accountant: python -m benchmarks corners

The settings are log-uniform: up to 10^7 steps, sample rates from 1e-7 to 1, delta from 0.1 to 1e-30, epsilon from 1e-3
to 200, over all samplings, relations and noise laws, of groups of 2 to 50 records and of histories of two kinds. They
were drawn once; the committed rows hold them, and a run asks them again. Each question is for epsilon, delta or the
noise. `old_lower` and `old_upper` are the ends by the accountant of commit 451aefee, which had other methods; they are
empty if it took more than 20 s, or was not asked. Rows with the status "not asked" have no answer of today's code yet.

The command also prints how many functions of the package the first `dz.epsilon` and `dz.calibrate` enter.
"""

import os
import resource
import sys
from argparse import Namespace
from collections.abc import Callable
from importlib import import_module
from types import FrameType
from typing import Any

import dpzero_theory as dz
from benchmarks.kit.asked import asked_again, remake
from benchmarks.kit.limits import TooLong, limited
from benchmarks.kit.rows import OK, read_rows
from benchmarks.kit.timing import timed
from dpzero_theory.privacy.accountant import delta_of_history, epsilon_of_history
from dpzero_theory.privacy.bracket import Bracket
from dpzero_theory.privacy.sampling import sampling_of
from dpzero_theory.privacy.step import step_of

FOLDER = "accounting_random"
SECONDS = 10.0
"""The processor seconds after which a question is given up."""
TOO_LONG = f"more than {SECONDS:g} s"
OF_SETTING = (
    *("setting", "kind", "question", "sampling", "sample_rate", "relation", "mechanism", "steps", "noise"),
    *("epsilon", "delta", "size", "other_sampling", "other_rate", "other_noise", "other_steps", "other_mechanism"),
    *("old_lower", "old_upper"),
)
FIELDS = ("lower", "upper", "cpu_seconds", "peak_mb")


def _ask(row: dict[str, Any]) -> Bracket:
    words = {"relation": row["relation"], "mechanism": row["mechanism"]}
    drawn = sampling_of(row["sampling"], row["sample_rate"])
    if row["question"] == "noise":
        target = {"epsilon": row["epsilon"], "delta": row["delta"], "group": row["size"]}
        return dz.calibrate(**target, steps=row["steps"], sampling=drawn, **words)
    history = [step_of(row["noise"], row["steps"], sampling=drawn, **words)]
    if row["other_sampling"]:
        other = words | {"mechanism": row["other_mechanism"]}
        second = sampling_of(row["other_sampling"], row["other_rate"])
        history.append(step_of(row["other_noise"], int(row["other_steps"]), sampling=second, **other))
    if row["question"] == "epsilon":
        return epsilon_of_history(history, row["delta"], group=row["size"])
    return delta_of_history(history, row["epsilon"], group=row["size"])


def answer(setting: dict[str, Any]) -> dict[str, Any]:
    """Ask the question of a setting, and return its row. `peak_mb` is the most memory that this process has had."""
    row = dict(setting)
    try:
        with limited(SECONDS, processor=True):
            known = timed(lambda: _ask(row))
    except TooLong:
        return row | {"cpu_seconds": SECONDS, "status": TOO_LONG}
    except Exception as error:  # the experiment counts exceptions of every type
        return row | {"status": f"{type(error).__name__}: {error}".splitlines()[0][:150]}
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    row |= {"lower": known.found.lower, "upper": known.found.upper, "peak_mb": round(peak)}
    return row | {"cpu_seconds": float(f"{known.cpu_seconds:.3g}"), "status": OK}


def entered(ask: Callable[[], object]) -> tuple[int, int]:
    """Return how many functions of the package a call enters, and in how many of its files."""
    seen: set[tuple[str, int]] = set()
    root = os.path.dirname(dz.__file__)

    def hook(frame: FrameType, event: str, _: object) -> None:
        code = frame.f_code
        if event == "call" and code.co_filename.startswith(root) and not code.co_name.startswith("<"):
            seen.add((code.co_filename, code.co_firstlineno))

    sys.setprofile(hook)
    try:
        ask()
    finally:
        sys.setprofile(None)
    return len(seen), len({name for name, _ in seen})


def entries() -> dict[str, tuple[int, int]]:
    """Return how many functions, in how many files, `dz.epsilon` and `dz.calibrate` enter with Poisson batches, in a
    process that has not called them before. Imports don't count."""
    import_module("dpzero_theory._front")

    def epsilon() -> Bracket:
        step = dz.Step(noise=12.5, sampling=dz.Poisson(1 / 16), relation="add-remove")
        return dz.epsilon(step * 10_000, delta=1e-5)

    def calibrate() -> Bracket:
        return dz.calibrate(epsilon=2.1, delta=1e-5, steps=9000, sampling=dz.Poisson(1 / 16), relation="add-remove")

    return {"epsilon": entered(epsilon), "calibrate": entered(calibrate)}


def _report(options: Namespace) -> None:
    """Print how many settings were refused or not answered in time, the quantiles of the time, and the functions."""
    rows = read_rows(options.out, failed=True)
    rows = rows[rows["status"] != "not asked"]
    good, late = rows[rows["status"] == OK], rows[rows["status"] == TOO_LONG]
    print(f"{len(rows)} settings, {len(good)} answered, {len(late)} not in {SECONDS:g} s of a processor")
    seconds = rows["cpu_seconds"].dropna()
    print(", ".join(f"{share:.0%} in {seconds.quantile(share):.3g} s" for share in (0.5, 0.9, 0.95, 0.99, 1.0)))
    print(f"peak memory of a process: {good['peak_mb'].max():.0f} MB")
    for name, (functions, files) in entries().items():
        print(f"dz.{name} enters {functions} functions in {files} files")


# a multiplier is known to about 1e-10, and delta moves up to a thousand times as much
REMAKES = {FOLDER: remake(OF_SETTING, answer, ("cpu_seconds", "peak_mb"), 1e-6)}
EXPERIMENT = asked_again("corners", FOLDER, __doc__, OF_SETTING, answer, FIELDS, _report)
