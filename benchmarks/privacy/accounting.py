"""The accountant beside others and beside independent evaluations; and the range of the paper's composition lemma.

    python -m benchmarks.accounting --preset compare    time and tightness of this package and of others, in one run
    python -m benchmarks.accounting --preset lemma      where the paper's composition lemma fails, and by how much
    python -m benchmarks.accounting --preset corners    1,000 random settings over the whole range, timed and checked
    python -m benchmarks.accounting --preset corners_more    525 more of every sampling, relation, groups, mixtures
    python -m benchmarks.accounting --preset rows       five settings of the field beside eight other accountants
    python -m benchmarks.accounting --preset rows_allocation    five of random allocation, beside three others
    python -m benchmarks.accounting --preset allocation random allocation: epsilon's bracket, its time, and sampling
    python -m benchmarks.accounting --preset allocation_k    random allocation of K of t steps, one epoch
    python -m benchmarks.accounting --preset ask        calibrate, then ask, at 2,000 random settings of all kinds
    python -m benchmarks.accounting --preset lattice    discrete noise of one release against direct sums

A setting is a training run with its privacy target: numbers of records and steps, sampling, epsilon and delta. The rows
go into results/accounting (compare), results/accounting_lemma and so on.
"""

import statistics
from argparse import Namespace
from collections.abc import Iterator
from functools import cache
from typing import Any

import numpy as np

from benchmarks.kit.experiment import Cell, Command, Experiment, flag, numbered, presets
from benchmarks.kit.remake import Remake, Row
from benchmarks.kit.timing import timed
from benchmarks.privacy import allocation, allocation_k, ask, corners, five, five_allocation
from dpzero_theory.cli import integer, output_folder
from dpzero_theory.privacy.accountant import epsilon_of_history
from dpzero_theory.privacy.bracket import Bracket
from dpzero_theory.privacy.calibration import calibrate_noise_multiplier
from dpzero_theory.privacy.comparison import ACCOUNTANTS, compare
from dpzero_theory.privacy.gaussian import (
    delta_from_gdp,
    epsilon_from_gdp,
    gdp_from_epsilon,
    paper_gdp,
    paper_lemma_limit,
)
from dpzero_theory.privacy.step import Release

SETTINGS = (
    # each setting is: number of records n, mean batch size, steps, epsilon, delta, sampling
    (1024, 64, 10_000, 2.0, 1e-5, "poisson"),
    (1024, 64, 10_000, 6.0, 1e-5, "poisson"),
    (1000, 8, 20_000, 2.0, 1e-5, "poisson"),
    (1000, 8, 20_000, 6.0, 1e-5, "poisson"),
    (3072, 64, 10_000, 2.0, 1e-5, "poisson"),
    (10_000, 10_000, 5_120, 2.0, 1e-6, "full"),
)
OURS = "this package"
REPEATS = 51


def _true_epsilon(noise: float, setting: tuple[int, int, int, float, float, str]) -> float:
    n, batch, steps, _, delta, sampling = setting
    unit = Release(noise, steps, sampling=sampling, relation="add-remove", sample_rate=batch / n)
    return epsilon_of_history([unit], delta).value


@cache
def _ours(setting: tuple[int, int, int, float, float, str]) -> dict[str, Any]:
    n, batch, steps, epsilon, delta, sampling = setting

    def ask() -> Bracket:
        return calibrate_noise_multiplier(
            target_epsilon=epsilon,
            target_delta=delta,
            steps=steps,
            sampling=sampling,
            relation="add-remove",
            sample_rate=batch / n,
        )

    asked = [timed(ask) for _ in range(REPEATS)]
    found = asked[0].found
    return {
        "noise_multiplier": found.value,
        "lower": found.lower,
        "upper": found.upper,
        "seconds": statistics.median(one.seconds for one in asked),
        "cpu_seconds": statistics.median(one.cpu_seconds for one in asked),
    }


_KEY = ("n", "batch", "steps", "epsilon", "delta", "accountant")


def _compared(options: Namespace, at: Cell) -> dict[str, Any]:
    """Return the row for a setting and an accountant, both named by the columns `at`. It has the accountant's noise
    multiplier, its seconds, and as `true_epsilon` the epsilon that this package certifies for that multiplier; beside
    this package, `speedup` is how many times longer the other accountant takes and `excess` the share by which its
    multiplier is above this package's. Times that are compared are processor seconds, which other work on the machine
    does not change."""
    setting = next(one for one in SETTINGS if one[:5] == tuple(at[name] for name in _KEY[:5]))
    exact = _ours(setting)
    if at["accountant"] == OURS:
        return exact | {"true_epsilon": _true_epsilon(exact["noise_multiplier"], setting)}
    n, batch, steps, epsilon, delta, _ = setting
    found = compare(at["accountant"], delta=delta, sample_rate=batch / n, steps=steps, epsilon=epsilon)
    row: dict[str, Any] = {"status": found.status, "seconds": found.seconds, "cpu_seconds": found.cpu_seconds}
    if found.value is not None:
        row |= {
            "noise_multiplier": found.value,
            "speedup": found.cpu_seconds / exact["cpu_seconds"],
            "excess": found.value / exact["upper"] - 1,
            "true_epsilon": _true_epsilon(found.value, setting),
        }
    return row


def _lemma(epsilon: float, delta: float) -> dict[str, Any]:
    gdp, exact = float(paper_gdp(epsilon, delta)), float(gdp_from_epsilon(epsilon, delta))
    return {
        "epsilon": epsilon,
        "delta": delta,
        "claimed_gdp": gdp,
        "exact_gdp": exact,
        "noise_ratio": exact / gdp,
        "true_epsilon": float(epsilon_from_gdp(gdp, delta)),
        "true_delta": float(delta_from_gdp(epsilon, gdp)),
        "holds": gdp <= exact,
        "limit": paper_lemma_limit(delta),
    }


_TIMES = ("seconds", "cpu_seconds", "speedup")
_OF_SETTING = ("setting", "steps", "sample_rate", "epsilon", "delta")


def _columns(row: Row, *names: str) -> Row:
    return {name: row[name] for name in (*_OF_SETTING, *names)}


_BRACKETS: dict[str, Any] = {
    "varies": (*_TIMES, "stated_width", "width"),
    "tolerance": 1e-7,
    "why": "a multiplier is known to about 1e-10, and delta moves up to a thousand times as much",
    "elsewhere": 1e-6,
}
REMAKES = {
    "accounting_lemma": Remake(
        ("epsilon", "delta"),
        lambda row: [_lemma(row["epsilon"], row["delta"])],
        tolerance=1e-12,
        why="roots, found another way since: last digits",
    ),
    "accounting_corners": Remake(
        ("setting",), lambda row: [corners.answer(_columns(row, "sampling", "relation"))], width="width", **_BRACKETS
    ),
    "accounting_corners_more": Remake(
        ("setting",),
        lambda row: [corners.more_answer({name: row[name] for name in corners.MORE_OF_SETTING})],
        width="width",
        **_BRACKETS,
    ),
    "accounting_allocation": Remake(
        ("setting",),
        lambda row: [allocation.answer({name: row[name] for name in allocation.OF_SETTING})],
        width="width",
        **_BRACKETS,
    ),
    "accounting_allocation_k": Remake(
        ("setting",),
        lambda row: [allocation_k.answer({name: row[name] for name in allocation_k.OF_SETTING})],
        **_BRACKETS,
    ),
    "accounting_ask": Remake(
        ("setting",),
        lambda row: [ask.answer(_columns(row, "sampling", "relation", "mechanism"))],
        varies=("seconds", "ask_seconds", "excess"),
        tolerance=1e-3,
        why="brackets of multipliers, as wide as that at most",
    ),
    "accounting_lattice": Remake(
        ("setting",), lambda row: [ask.lattice_answer({name: row[name] for name in ask.OF_LATTICE})], **_BRACKETS
    ),
    "accounting_rows": Remake(five.KEY, lambda row: [five.again(row)], **_BRACKETS),
    "accounting_rows_allocation": Remake(
        five_allocation.KEY, lambda row: [five.again(row, five_allocation.answer)], **_BRACKETS
    ),
}


def _grid(options: Namespace) -> Iterator[Cell]:
    for delta in 10.0 ** np.arange(-12, 0):
        for epsilon in [*np.geomspace(0.01, 1000, 26), 2.0, 6.0]:
            yield {"epsilon": float(epsilon), "delta": float(delta)}


EXPERIMENT = presets(
    "accounting",
    __doc__,
    [
        flag("--out", type=output_folder, help="folder of the results (default: benchmarks/results/...)"),
        flag("--skip", action="append", default=[], choices=tuple(five.PEERS), help="leave one out"),
        flag(
            "--count",
            type=integer(1, 10**6),
            help="settings of corners (1,000), corners_more (525), allocation (116), ask (2,000) or lattice (200)",
        ),
        flag("--workers", type=integer(1, 256), default=2, help="processes of these"),
    ],
    {
        "compare": Experiment(
            name="accounting",
            about=None,
            key=_KEY,
            fields=(
                *("noise_multiplier", "lower", "upper", "seconds", "cpu_seconds", "speedup", "excess", "true_epsilon"),
            ),
            cells=lambda options: (
                dict(zip(_KEY, (*setting[:5], name), strict=True))
                for setting in SETTINGS
                for name in (OURS, *ACCOUNTANTS)
                if name not in options.skip
            ),
            measure=_compared,
            told=lambda at, rows: str(rows[0]),
        ),
        "lemma": Experiment(
            name="accounting_lemma",
            about=None,
            key=("epsilon", "delta"),
            fields=("claimed_gdp", "exact_gdp", "noise_ratio", "true_epsilon", "true_delta", "holds", "limit"),
            cells=_grid,
            measure=lambda options, at: _lemma(**at),
        ),
        "corners": numbered(
            "accounting_corners",
            lambda options: corners.settings(options.count or corners.COUNT),
            corners.answer,
            corners.FIELDS,
            seeds=[corners.SEED],
            report=corners.report,
        ),
        "corners_more": numbered(
            "accounting_corners_more",
            lambda options: corners.more_settings(options.count or corners.MORE_COUNT),
            corners.more_answer,
            corners.MORE_FIELDS,
            seeds=[corners.MORE_SEED],
            report=corners.more_report,
        ),
        "rows": Command("accounting", None, five.run_rows),
        "rows_allocation": Command("accounting", None, five_allocation.run_rows),
        "allocation": numbered(
            "accounting_allocation",
            lambda options: allocation.settings(options.count or allocation.COUNT),
            allocation.answer,
            allocation.FIELDS,
            seeds=[allocation.SEED],
            report=allocation.report,
        ),
        "allocation_k": numbered(
            "accounting_allocation_k",
            lambda options: allocation_k.settings(),
            allocation_k.answer,
            allocation_k.FIELDS,
            report=allocation_k.report,
        ),
        "ask": numbered(
            "accounting_ask",
            lambda options: ask.settings(options.count or ask.COUNT),
            ask.answer,
            ask.FIELDS,
            seeds=[ask.SEED],
            report=ask.report,
        ),
        "lattice": numbered(
            "accounting_lattice",
            lambda options: ask.lattices(options.count or ask.LATTICES),
            ask.lattice_answer,
            ask.LATTICE_FIELDS,
            seeds=[ask.SEED + 1],
            report=ask.report_lattices,
        ),
    },
)
