"""What an attacker gains, beside closed forms, quadrature and two other packages: python -m benchmarks risk

There are 200 random settings, drawn once and kept in the committed rows. For full batches there are closed forms, and a
single sampled step is integrated numerically; for both, the brackets of `privacy.risk` must hold the exact advantage
and true positive rate of the attacker. Compositions of Poisson batches are compared with dp-accounting, whose
privacy-loss distributions ("connect the dots", rounded upwards) give an upper bound on the same number, and with
riskcal if it is installed (the extra `audits`). Times are processor seconds of one answer each."""

import math
import time
import warnings
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
from scipy.integrate import quad
from scipy.optimize import brentq
from scipy.special import ndtr, ndtri
from scipy.stats import norm

from benchmarks.kit.asked import asked_again, remake
from benchmarks.kit.experiment import Cell
from benchmarks.kit.rows import RESULTS, read_rows
from benchmarks.kit.tables import markdown
from dpzero_theory.privacy.relation import Relation
from dpzero_theory.privacy.risk import advantage, true_positive_rate
from dpzero_theory.privacy.sampling import FullBatch, Poisson
from dpzero_theory.privacy.step import Step

OF_SETTING = ("setting", "kind", "noise_multiplier", "sample_rate", "steps", "false_positive_rate")
_INTERVAL = 1e-4
"""The spacing of the lattice to which dp-accounting and riskcal round privacy losses; it is the default of both."""
_ROUNDING = 1e-9
"""The relative rounding error that is allowed to closed forms and quadrature."""


def _timed(answer: Callable[[], Any]) -> tuple[Any, float]:
    start = time.process_time()
    found = answer()
    return found, float(f"{time.process_time() - start:.3g}")


def measure(cell: Cell) -> dict[str, Any]:
    """Ask this package for the attacker's advantage and true positive rate at a setting (`cell`), compare them with
    exact values or other packages, and return the row."""
    kind, a = cell["kind"], cell["false_positive_rate"]
    sampling = FullBatch() if kind == "full" else Poisson(cell["sample_rate"])
    relation = Relation.REPLACE_ONE if kind == "step" else Relation.ADD_REMOVE
    history = Step(cell["noise_multiplier"], sampling, relation) * cell["steps"]
    gain, gain_s = _timed(lambda: advantage(history))
    rate, rate_s = _timed(lambda: true_positive_rate(history, a))
    row = {
        "advantage_lower": gain.lower,
        "advantage_upper": gain.upper,
        "advantage_s": gain_s,
        "tpr_lower": rate.lower,
        "tpr_upper": rate.upper,
        "tpr_s": rate_s,
    }
    reference = {"full": _closed_form, "step": _quadrature, "poisson": _others}[kind]
    return cell | row | reference(cell)


def _closed_form(cell: Cell) -> dict[str, Any]:
    mu = math.sqrt(cell["steps"]) / cell["noise_multiplier"]
    return {"exact_advantage": 2 * ndtr(mu / 2) - 1, "exact_tpr": ndtr(ndtri(cell["false_positive_rate"]) + mu)}


def _quadrature(cell: Cell) -> dict[str, Any]:
    """Return the exact columns, by quadrature, for one sampled step in which a record is replaced: the attacker's
    advantage, which is the largest true positive rate minus false positive rate of any test, and the true positive rate
    of the best test at the false positive rate of the setting. The test is of (1-q) N(0, s^2) + q N(1, s^2) against
    (1-q) N(0, s^2) + q N(-1, s^2), with sample rate q and noise multiplier s. `cell` is the setting."""
    s, q = cell["noise_multiplier"], cell["sample_rate"]
    reach = 40 * s + 2

    def difference(x: float) -> float:
        return float(q * (norm.pdf(x, 1, s) - norm.pdf(x, -1, s)))

    def beyond(x: float, centre: int) -> float:
        return float((1 - q) * norm.sf(x, 0, s) + q * norm.sf(x, centre, s))

    distance = quad(difference, 0, reach, limit=400, epsabs=1e-15, epsrel=1e-11, points=[1])[0]
    cut = brentq(lambda x: beyond(x, -1) - cell["false_positive_rate"], -reach, reach, xtol=1e-14)
    return {"exact_advantage": distance, "exact_tpr": beyond(cut, 1)}


def _others(cell: Cell) -> dict[str, Any]:
    from dp_accounting.pld import privacy_loss_distribution as pld

    noise, q, steps, a = (cell[name] for name in ("noise_multiplier", "sample_rate", "steps", "false_positive_rate"))
    whole = pld.from_gaussian_mechanism(
        noise, sampling_prob=q, value_discretization_interval=_INTERVAL, use_connect_dots=True
    ).self_compose(steps)
    levels = np.linspace(0, 30, 6001)
    row = {
        "pld_advantage": whole.get_delta_for_epsilon(0.0),
        "pld_tpr": min(1.0, float(np.min(np.array(whole.get_delta_for_epsilon(levels)) + a * np.exp(levels)))),
    }
    if find_spec("riskcal") is None:
        return row
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from riskcal.calibration import dpsgd

        gain, gain_s = _timed(lambda: dpsgd.get_advantage_for_dpsgd(noise, q, steps, _INTERVAL))
        missed, missed_s = _timed(lambda: dpsgd.get_beta_for_dpsgd(noise, q, steps, a, _INTERVAL))
    row |= {"riskcal_advantage": gain, "riskcal_advantage_s": gain_s}
    return row | {"riskcal_tpr": 1 - float(missed), "riskcal_tpr_s": missed_s}


FIELDS = (
    *("advantage_lower", "advantage_upper", "advantage_s", "tpr_lower", "tpr_upper", "tpr_s"),
    *("exact_advantage", "exact_tpr", "pld_advantage", "pld_tpr"),
    *("riskcal_advantage", "riskcal_advantage_s", "riskcal_tpr", "riskcal_tpr_s"),
)


def table(folder: Path = RESULTS / "risk") -> str:
    """Return the table for docs/results/accounting.md, from the rows in `folder`: how many brackets contain the exact
    value, how wide they are, and what two other packages say."""
    rows = read_rows(folder)
    exact, others = rows[rows["kind"] != "poisson"], rows[rows["kind"] == "poisson"]
    lines = []
    for name, shown in (("advantage", "advantage"), ("tpr", "true positive rate")):
        value = exact[f"exact_{name}"]
        held = (exact[f"{name}_lower"] <= value * (1 + _ROUNDING)) & (value <= exact[f"{name}_upper"] * (1 + _ROUNDING))
        cells = [f"{held.sum()} of {len(exact)}", f"{(rows[f'{name}_upper'] / rows[f'{name}_lower'] - 1).max():.1g}"]
        above = others[f"pld_{name}"] / others[f"{name}_upper"] - 1
        beside = others[f"riskcal_{name}"] / others[f"{name}_lower"] - 1
        times = (others[f"riskcal_{name}_s"] / others[f"{name}_s"].clip(lower=1e-3)).median()
        cells += [f"{max(above.min(), 0):.1g} to {above.max():.1g}", f"{(beside < 0).sum()} of {len(others)}"]
        lines.append([shown, *cells, f"{min(beside.min(), 0):.2g}", f"{times:.2g}"])
    header = ["measure", "exact values inside", "widest bracket", "dp-accounting above the upper end"]
    header += ["riskcal below the lower end", "by at most", "riskcal's time over ours, median"]
    return markdown(header, lines)


# brackets, as wide as that at most
REMAKES = {"risk": remake(OF_SETTING, measure, ("advantage_s", "tpr_s", *FIELDS[-4:]), 1e-3)}
EXPERIMENT = asked_again(
    "risk", "risk", __doc__, OF_SETTING, measure, FIELDS, lambda options: print(table(options.out))
)
