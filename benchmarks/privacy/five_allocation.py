"""Five settings of random allocation: epsilon by this package and by the other accountants that have it, in one run.

Each record is in one uniformly random step of every epoch of t steps, add-remove. PLD_accounting and opake give upper
bounds. jax_privacy estimates delta from sampled privacy losses, here 100,000 of them, which is no bound; over several
epochs its scheme keeps a record in the same step, so that it is asked for one epoch only. An accountant that is not
installed (`five` says what to install), that fails, or that takes more than ten minutes has a row that says so.
"""

import importlib
import sys
from argparse import Namespace
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from scipy.optimize import brentq

from benchmarks.kit.rows import RESULTS, Results, read_rows
from benchmarks.kit.tables import markdown
from benchmarks.kit.timing import least_timed
from benchmarks.privacy.five import OURS, apart, opake_library
from dpzero_theory.cli import Parser
from dpzero_theory.privacy.accountant import epsilon_of_history
from dpzero_theory.privacy.step import Release

SETTINGS = (
    # each setting is: steps t of an epoch, number of epochs, noise multiplier, delta
    (100, 1, 1.0, 1e-5),
    (1000, 1, 0.8, 1e-6),
    (64, 10, 3.0, 1e-6),
    (500, 20, 1.5, 1e-5),
    (16, 625, 10.0, 1e-5),
)
KEY = ("epoch", "epochs", "noise_multiplier", "delta", "accountant")
FIELDS = ("epsilon", "epsilon_lower", "seconds", "cpu_seconds")
SAMPLES = 100_000
"""The number of privacy losses that are sampled for jax_privacy's estimate."""
_LIMIT = 600.0


def _pld_accounting(*, epoch: int, epochs: int, noise_multiplier: float, delta: float) -> float:
    package = importlib.import_module("PLD_accounting")
    upper, _ = package.gaussian_allocation_epsilon_range(
        delta=delta, sigma=noise_multiplier, num_steps=epoch, num_epochs=epochs
    )
    return float(upper)


def _opake(*, epoch: int, epochs: int, noise_multiplier: float, delta: float) -> float:
    library = opake_library()
    one = library.random_allocation_gaussian_pld(noise_multiplier, epoch, 1, library.DiscretizationConfig())
    return float(one.self_compose(epochs).epsilon_at(delta))


def _jax_privacy(*, epoch: int, epochs: int, noise_multiplier: float, delta: float) -> float:
    """Return an estimate of epsilon from losses of the direction in which the record is there."""
    if epochs > 1:
        raise NotImplementedError("another scheme over several epochs")
    batches = importlib.import_module("jax_privacy.batch_selection")
    sampling = importlib.import_module("jax_privacy.experimental.monte_carlo.sample_generation")
    known = importlib.import_module("jax_privacy.experimental.monte_carlo.delta_calculation")
    drawn = batches.BallsInBinsSampling(cycle_length=epoch, iterations=epoch)
    losses, _ = sampling.get_privacy_loss_sample(drawn, noise_multiplier, np.array([1.0]), seed=0, num_samples=SAMPLES)
    return float(brentq(lambda x: known.delta_from_epsilon_and_samples(x, losses) - delta, 0.0, 50.0, xtol=1e-6))


PEERS: dict[str, tuple[Callable[..., float], tuple[str, ...]]] = {
    "PLD_accounting": (_pld_accounting, ("PLD_accounting",)),
    "opake": (_opake, ()),
    "jax_privacy": (_jax_privacy, ("jax_privacy.experimental.monte_carlo.sample_generation",)),
}


def answer(setting: Mapping[str, Any], name: str) -> dict[str, Any]:
    """Return the row of the accountant `name` at a setting with the columns of `KEY`, without the last."""
    question = {column: setting[column] for column in KEY[:-1]}
    row = question | {"accountant": name}
    if name != OURS:
        asked, modules = PEERS[name]
        return row | apart(asked, modules, question, column="epsilon", limit=_LIMIT)
    epoch, steps = setting["epoch"], setting["epoch"] * setting["epochs"]
    release = Release(
        setting["noise_multiplier"], steps, sampling="random-allocation", relation="add-remove", sample_rate=1 / epoch
    )
    found, seconds, cpu_seconds = least_timed(lambda: epsilon_of_history([release], setting["delta"]))
    ends = {"epsilon": found.upper, "epsilon_lower": found.lower}
    return row | ends | {"seconds": seconds, "cpu_seconds": cpu_seconds, "status": "ok"}


def run_rows(parser: Parser, options: Namespace) -> None:
    """Make and save a row for each of the five settings and each accountant."""
    out = options.out or RESULTS / "accounting_rows_allocation"
    results = Results(out, key=KEY, fields=FIELDS, seeds=[0], device="cpu", dtype="float64")
    with parser.opened("--out", results) as opened:
        for setting in SETTINGS:
            base = dict(zip(KEY, setting, strict=False))
            for name in (OURS, *PEERS):
                if name not in options.skip and not opened.done(**base, accountant=name):
                    opened.add([row := answer(base, name)])
                    print(row, file=sys.stderr, flush=True)
    print(table(out))


def table(out: Path = RESULTS / "accounting_rows_allocation") -> str:
    """Return a table, for five settings of random allocation, of every accountant's epsilon and processor time."""
    rows = read_rows(out, failed=True)
    lines = []
    for setting, group in rows.groupby(list(KEY[:-1]), sort=False):
        found = {one["accountant"]: one for one in group.to_dict("records")}
        cells = []
        for name in (OURS, *PEERS):
            one = found.get(name)
            if one is None or one["status"] != "ok":
                cells.append("" if one is None else _said(str(one["status"])))
                continue
            low = f"{one['epsilon_lower']:.5g} to " if name == OURS else ""
            cells.append(f"{low}{one['epsilon']:.5g}, {one['cpu_seconds']:.2g} s")
        epoch, epochs, noise, delta = setting
        lines.append([f"{epoch:,.0f}/{epochs:,.0f}/{noise:g}/{delta:g}", *cells])
    return markdown(["t/epochs/multiplier/delta", OURS, *PEERS], lines)


def _said(status: str) -> str:
    """Return the words of a status for the table: what another package said, without the name of the error."""
    return status.partition(": ")[2] if status.startswith("NotImplementedError") else status
