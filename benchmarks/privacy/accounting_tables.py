"""The tables of docs/results/accounting.md, made from the committed rows."""

import math

import pandas as pd

from benchmarks.kit.rows import RESULTS, read_rows
from benchmarks.kit.tables import markdown
from benchmarks.privacy import adaptive, allocation, allocation_k, ask, five, five_allocation, risk
from benchmarks.privacy import corners as corners_
from benchmarks.training import private_search


def _seconds(seconds: float) -> str:
    return f"{seconds * 1e3:.3g} ms" if seconds < 1 else f"{seconds:.3g} s"


def five_settings() -> str:
    """Return a table, for five settings from the literature, of every accountant's noise multiplier and processor time,
    and of how many times faster this package is."""
    rows = read_rows(RESULTS / "accounting_rows")
    lines, below, ratios = [], 0, []
    for setting, group in rows.groupby(list(five.KEY[:-1]), sort=False):
        found = {one["accountant"]: (one["noise_multiplier"], one["cpu_seconds"]) for one in group.to_dict("records")}
        ours, least = found[five.OURS], float(group["noise_lower"].max())
        others = [answer for name, answer in found.items() if name != five.OURS]
        ratios.append(min(seconds / ours[1] for noise, seconds in others if abs(noise / ours[0] - 1) < five.NEAR))
        below += sum(noise < least for noise, _ in others)
        n, batch, steps, epsilon, delta = setting
        cells = [
            f"{found[name][0]:.6f}, {_seconds(found[name][1])}" if name in found else ""
            for name in (five.OURS, *five.PEERS)
        ]
        setting_shown = f"{n:,.0f}/{batch:,.0f}/{steps:,.0f}/{epsilon:g}/{delta:g}"
        lines.append([setting_shown, *cells, f"{math.floor(ratios[-1])}"])
    header = ["n/B/T/epsilon/delta", five.OURS, *five.PEERS, "times faster"]
    return (
        markdown(header, lines)
        + f"\n\nTimes faster than the fastest that is within {100 * five.NEAR:g}% of the truth: at least"
        + f" {math.floor(min(ratios))}. {below} of {len(rows) - len(lines)} answers of others are below the truth's"
        + " lower end."
    )


def corners() -> str:
    """Return a table of the random settings of both presets by sampling and relation: how many there are, the share of
    answers within a second, the longest time, and how narrow the accountant's brackets are."""
    first = read_rows(RESULTS / "accounting_corners", failed=True)
    second = read_rows(RESULTS / "accounting_corners_more", failed=True)
    rows = pd.concat([first.assign(kind=first["sampling"], too_long=False), second], ignore_index=True)
    good = rows[rows["status"] == "ok"]
    groups = [(f"{key[0]}, {key[1]}", group) for key, group in good.groupby(["kind", "relation"])]
    words = good["sampling"] + " " + good["other_sampling"].fillna("")
    rest = good[~words.str.contains("random-allocation")]
    lines = []
    for name, group in (*groups, ("all without random allocation", rest), ("all", good)):
        seconds, width = group["cpu_seconds"], group["width"].fillna(math.inf)
        shares = [f"{100 * share.mean():.1f}%" for share in (seconds <= 1, seconds <= 5, width <= 1e-3)]
        cells = [f"{len(group)}", *shares[:2], f"{seconds.max():.2g} s", shares[2], f"{width.median():.1g}"]
        lines.append([name, *cells])
    header = ["sampling and relation", "settings", "within 1 s", "within 5 s", "slowest", "known to 1e-3"]
    checked, met = good[good["contained"].notna()], good[good["meets_target"].notna()]
    refused = rows["status"].str.startswith("ValueError: size must be at most")
    late = int(good["too_long"].astype(bool).sum())
    return (
        markdown([*header, "width, median"], lines)
        + f"\n\n{len(rows) - len(good) - int(refused.sum())} exceptions; {int(refused.sum())} settings refused (a group"
        + f" larger than the data); {late} answers not within {corners_.MORE_SECONDS:g} s of a processor;"
        + f" {int(checked['contained'].sum())} of {len(checked)} brackets hold"
        + f" an independent value, {int(met['meets_target'].sum())} of {len(met)} multipliers meet their target when"
        + " asked again."
    )


def asked() -> str:
    """Return a table of the benchmark's preset `ask`, a row for each way of sampling.

    It says at how many settings the accountant, asked for noise that was calibrated for a target (epsilon, delta),
    gives more than that target, raises an exception or takes too long, and how much below the target it stays. The text
    below the table says how often delta for discrete noise, summed over its outputs directly, is in the accountant's
    bracket."""
    rows = read_rows(RESULTS / "accounting_ask")
    kinds = rows.assign(kind=rows["sampling"].str.partition(":")[0]).groupby("kind")
    lines = []
    for name, group in (*((str(kind), group) for kind, group in kinds), ("all", rows)):
        told = group[group["excess"].notna()]
        cells = [f"{len(group)}", f"{int((group['exception'] != 'none').sum())}", f"{int(group['too_long'].sum())}"]
        cells.append(f"{int((told['excess'] > 0).sum())}")
        medians = [f"{-told['excess'].median():.1g}", _seconds(told["seconds"].median())] if len(told) else ["", ""]
        lines.append([name, *cells, *medians])
    header = ["sampling", "settings", "exceptions", f"longer than {ask.SECONDS:g} s", "above the target"]
    sums = read_rows(RESULTS / "accounting_lattice")
    return (
        markdown([*header, "room left, median", "time of a calibration, median"], lines)
        + f"\n\nOne release of discrete noise on lattices of {sums['levels'].min():,} to {sums['levels'].max():,}"
        + f" integers to the clip: {int(sums['contained'].sum())} of {len(sums)} direct sums are in their bracket."
    )


def random_allocation() -> str:
    """Return a table for random allocation, by relation: the width of the brackets of epsilon, the time they take, and
    whether estimates of delta by sampling agree with them."""
    rows = read_rows(RESULTS / "accounting_allocation")
    lines = []
    for relation, group in rows.groupby("relation"):
        checked = group[group["contained"].notna()]
        error = (checked["error_lower"] / checked["sampled_lower"]).median()
        cells = [f"{100 * group['width'].median():.2g}%", f"{100 * group['width'].max():.2g}%"]
        cells += [f"{group['cpu_seconds'].median():.2g} s", f"{group['cpu_seconds'].max():.2g} s"]
        cells.append(f"{int((group['cpu_seconds'] <= allocation.SECONDS).sum())}")
        cells += [f"{int(checked['contained'].sum())} of {len(checked)}", f"{100 * error:.0f}%"]
        lines.append([str(relation), f"{len(group)}", *cells])
    header = ["relation", "settings", "width, median", "largest", "time, median", "longest"]
    header += [f"within {allocation.SECONDS:g} s", "sampled and inside"]
    return markdown([*header, f"{allocation.ERRORS:g} standard errors of delta, median"], lines)


def random_allocation_k() -> str:
    """Return a table of the relative width of epsilon's bracket if a record takes part in K of t steps, with a line for
    each K, t and relation, and a column for each noise multiplier."""
    rows = read_rows(RESULTS / "accounting_allocation_k")
    lines = []
    for (epoch, taken, relation), group in rows.groupby(["epoch", "taken", "relation"]):
        width = group.set_index("noise_multiplier")["width"]
        cells = [f"{100 * width[noise]:.2g}%" for noise in allocation_k.MULTIPLIERS]
        lines.append([f"{taken} of {epoch:,}", str(relation), *cells, f"{group['cpu_seconds'].max():.2g} s"])
    multipliers = [f"multiplier {noise:g}" for noise in allocation_k.MULTIPLIERS]
    return markdown(["steps", "relation", *multipliers, "longest"], lines)


def private_search_ways() -> str:
    """Return a table of the accuracy after a hyperparameter search that costs epsilon = 2 in all, by the way in
    which its choice is paid for."""
    tasks = {"digits": "digits, logistic", "trec": "TREC, frozen embeddings"}
    rows = {task: read_rows(RESULTS / f"private_search_{task}") for task in tasks}
    lines = []
    for way in private_search.WAYS:
        cells = [way]
        for task in tasks:
            mine = rows[task][rows[task]["way"] == way]
            mean, spread = private_search.searched(mine, way)
            cells += [f"{100 * mean:.1f} +- {100 * spread:.1f}", f"{mine['noise_multiplier'].iloc[0]:.2f}"]
        lines.append(cells)
    lines.append(["the best setting, known", *(cell for task in tasks for cell in (_known(rows[task]), ""))])
    header = ["way", *(cell for name in tasks.values() for cell in (f"{name}: accuracy", "noise"))]
    return markdown(header, lines)


def _known(rows: pd.DataFrame) -> str:
    alone = rows[rows["way"] == private_search.ONE].groupby("setting")["accuracy"].mean().max()
    return f"{100 * alone:.1f}"


TABLES = {
    "five_settings": five_settings,
    "five_allocations": five_allocation.table,
    "corners": corners,
    "asked": asked,
    "adaptive_budgets": adaptive.table,
    "random_allocation": random_allocation,
    "random_allocation_k": random_allocation_k,
    "private_search": private_search_ways,
    "attack_risk": risk.table,
}
