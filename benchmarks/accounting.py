"""Noise multipliers by this package and by other accountants, side by side in one run.

    python -m benchmarks accounting --preset compare    the paper's six settings, beside three accountants

A setting is a number of records, a mean batch size, a number of steps, and a target (epsilon, delta); batches are
Poisson, or full if the batch is all records, and the relation is add-remove. The time is the processor time of one
call, without imports; for this package it is the median of 51 calls. Every other accountant is asked in a process of
its own. One that is not installed, that fails, or that takes more than ten minutes has a row that says so. To have them
all: `pip install opake-accounting opacus '.[compare]'`.
"""

import importlib
import importlib.util
import math
import multiprocessing
import statistics
import sys
import time
import warnings
from argparse import Namespace
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from scipy.optimize import brentq

import dpzero_theory as dz
from benchmarks.kit.experiment import Cell, Experiment, flag
from benchmarks.kit.remake import Remake
from benchmarks.kit.rows import RESULTS
from benchmarks.kit.timing import timed

KEY = ("n", "batch", "steps", "epsilon", "delta", "accountant")
SETTINGS = {
    "compare": (
        (1024, 64, 10_000, 2.0, 1e-5),
        (1024, 64, 10_000, 6.0, 1e-5),
        (1000, 8, 20_000, 2.0, 1e-5),
        (1000, 8, 20_000, 6.0, 1e-5),
        (3072, 64, 10_000, 2.0, 1e-5),
        (10_000, 10_000, 5_120, 2.0, 1e-6),
    ),
}
FOLDERS = {"compare": "accounting"}
OURS = "this package"
REPEATS = 51
_LIMIT = 600.0
ABSENT = "not installed"


def _opacus(kind: str, *, epsilon: float, delta: float, sample_rate: float, steps: int, **_: Any) -> float:
    utils = importlib.import_module("opacus.accountants.utils")
    found = utils.get_noise_multiplier(
        target_epsilon=epsilon, target_delta=delta, sample_rate=sample_rate, steps=steps, accountant=kind
    )
    return float(found)


def _dp_accounting(
    kind: str, name: str, *, epsilon: float, delta: float, sample_rate: float, steps: int, **_: Any
) -> float:
    dp = importlib.import_module("dp_accounting")
    make = getattr(importlib.import_module(f"dp_accounting.{kind}"), name)

    def event(noise: float) -> Any:
        inner = dp.GaussianDpEvent(noise)
        drawn = inner if sample_rate == 1 else dp.PoissonSampledDpEvent(sample_rate, inner)
        return dp.SelfComposedDpEvent(drawn, steps)

    bracket = dp.LowerEndpointAndGuess(0.0, 2.0)
    return float(dp.calibrate_dp_mechanism(make, event, epsilon, delta, bracket, tol=1e-6))


def _opake_library() -> Any:
    """Return the compiled library of the package opake-accounting.

    It is loaded by its file, because the package around it (release 0.16.1) cannot be imported under Python 3.11.
    Raises ImportError if it is not installed.
    """
    name = "opake/api/accounting/core/opake_accounting*.so"
    for path in (found for folder in sys.path for found in sorted(Path(folder).glob(name))):
        spec = importlib.util.spec_from_file_location("opake_accounting", path)
        if spec is not None and spec.loader is not None:
            library = importlib.util.module_from_spec(spec)
            spec.loader.exec_module(library)
            return library
    raise ImportError("No module named 'opake'")


def _opake(*, epsilon: float, delta: float, sample_rate: float, steps: int, **_: Any) -> float:
    """Return the noise multiplier for the target (epsilon, delta), found by bisection, with the discretization that
    opake has by default."""
    library = _opake_library()
    fine = library.DiscretizationConfig()

    def excess(noise: float) -> float:
        one = library.poisson_pld(library.gaussian_pld(noise, fine), sample_rate)
        return math.log(max(one.self_compose(steps).epsilon_at(delta), 1e-300)) - math.log(epsilon)

    return float(brentq(excess, 0.5, 30.0, xtol=1e-5))


PEERS: dict[str, Callable[..., float]] = {
    "dp-accounting PLD": partial(_dp_accounting, "pld", "PLDAccountant"),
    "dp-accounting RDP": partial(_dp_accounting, "rdp", "RdpAccountant"),
    "Opacus RDP": partial(_opacus, "rdp"),
    "opake": _opake,
}


_IMPORTED = {
    "dp-accounting PLD": ("dp_accounting.pld",),
    "dp-accounting RDP": ("dp_accounting.rdp",),
    "Opacus RDP": ("opacus.accountants.utils",),
    "opake": (),
}


def _ask(name: str, question: dict[str, Any], answer: Any) -> None:
    warnings.simplefilter("ignore")
    row: dict[str, Any] = {}
    started, working = time.perf_counter(), time.process_time()
    try:
        for module in _IMPORTED[name]:
            importlib.import_module(module)
        started, working = time.perf_counter(), time.process_time()
        row["noise_multiplier"] = PEERS[name](**question)
        if not math.isfinite(row["noise_multiplier"]):
            row = {"status": "not finite"}
    except ImportError as error:
        row["status"] = f"{ABSENT}: {error}".splitlines()[0][:100]
    except Exception as error:  # if another package fails, its row says how
        row["status"] = f"{type(error).__name__}: {error}".splitlines()[0][:100]
    row |= {"seconds": time.perf_counter() - started, "cpu_seconds": time.process_time() - working}
    answer.send(row)


def _apart(name: str, question: dict[str, Any], limit: float = _LIMIT) -> dict[str, Any]:
    """Return the row of another accountant for a question. It is computed in a process of its own, which is ended if it
    takes more than `limit` seconds."""
    context = multiprocessing.get_context("spawn")
    receive, send = context.Pipe(duplex=False)
    process = context.Process(target=_ask, args=(name, question, send))
    process.start()
    send.close()
    try:
        return dict(receive.recv()) if receive.poll(limit) else {"status": f"more than {limit:g} s"}
    except EOFError:
        return {"status": "ended without an answer"}
    finally:
        process.kill()
        process.join()


def _ours(question: dict[str, Any], repeats: int) -> dict[str, Any]:
    rate = question["sample_rate"]
    target = {name: question[name] for name in ("epsilon", "delta", "steps")}
    drawn = dz.FullBatch() if rate == 1 else dz.Poisson(rate)
    asked = [timed(lambda: dz.calibrate(**target, sampling=drawn, relation="add-remove")) for _ in range(repeats)]
    return {
        "noise_multiplier": asked[0].found.upper,
        "noise_lower": asked[0].found.lower,
        "seconds": statistics.median(one.seconds for one in asked),
        "cpu_seconds": statistics.median(one.cpu_seconds for one in asked),
    }


def answer(at: Mapping[str, Any], repeats: int = REPEATS) -> dict[str, Any]:
    """Return the row of a setting and an accountant, which `at` names by the columns of `KEY`."""
    question = {name: at[name] for name in ("epsilon", "delta", "steps", "n")} | {"sample_rate": at["batch"] / at["n"]}
    found = _ours(question, repeats) if at["accountant"] == OURS else _apart(at["accountant"], question)
    return {name: at[name] for name in KEY} | found


def _again(row: Mapping[str, Any]) -> list[dict[str, Any]]:
    made = answer(row, repeats=1)
    if made.get("status", "").startswith(ABSENT):
        raise ModuleNotFoundError(f"{row['accountant']} is {made['status']}")
    return [made]


# a multiplier is known to about 1e-10
REMAKES = {name: Remake(KEY, _again, varies=("seconds", "cpu_seconds"), tolerance=1e-6) for name in FOLDERS.values()}


def _cells(options: Namespace) -> list[Cell]:
    return [
        dict(zip(KEY, (*setting, name), strict=True))
        for setting in SETTINGS[options.preset]
        for name in (OURS, *PEERS)
        if name not in options.skip
    ]


EXPERIMENT = Experiment(
    name="accounting",
    about=__doc__,
    flags=[
        flag("--preset", choices=SETTINGS, required=True),
        flag("--skip", action="append", default=[], choices=tuple(PEERS), help="leave one out"),
    ],
    folder=lambda options: RESULTS / FOLDERS[options.preset],
    key=KEY,
    fields=("noise_multiplier", "noise_lower", "seconds", "cpu_seconds"),
    cells=_cells,
    measure=lambda options, at: answer(at),
    told=lambda at, rows: str(rows[0]),
)
