"""Five settings of the field: the noise multiplier by this package and by every other accountant, in one run.

Batches are Poisson, the relation is add-remove. The time is the processor time of one call, without imports; for this
package it is the median of calls made before each of the others and after the last. An accountant that is not
installed, that fails, or that takes more than ten minutes has a row that says so. To have them all: `pip install
PLD-accounting jax-privacy opake-accounting opacus '.[compare]'`, or the same in an environment of their own, whose
packages PYTHONPATH names. An accountant counts as accurate if its multiplier differs by less than 0.1% from the
multiplier that this package certifies.
"""

import importlib
import importlib.util
import math
import multiprocessing
import statistics
import sys
import time
from argparse import Namespace
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from scipy.optimize import brentq

from benchmarks.kit.rows import RESULTS, Results, read_rows
from benchmarks.kit.timing import Timed, timed
from dpzero_theory.cli import Parser
from dpzero_theory.privacy import comparison
from dpzero_theory.privacy.bracket import Bracket
from dpzero_theory.privacy.calibration import calibrate_noise_multiplier

SETTINGS = (
    # each setting is: number of records n, mean batch size, steps, epsilon, delta
    (60_000, 256, 14_000, 3.0, 1e-5),
    (50_000, 4096, 1_000, 8.0, 1e-5),
    (10**6, 10**4, 5_000, 1.0, 1e-8),
    (1_024, 64, 10_000, 2.0, 1e-5),
    (10**8, 10**5, 10_000, 0.5, 1e-10),
)
KEY = ("n", "batch", "steps", "epsilon", "delta", "accountant")
OURS = "this package"
NEAR = 1e-3
"""An accountant counts as accurate if its multiplier is within this relative distance of the one that this package
certifies."""
TURN = 5
"""How many times this package is timed before each other accountant, and again after the last one."""
_LIMIT = 600.0
ABSENT = "not installed"


def _opacus_prv(*, epsilon: float, delta: float, sample_rate: float, steps: int, **_: Any) -> float:
    utils = importlib.import_module("opacus.accountants.utils")
    found = utils.get_noise_multiplier(
        target_epsilon=epsilon, target_delta=delta, sample_rate=sample_rate, steps=steps, accountant="prv"
    )
    return float(found)


def _jax_privacy(*, epsilon: float, delta: float, sample_rate: float, steps: int, n: int, **_: Any) -> float:
    accounting = importlib.import_module("jax_privacy.accounting")
    accountant = accounting.DpsgdTrainingAccountant(dp_accountant_config=accounting.PldAccountantConfig())
    found = accounting.calibrate_noise_multiplier(
        target_epsilon=epsilon,
        accountant=accountant,
        batch_sizes=round(sample_rate * n),
        num_updates=steps,
        num_samples=n,
        target_delta=delta,
        tol=1e-4,
    )
    return float(found)


def _pld_accounting(*, epsilon: float, delta: float, sample_rate: float, steps: int, **_: Any) -> float:
    """Return the noise multiplier for the target (epsilon, delta), between 0.5 and 30, within 1e-5 of the root that
    bisection (Brent's) finds. The package PLD_accounting subsamples the privacy loss distribution of a Gaussian, and
    dp-accounting composes it. Other keywords are ignored. Raises ValueError if there is no root in that range."""
    package = importlib.import_module("PLD_accounting")
    losses = importlib.import_module("dp_accounting.pld.privacy_loss_distribution")

    def excess(noise: float) -> float:
        base = losses.from_gaussian_mechanism(noise, value_discretization_interval=1e-4)
        subsampled = package.subsample_pld(pld=base, sampling_probability=sample_rate)
        composed = subsampled.self_compose(steps)
        return math.log(max(composed.get_delta_for_epsilon(epsilon), 1e-300)) - math.log(delta)

    return float(brentq(excess, 0.5, 30.0, xtol=1e-5))


def opake_library() -> Any:
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
    library = opake_library()
    fine = library.DiscretizationConfig()

    def excess(noise: float) -> float:
        one = library.poisson_pld(library.gaussian_pld(noise, fine), sample_rate)
        return math.log(max(one.self_compose(steps).epsilon_at(delta), 1e-300)) - math.log(epsilon)

    return float(brentq(excess, 0.5, 30.0, xtol=1e-5))


def _known(name: str, *, n: int, **question: Any) -> float:
    return comparison.ACCOUNTANTS[name](noise=None, **question)


PEERS: dict[str, Callable[..., float]] = {name: partial(_known, name) for name in comparison.ACCOUNTANTS} | {
    "Opacus PRV": _opacus_prv,
    "PLD_accounting": _pld_accounting,
    "jax_privacy": _jax_privacy,
    "opake": _opake,
}


_IMPORTED = {
    "dp-accounting PLD": ("dp_accounting.pld",),
    "dp-accounting RDP": ("dp_accounting.rdp",),
    "Opacus RDP": ("opacus.accountants.utils",),
    "Opacus PRV": ("opacus.accountants.utils",),
    "prv-accountant": ("prv_accountant",),
    "PLD_accounting": ("PLD_accounting", "dp_accounting.pld"),
    "jax_privacy": ("jax_privacy.accounting",),
    "opake": (),
}


def _ask(
    asked: Callable[..., float], modules: Sequence[str], column: str, question: dict[str, Any], answer: Any
) -> None:
    import warnings

    warnings.simplefilter("ignore")
    row: dict[str, Any] = {}
    started, working = time.perf_counter(), time.process_time()
    try:
        for module in modules:
            importlib.import_module(module)
        started, working = time.perf_counter(), time.process_time()
        row[column] = asked(**question)
        if not math.isfinite(row[column]):
            row = {"status": "not finite"}
    except ImportError as error:
        row["status"] = f"{ABSENT}: {error}".splitlines()[0][:100]
    except Exception as error:  # if another package fails, its row says how
        row["status"] = f"{type(error).__name__}: {error}".splitlines()[0][:100]
    row |= {"seconds": time.perf_counter() - started, "cpu_seconds": time.process_time() - working}
    answer.send(row)


def apart(
    asked: Callable[..., float],
    modules: Sequence[str],
    question: dict[str, Any],
    *,
    column: str = "noise_multiplier",
    limit: float = _LIMIT,
) -> dict[str, Any]:
    """Return the row of another accountant for a question. It is computed in a process of its own, which is ended if it
    takes more than `limit` seconds.

    asked: the function that asks the accountant, with the entries of `question` as arguments. modules: what it imports,
    before the time is taken. column: the name of the answer in the row.
    """
    context = multiprocessing.get_context("spawn")
    receive, send = context.Pipe(duplex=False)
    process = context.Process(target=_ask, args=(asked, modules, column, question, send))
    process.start()
    send.close()
    try:
        return dict(receive.recv()) if receive.poll(limit) else {"status": f"more than {limit:g} s"}
    except EOFError:
        return {"status": "ended without an answer"}
    finally:
        process.kill()
        process.join()


def _ours(question: dict[str, Any]) -> list[Timed[Bracket]]:
    def ask() -> Bracket:
        return calibrate_noise_multiplier(
            target_epsilon=question["epsilon"],
            target_delta=question["delta"],
            steps=question["steps"],
            sampling="poisson",
            relation="add-remove",
            sample_rate=question["sample_rate"],
        )

    return [timed(ask) for _ in range(TURN)]


def _row(asked: Sequence[Timed[Bracket]]) -> dict[str, Any]:
    return {
        "noise_multiplier": asked[0].found.upper,
        "noise_lower": asked[0].found.lower,
        "seconds": statistics.median(one.seconds for one in asked),
        "cpu_seconds": statistics.median(one.cpu_seconds for one in asked),
    }


def _question(setting: Mapping[str, Any]) -> dict[str, Any]:
    n, batch, steps, epsilon, delta = (setting[column] for column in KEY[:-1])
    return {"epsilon": epsilon, "delta": delta, "sample_rate": batch / n, "steps": steps, "n": n}


def answer(setting: Mapping[str, Any], name: str) -> dict[str, Any]:
    """Return the row of the accountant `name` at a setting, a dictionary with the columns n, batch, steps, epsilon and
    delta."""
    question = _question(setting)
    found = _row(_ours(question)) if name == OURS else apart(PEERS[name], _IMPORTED[name], question)
    return {column: setting[column] for column in KEY[:-1]} | {"accountant": name} | found


def again(
    row: Mapping[str, Any], answer: Callable[[Mapping[str, Any], str], dict[str, Any]] = answer
) -> dict[str, Any]:
    """Make a committed row again by `answer`, a function of a setting and the name of an accountant. Raises
    ModuleNotFoundError if its accountant is not installed."""
    made = answer(row, row["accountant"])
    if made.get("status", "").startswith(ABSENT):
        raise ModuleNotFoundError(f"{row['accountant']} is {made['status']}")
    return made


def run_rows(parser: Parser, options: Namespace) -> None:
    """Make and save a row for each of the five settings and each accountant, and print the verdicts. This package is
    timed before each of the others."""
    fields = ("noise_multiplier", "noise_lower", "seconds", "cpu_seconds")
    out, skip = options.out or RESULTS / "accounting_rows", options.skip
    with parser.opened(
        "--out", Results(out, key=KEY, fields=fields, seeds=[], device="cpu", dtype="float64")
    ) as results:
        for setting in SETTINGS:
            base = dict(zip(KEY, setting, strict=False))
            asked: list[Timed[Bracket]] = []
            for name in PEERS:
                if name not in skip and not results.done(**base, accountant=name):
                    asked += _ours(_question(base))
                    _add(results, answer(base, name))
            if OURS not in skip and not results.done(**base, accountant=OURS):
                _add(results, base | {"accountant": OURS} | _row(asked + _ours(_question(base))))
    report(out)


def _add(results: Results, row: dict[str, Any]) -> None:
    results.add([row])
    print(row, file=sys.stderr, flush=True)


def report(out: Path) -> None:
    """Print a comparison for each of the five settings, from the rows in the folder `out`: this package's noise
    multiplier over the least of the other packages', and the time of the fastest of those that come within 0.1% of
    this package's multiplier over its time."""
    rows = read_rows(out)
    for setting, group in rows.groupby(["n", "batch", "steps", "epsilon", "delta"], sort=False):
        ours = group[group["accountant"] == OURS].iloc[0]
        others = group[group["accountant"] != OURS]
        accurate = others[(others["noise_multiplier"] / ours["noise_multiplier"] - 1).abs() < NEAR]
        speed = accurate["cpu_seconds"].min() / ours["cpu_seconds"]
        least = others["noise_multiplier"].min()
        print(
            f"{'/'.join(f'{v:g}' for v in setting)}: {ours['noise_multiplier']:.7g} in {ours['cpu_seconds']:.3f} s;"
            f" least of the others {least:.7g}; {speed:.0f} times faster than the fastest within 0.1% of the truth"
        )
