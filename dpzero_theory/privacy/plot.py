"""Figures of the command line `python -m dpzero_theory.privacy`.

The figure of one answer has epsilon over the number of steps, and the trade-off curve. The figure of a sweep has the
answers over the variable.
"""

import math
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
from matplotlib.figure import Figure
from scipy.special import ndtr, ndtri

from dpzero_theory.check import Array
from dpzero_theory.privacy.accountant import epsilon_of_history
from dpzero_theory.privacy.conversions import rdp_of_history, trade_off
from dpzero_theory.privacy.gaussian import epsilon_from_gdp, paper_gdp
from dpzero_theory.privacy.solve import SOUGHT, Question
from dpzero_theory.privacy.step import Step, step_of

_ORDERS = np.concatenate([1 + np.geomspace(0.05, 1, 12), np.geomspace(2.3, 300, 40)])
_EXACT, _RENYI, _LEMMA = "#0072B2", "#D55E00", "#009E73"
"""The colours of certified numbers, of numbers by Renyi divergences, and of numbers by the paper's composition
lemma."""


def _renyi(history: list[Step]) -> Array:
    """Rows (order, Renyi divergence of the history), upper ends, up to the first order whose divergence cannot be
    computed."""
    points = []
    for order in _ORDERS:
        try:
            points.append((order, rdp_of_history(history, float(order)).upper))
        except ValueError:
            break
    return np.array(points)


def _renyi_epsilon(table: Array, delta: float) -> float:
    """The least epsilon at `delta` that upper bounds on Renyi divergences imply (Canonne, Kamath and Steinke 2020,
    Proposition 12).

    table: rows (order, Renyi divergence).
    """
    a, divergence = table.T
    epsilons = divergence + np.log1p(-1 / a) - (math.log(delta) + np.log(a)) / (a - 1)
    return max(float(np.min(epsilons)), 0.0)


def _renyi_delta(table: Array, epsilon: float) -> float:
    """The least delta at `epsilon` that upper bounds on Renyi divergences imply (Canonne, Kamath and Steinke 2020,
    Proposition 12).

    table: rows (order, Renyi divergence).
    """
    a, divergence = table.T
    log_deltas = (a - 1) * (divergence - epsilon + np.log1p(-1 / a)) - np.log(a)
    return min(math.exp(float(np.min(log_deltas))), 1.0)


def _renyi_trade_off(table: Array, levels: Array, top: float) -> Array:
    """A lower bound on type II errors that Renyi divergences imply, one for each type I error in `levels`.

    table: rows (order, Renyi divergence). top: the bound uses 80 values of epsilon from 0 to twice this.
    """
    best = np.zeros_like(levels)
    for epsilon in np.linspace(0, 2 * top, 80):
        spent = _renyi_delta(table, float(epsilon))
        best = np.maximum(
            best, np.maximum(1 - spent - np.exp(epsilon) * levels, np.exp(-epsilon) * (1 - spent - levels))
        )
    return best


def draw(path: Path, answer: dict[str, Any]) -> None:
    """Write the figure of one answer of the command line to `path` (png, svg or pdf), as a whole or not at all.

    answer: the answer as the command line prints it in JSON.
    """
    inputs = answer["inputs"]
    noise = inputs["noise_multiplier"] or answer["noise_multiplier"]
    delta, total = inputs["delta"], inputs["steps"]

    def history(steps: int) -> list[Step]:
        return [
            step_of(
                noise,
                steps,
                sampling=inputs["sampling"],
                relation=inputs["relation"],
                sample_rate=inputs["sample_rate"],
            )
        ]

    steps = np.unique(np.geomspace(max(total / 100, 1), 2 * total, 25).astype(int))
    exact = [epsilon_of_history(history(int(t)), delta).upper for t in steps]
    per_step = _renyi(history(1))
    renyi = [_renyi_epsilon(per_step * np.array([1, _times(history(int(t)))]), delta) for t in steps]
    with matplotlib.rc_context({"svg.hashsalt": "dpzero"}):
        figure = Figure(figsize=(9, 3.8), layout="constrained")
        left, right = figure.subplots(1, 2)
        left.loglog(steps, exact, color=_EXACT, label="exact (certified upper end)")
        left.loglog(steps, renyi, "--", color=_RENYI, label="Renyi DP")
        if inputs["sampling"] == "full":
            # The epsilon that the paper's lemma claims for this noise is the one whose prescribed mu is the run's mu.
            grid = np.geomspace(1e-4, 1e4, 4000)
            mus = paper_gdp(grid, delta)
            real = np.sqrt(steps) * answer["sensitivity"] / noise
            claimed = np.interp(real, mus, grid)
            left.loglog(steps, claimed, ":", color=_LEMMA, label="the paper's lemma")
        left.axvline(total, color="0.8", zorder=0)
        left.set_xlabel("steps")
        left.set_ylabel(f"epsilon at delta = {delta:g}")
        left.legend(frameon=False)
        levels = np.concatenate([np.geomspace(1e-6, 0.05, 60), np.linspace(0.05, 1, 60)])
        right.plot(levels, 1 - levels, color="0.8", zorder=0)
        right.plot(levels, trade_off(history(total), levels), color=_EXACT, label="exact (certified lower bound)")
        table = per_step * np.array([1, _times(history(total))])
        right.plot(levels, _renyi_trade_off(table, levels, exact[-1]), "--", color=_RENYI, label="from Renyi DP")
        if inputs["sampling"] == "full":
            epsilon = inputs["epsilon"] or answer["epsilon"]
            gdp = float(paper_gdp(epsilon, delta))
            really = float(epsilon_from_gdp(gdp, delta))
            label = f"the lemma's noise for epsilon {epsilon:.3g}\n(really {really:.3g})"
            right.plot(levels, ndtr(ndtri(1 - levels) - gdp), ":", color=_LEMMA, label=label)
        right.set_xlabel("type I error of the attack")
        right.set_ylabel("type II error")
        right.legend(frameon=False, loc="upper right")
        save(figure, path)


def _times(history: list[Step]) -> float:
    """The factor by which the Renyi divergences of a history of equal steps are larger than those of one of its
    steps."""
    (whole,) = history
    return whole.sampling.uses(whole.steps) / whole.sampling.uses(1)


LABELS = {
    "noise_multiplier": "noise multiplier (noise on the sum over the clip)",
    "epsilon": "epsilon",
    "delta": "delta",
    "steps": "steps",
    "batch": "records in a batch",
    "n": "records n",
}


def draw_sweep(path: Path, rows: Sequence[Mapping[str, Any]], variable: str, sought: str, question: Question) -> None:
    """Write the figure of a sweep to `path`, as a whole or not at all: the answers over the variable, their brackets as
    a band.

    rows: one for each value of the variable, as `question.sweep_row` makes them. variable, sought: the names of the
    number that is varied and of the one that is found. question: one question of the sweep, whose other numbers are the
    title.
    """
    x = np.array([row[variable] for row in rows], dtype=float)
    value, lower, upper = (np.array([row[key] for row in rows], dtype=float) for key in (sought, "lower", "upper"))
    given = [name for name in SOUGHT if name not in (variable, sought) and getattr(question, name) is not None]
    with matplotlib.rc_context({"svg.hashsalt": "dpzero"}):
        figure = Figure(figsize=(6, 4), layout="constrained")
        axes = figure.subplots()
        axes.fill_between(x, lower, upper, color=_EXACT, alpha=0.25, linewidth=0, label="certified bracket")
        axes.plot(x, value, color=_EXACT, marker="o", markersize=3, label="answer (its private side)")
        whole = np.isfinite(value)
        axes.set_xscale("log")
        if (value[whole] > 0).all():
            axes.set_yscale("log")
        axes.set(xlabel=LABELS[variable], ylabel=LABELS[sought])
        known = ", ".join(f"{name.replace('_', ' ')} {getattr(question, name):g}" for name in given)
        axes.set_title(f"{known}\n{question.sampling} batches, {question.relation}", fontsize=9)
        axes.legend(frameon=False)
        save(figure, path)


def save(figure: Figure, path: Path, dpi: int = 150) -> None:
    """Write the figure to `path`; the suffix of `path` is its format. If writing fails, a file that was there before is
    left as it was. dpi: dots per inch."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}{path.suffix}")
    try:
        figure.savefig(temporary, dpi=dpi)
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)
