"""The tables of the README and of docs/: the calculator's answer and the committed measurements.

    python -m benchmarks.summary            prints them
    python -m benchmarks.summary --write    puts each between its two marks, in every page that has them

A test compares the pages with what this command prints.
"""

import contextlib
import io
import re
from argparse import Namespace
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import pandas as pd

from benchmarks.audits import audit_zoo, membership
from benchmarks.gpu.jobs import JOBS
from benchmarks.kit.experiment import Command, flag
from benchmarks.kit.rows import OK, RESULTS, having, read_rows
from benchmarks.kit.tables import markdown, mean_error, mean_interval, percent, shortened
from benchmarks.llm import (
    all_weights,
    last_layer,
    owners,
    rewards,
)
from benchmarks.llm import last_norm_tasks as last_norm_tasks_rows
from benchmarks.llm import only_d as only_d_rows
from benchmarks.llm.grids import LABELS, table
from benchmarks.llm.report import report
from benchmarks.optim import tuning_step
from benchmarks.privacy import accounting_tables, users
from benchmarks.reports import newcomer, sentences
from benchmarks.reports.short import KEPT
from benchmarks.sweeps import rank_tables, synthetic_tables
from benchmarks.training import adaptation_tables
from benchmarks.training import equal_points as by_points
from benchmarks.training import shaped as by_shape
from benchmarks.training.equal_evaluations import committed, gains, plain, reported
from dpzero_theory import params
from dpzero_theory.cli import Parser
from dpzero_theory.difference import DIFFERENCES
from dpzero_theory.sphere import DIRECTIONS
from dpzero_theory.theory.calculate import calculate
from dpzero_theory.theory.problem import Problem

ROOT = RESULTS.parents[1]
PAGES = [
    ROOT / "README.md",
    *sorted(path for path in (ROOT / "docs").rglob("*.md") if "modules" not in path.parts),
    *sorted(RESULTS.glob("*/NOTES.md")),
]
"""The README, all pages of docs/ that are written by hand, without those made from docstrings, and the notes beside
the rows, which have what the pages leave out."""

CALCULATOR = "--n 10000 --epsilon 2 --delta 1e-6 --d 2000 --r 8.178 --result theorem-3 theorem-3-sharp"

SEEDS = 3
"""A combination of problem and privacy budget counts in the summary of certificates only if it was run with at least
this many seeds."""

CERTIFIED = (
    ("pseudo-huber", "a", 10_000, 200, 2.0),
    ("pseudo-huber", "b", 10_000, 200, 2.0),
    ("pseudo-huber", "c", 10_000, 20, 2.0),
    ("pseudo-huber", "c", 10_000, 200, 2.0),
    ("pseudo-huber", "c", 10_000, 2_000, 2.0),
    ("pseudo-huber", "c", 1_000, 100_000, 8.0),
    ("pseudo-huber", "c", 100_000, 20, 2.0),
    ("digits", "-", 1_797, 65, 2.0),
    ("sst2", "-", 60_614, 16_384, 0.5),
)
"""The combinations that the table of certificates shows: problem, mode (the name of a spectrum), n, d, epsilon. The
committed rows and the figure have more of them."""


def certificates() -> str:
    """Return a table of the certified bound and the measured ||grad F||^2 (means over seeds), for the parameters of the
    sharpened theorem with one direction per step and with the best number of them, and for those of the paper's
    theorem."""
    rows = read_rows(RESULTS / "certificates")
    cell = ["problem", "mode", "n", "d", "epsilon"]
    values = rows.groupby([*cell, "parameters"])[["bound", "gradient_squared", "last_gradient_squared"]].mean()
    mean = dict(values.iterrows())
    best_k = dict(rows[rows["parameters"] == "sharp-best-k"].groupby(cell)["directions_per_step"].first().items())
    lines = []
    for key in CERTIFIED:
        paper, ours = mean[*key, "paper"], mean[*key, "sharp"]
        best = mean.get((*key, "sharp-best-k"))
        problem, mode, n, d, epsilon = key
        cells = [
            f"{ours['bound']:.2g}",
            f"{ours['gradient_squared']:.2g}",
            f"{ours['last_gradient_squared']:.2g}",
            *(("", "", "", "") if best is None else (str(best_k[key]), *(f"{value:.2g}" for value in best))),
            f"{paper['bound']:.2g}",
            f"{paper['gradient_squared']:.2g}",
            f"{paper['gradient_squared'] / ours['gradient_squared']:.1f}",
            f"{paper['last_gradient_squared'] / ours['last_gradient_squared']:.0f}",
        ]
        lines.append([problem if mode == "-" else f"{problem} ({mode})", f"{n:,}", f"{d:,}", f"{epsilon:g}", *cells])
    header = ["problem", "n", "d", "epsilon", *(f"K = 1 {name}" for name in ("certified", "measured", "last"))]
    header += ["best K", *(f"best K {name}" for name in ("certified", "measured", "last"))]
    header += ["paper certified", "paper measured", "paper/K = 1", "paper/K = 1, last"]
    return markdown(header, lines) + "\n\n" + _held(rows, [*cell, "parameters"])


def directions() -> str:
    """Return a table that compares numbers K of directions per step at the paper's setting, with equal numbers of
    evaluations of a record, ten times the paper's: the certified bound, and what runs measure."""
    rows = read_rows(RESULTS / "certificates_directions")
    lines = []
    for k in sorted({int(k) for k in rows["directions_per_step"]}):
        part = rows[rows["directions_per_step"] == k]
        shown = [mean_error(part[column], ".3g") for column in ("gradient_squared", "last_gradient_squared")]
        lines.append([f"{k}", f"{int(part['steps'].iloc[0]):,}", f"{part['bound'].iloc[0]:.2g}", *shown])
    return markdown(["K", "steps", "certified", "measured", "last"], lines)


def correlated_noise() -> str:
    """Return the table of what correlated noise gains where directions are used again: means over pools with intervals
    of 95%, from `benchmarks.correlated_noise`."""
    rows = read_rows(RESULTS / "correlated_noise")
    lines = []
    for d, size in sorted({(int(d), int(size)) for d, size in zip(rows["d"], rows["pool"], strict=True)}):
        part = rows[(rows["d"] == d) & (rows["pool"] == size)]
        names = ("gain_known", "runs_known", "gain_unknown", "signal")
        shown = [mean_interval(part[name], ".2f", ".2f") for name in names]
        lines.append([f"{d:,}", f"{size}", *shown])
    return markdown(["d", "P", "noise knows the directions", "on runs", "noise does not", "signal left"], lines)


def shapes() -> str:
    """Return the table of what directions of another shape gain on the paper's quadratics, as means over seeds of the
    loss's height at the last iterate and the mean squared gradient, over the start's (`benchmarks.shapes`)."""
    rows = read_rows(RESULTS / "shapes")
    lines = []
    for mode in ("b", "c"):
        for power in sorted({float(power) for power in rows["power"]}):
            part = rows[(rows["mode"] == mode) & (rows["power"] == power)]
            known = part[part["public"] == 0]
            cells = [f"{np.mean(known['rank']):.1f}", f"{np.mean(known['gradient']):.2g}"]
            for public in (0, 1000, 50):
                heights = part[part["public"] == public]["height"]
                cells.append(f"{np.mean(heights):.2g}" if len(heights) else "")
            lines.append([f"({mode})", f"A^{power:g}", *cells])
    header = ["mode", "B", "tr(BA)/norm", "gradient", "height", "estimated from 1,000", "from 50"]
    return markdown(header, lines)


def shaped() -> str:
    """Return a table of the accuracy on TREC with directions of the shape B = S^power, S estimated from public
    questions, with standard errors over five runs (`benchmarks.shaped`)."""
    rows = by_shape.reported(read_rows(RESULTS / "shaped"))
    lines = []
    for power in by_shape.POWERS:
        cells = []
        for evaluations in by_shape.EVALUATIONS:
            for public in by_shape.PUBLIC:
                found = having(rows, power=power, public=public, evaluations=evaluations).to_dict("records")
                cells += [f"{one['accuracy']:.1f} +- {one['error']:.1f}" for one in found] or [""]
        lines.append([f"S^{power:g}" if power else "none", *cells])
    header = [
        f"{count:,} evaluations, {public} questions" for count in by_shape.EVALUATIONS for public in by_shape.PUBLIC
    ]
    return markdown(["B", *header], lines)


def optimizer_directions() -> str:
    """Return a table of private training with the parameters that the theory prescribes for measured constants: one
    direction per step beside the best number of them at equal evaluations (`benchmarks.prescription`)."""
    lines = []
    for task in ("digits", "digits_long"):
        rows = read_rows(RESULTS / f"prescription_{task}")
        for name in ("theory", "theory-estimates"):
            both = [rows[rows["choice"] == choice] for choice in (name, f"{name}-best-k")]
            if both[1].empty:
                continue
            for part in both:
                first = part.iloc[0]
                shown = [mean_error(part[column], ".3g") for column in ("gradient_squared", "loss", "accuracy")]
                cells = [task.replace("_", ", "), name.removeprefix("theory").lstrip("-") or "upper ends"]
                cells += [f"{first['directions_per_step']}", f"{first['steps']:,}", f"{first['bound']:.2g}"]
                lines.append([*cells, *shown])
    return markdown(["task", "constants", "K", "steps", "certified", "measured", "loss", "accuracy"], lines)


def _held(rows: pd.DataFrame, key: list[str]) -> str:
    """Return a sentence that says for how many combinations the certified bound is at least the measured mean plus
    three standard errors, and how close the sharpened bounds are to the mean. The columns in `key` tell combinations
    apart."""
    run = rows.dropna(subset="gradient_squared").groupby(key).filter(lambda cell: len(cell) >= SEEDS).groupby(key)
    value = run["gradient_squared"]
    upper = value.mean() + 3 * value.std(ddof=1) / np.sqrt(value.count())
    bound, sharpened = run["bound"].mean(), run["sharp_bound"].mean()
    ratio = (bound / value.mean()).xs("sharp", level="parameters").xs("pseudo-huber", level="problem")
    return (
        f"The mean plus 3 standard errors is at most the bound by which the parameters were chosen in "
        f"{int((upper <= bound).sum())} of {len(bound)} cases, and at most the sharpened bound at the same parameters "
        f"in {int((upper <= sharpened).sum())} (the mean alone in {int((value.mean() <= sharpened).sum())}). On the "
        f"pseudo-Huber loss the sharpened bound is {ratio.median():.2f} times what its runs measure in the median, and "
        f"at most 10 times in {int((ratio <= 10).sum())} of {len(ratio)} cases (largest {ratio.max():.1f})."
    )


def accounting() -> str:
    """Return a table of each accountant's noise multiplier and processor time, measured side by side in one run."""
    rows = read_rows(RESULTS / "accounting")
    lines = []
    for key, group in rows.groupby(["n", "batch", "steps", "epsilon"], sort=False):
        n, batch, steps, epsilon = key
        shown = [f"{n}/{batch}/{steps:,}/{epsilon:g}"]
        for name in ("this package", "dp-accounting PLD", "dp-accounting RDP", "prv-accountant"):
            one = group[group["accountant"] == name]
            if one.empty:
                shown.append("")
                continue
            row = one.iloc[0]
            seconds = row["cpu_seconds"]
            time = f"{seconds * 1e3:.3g} ms" if seconds < 1 else f"{seconds:.3g} s"
            shown.append(f"{row['noise_multiplier']:.5f}, {time}")
        lines.append(shown)
    header = ["n/B/T/epsilon", "this package", "dp-accounting PLD", "dp-accounting RDP", "prv-accountant (0.01)"]
    return markdown(header, lines)


def sweep_speed() -> str:
    """Return a table of the time in which the sweep engine makes 880 runs, and of how many times longer they take one
    by one (medians over repetitions). The text below it compares the engine with an older version."""
    rows, before = read_rows(RESULTS / "sweep_speed"), read_rows(RESULTS / "sweep_speed_before")
    shown = rows.groupby(["device", "method", "d"], sort=False).median(numeric_only=True).reset_index()
    lines = [
        [
            str(row["device"]),
            str(row["method"]),
            f"{int(row['d']):,}",
            f"{row['engine_s']:.2f} s",
            f"{row['ratio']:,.0f}",
            f"{row['direct_ratio']:,.0f}",
            f"{row['product_share']:.0%}",
        ]
        for _, row in shown.iterrows()
    ]
    header = [
        "device",
        "method",
        "d",
        "880 runs",
        "reference / engine",
        "direct loop / engine",
        "in the matrix product",
    ]
    ratio = before["other_seconds"].sum() / before["seconds"].sum()
    said = f"Over the paper's grid {ratio:.2f} times as fast as before the methods shared directions and sorts; "
    return f"{markdown(header, lines)}\n\n{said}{before['same'].sum():,} of {before['rows'].sum():,} rows are the same."


def language_models() -> str:
    """Return a table of every method's accuracy on the small encoder, beside the paper's on RoBERTa-large."""
    return report(table("tab:dpzero-mezo", "few-steps"), read_rows(RESULTS / "llm_dpzero_mezo"))


def opt_prompts() -> str:
    """Return a table of every method's accuracy on a small OPT model with the prompt of SST-2."""
    return report(table("tab:opt-cls", "few-steps"), read_rows(RESULTS / "llm_opt_cls"))


def last_norm() -> str:
    """Return a table of the accuracy of a pretrained language model before and after its last normalisation was
    trained: mean over the reported runs and 95% interval of it (Student's t), by method, epsilon and n."""
    rows = read_rows(RESULTS / "llm_last_norm")
    final = rows[(rows["setting"].astype(str) == "chosen")].sort_values("step")
    start = 100 * float(final[final["method"] == "zero-shot"]["test_accuracy"].iloc[0])
    ends = final[final["step"] == final.groupby("method")["step"].transform("max")]
    lines: list[tuple[int, float, list[str]]] = []
    for (n, method, epsilon), part in ends.groupby(["n", "method", "epsilon"]):
        mean = 100 * float(part["test_accuracy"].mean())
        name = LABELS[str(method)] + ("" if str(epsilon) == "none" else f" ({epsilon})")
        tuned = [f"{n:,}", f"{part['step_size'].iloc[0]:g}"] if method != "zero-shot" else ["-", "-"]
        shown = [
            percent(part["test_accuracy"]),
            f"{mean - start:+.1f}",
            f"{len(part)}",
            f"{part['seconds'].median():.0f} s",
        ]
        lines.append((int(str(n)) if method != "zero-shot" else 0, mean, [name, *tuned, *shown]))
    return markdown(
        ["method (epsilon)", "n", "step size", "test accuracy (%)", "gain", "runs", "a run"],
        [line for *_, line in sorted(lines)],
    )


def last_norm_tasks() -> str:
    """Return a table of the accuracy of every method on a pretrained language model, by task and prompt."""
    return last_norm_tasks_rows.table(read_rows(RESULTS / "llm_last_norm_tasks"))


def methods_order() -> str:
    """Return a table of the differences between neighbours in the paper's order of methods, by task and prompt."""
    tasks, one = read_rows(RESULTS / "llm_last_norm_tasks"), read_rows(RESULTS / "llm_last_norm")
    return last_norm_tasks_rows.order(pd.concat([last_norm_tasks_rows.sst2(one), tasks]))


def only_d() -> str:
    """Return a table of the steps of DPZero on a pretrained language model to a fixed fall of the loss, by the weights
    that are trained, with the effective rank r, and the slope of log steps against log d."""
    return only_d_rows.table(only_d_rows.committed(), read_rows(RESULTS / "llm_only_d_rank"))


HEADS = {
    "trec": "TREC, label vectors on frozen embeddings",
    "trec, norm": "TREC, label vectors and last normalisation",
    "trec, lora": "TREC, small encoder: LoRA and label vectors",
    "trec, body": "TREC, small encoder: its layer and label vectors",
    "sst5": "SST-5, label vectors",
    "sst2": "SST-2, label vectors",
    "digits": "digits, logistic",
}


def equal_evaluations() -> str:
    """Return a table of the accuracy in percent by the number K of directions: that of the best parameters of a grid,
    and in parentheses that of starting values without a search. A last part has the gain over K = 1 if K is chosen
    together with the other parameters."""
    rows, started = plain(committed()), read_rows(RESULTS / "starting")
    gained = gains(rows)
    rows = reported(rows)
    ks = sorted({int(k) for k in rows["directions"]})
    lines = []
    for (name, evaluations), cell in sorted(rows.groupby(["task", "evaluations"]), reverse=True):
        cells = [HEADS[str(name)], f"{evaluations:,}"]
        for k in ks:
            at = {"task": name, "evaluations": evaluations, "directions": k}
            found = 100 * having(started, **at)["accuracy"]
            shown = mean_error(100 * cell[cell["directions"] == k]["accuracy"], ".1f", ".1f")
            cells.append(f"{shown} ({found.mean():.1f})" if len(found) else shown)
        k, (mean, error), (others, their_error) = gained[str(name), int(cell["evaluations"].iloc[0])]
        cells += [f"K = {k}: {mean:+.1f} +- {error:.1f}", f"{others:+.1f} +- {their_error:.1f}"]
        lines.append(cells)
    return markdown(["task", "K T", *(f"K = {k}" for k in ks), "chosen, over K = 1", "4, 16 and 64, over K = 1"], lines)


def equal_points() -> str:
    """Return a table of the accuracy in percent of each difference rule at its chosen number of directions K, of how
    far the chosen rule and K are above central differences with K = 1, and forward differences above central ones at
    equal K, with 95% intervals."""
    lines = []
    for (name, evaluations), cells in sorted(by_points.compared().items(), reverse=True):
        (one,) = (cell for cell in cells if cell[:2] == ("central", 1))
        shown = []
        for rule in DIFFERENCES:
            found = by_points.best(cells, rule)
            shown.append(f"{found.reported.mean():.1f} (K = {found.directions})" if found else "-")
        chosen = by_points.best(cells, *DIFFERENCES)
        assert chosen is not None
        mean, half = by_points.above(chosen, one)
        equal, interval = by_points.at_equal_k(cells)
        gains = [
            f"{chosen.difference}, K = {chosen.directions}: {mean:+.1f} +- {half:.1f}",
            f"{equal:+.1f} +- {interval:.1f}",
        ]
        lines.append([HEADS[name], f"{2 * evaluations:,}", f"{one.reported.mean():.1f}", *shown, *gains])
    last = ["chosen, over central K = 1", "forward over central, K = 4, 16, 64"]
    return markdown(["task", "points", "central, K = 1", *DIFFERENCES, *last], lines)


def rule_checks() -> str:
    """Return a table, by difference rule, of how near the certificate is reached by runs on all data sets, and the
    theorem's inequality by one step and by runs on the worst losses, over every law of the directions."""
    runs = read_rows(RESULTS / "certificates_rules")
    hunts = read_rows(RESULTS / "violations")
    lines = []
    for rule in DIFFERENCES:
        groups = runs[runs["parameters"].str.startswith(rule)].groupby(
            ["problem", "mode", "n", "d", "epsilon", "parameters"]
        )
        measured = groups["gradient_squared"]
        shares = (measured.mean() + 3 * measured.sem()) / groups["sharp_bound"].first()
        cells = [f"{int((shares <= 1).sum())} of {len(shares)}", f"{shares.max():.2f}"]
        for hunt in ("one step", "run"):
            ratios = having(hunts, hunt=hunt, part=rule)["ratio"]
            cells += [f"{int((ratios > 1).sum())} of {len(ratios):,}", f"{ratios.max():.4f}"]
        lines.append([rule, *cells])
    header = [
        "cells below",
        "largest share",
        "one step: violations",
        "largest ratio",
        "runs: violations",
        "largest ratio",
    ]
    return markdown(["difference", *header], lines)


def step_lengths() -> str:
    """Return a table by batch size and text length of the time of a private step with each law of directions, over the
    time of two forward passes. It also has that of the published step (four passes over the weights in place)."""
    rows = read_rows(RESULTS / "optimizer_step_lengths")
    names = {law: law.capitalize() for law in reversed(tuple(DIRECTIONS))}
    names["four-pass"] = "four passes in place, as published"
    lines = []
    for (batch, length), cell in rows.groupby(["batch", "length"]):
        of = cell.set_index("method")
        shown = [
            f"{of['ratio'][name]:.2f} ({of['ratio_low'][name]:.2f} to {of['ratio_high'][name]:.2f})" for name in names
        ]
        lines.append([f"{batch}", f"{length}", f"{1000 * of['seconds']['two-forwards']:.0f} ms", *shown])
    return markdown(["batch", "tokens", "two forwards", *names.values()], lines)


def one_pass() -> str:
    """Return a table, by which weights are trained, of the processor time of evaluating all points of a step in one
    forward pass, over that of evaluating them one after the other."""
    rows = read_rows(RESULTS / "one_pass")
    cases = rows[["model", "texts", "directions"]].drop_duplicates()
    lines = []
    for trained in rows["trained"].unique():
        found = cases.merge(rows[rows["trained"] == trained])
        lines.append([str(trained), *(f"{row.ratio:.2f} ({row.ratio_error:.2f})" for row in found.itertuples())])
    names = (f"{case.model}, {case.texts} texts, K = {case.directions}" for case in cases.itertuples())
    return markdown(["trained", *names], lines)


def differences() -> str:
    """Return a table of the certified bounds of each difference rule at its best number K of directions per step, by
    the law of the directions and the evaluations of each record."""
    rows = having(read_rows(RESULTS / "differences"), chosen="best")
    names = {"sphere": "sphere", "gaussian": "Gaussian", "rademacher": "random signs", "frame": "frame"}
    lines = []
    for (points, law), group in rows.groupby(["points", "law"], sort=False):
        cells = (f"{row.bound:.5f} (K = {row.K})" for row in group.itertuples())
        lines.append([f"{points:,}", names[str(law)], *cells])
    return markdown(["evaluations of a record", "directions", *rows["difference"].unique()], lines)


def difference_rules() -> str:
    """Return a table of what DPZero's runs measure by each difference rule at equal evaluations of a record's loss, as
    means with 95% intervals over the runs, or without one where there is one run."""
    lines: list[list[str]] = []
    for folder in ("difference_rules_certificates", "difference_rules"):
        rows = having(read_rows(RESULTS / folder), law="sphere")
        for (d, rule, k, factor), found in rows.groupby(["d", "difference", "K", "factor"]):
            certified = found["bound"].iloc[0]
            shown = "none" if pd.isna(certified) else f"{certified:.5f}"
            measured = (
                mean_interval(found[column], ".5f", ".1g") for column in ("gradient_squared", "last_gradient_squared")
            )
            lines.append([f"{d:,}", str(rule), str(k), f"{factor:g}", str(len(found)), shown, *measured])
    header = [
        "d",
        "difference",
        "K",
        "step size over the theorem's",
        "runs",
        "certificate",
        "mean over the run",
        "last",
    ]
    return markdown(header, lines)


def gradient_moment() -> str:
    """Return a table of certificates with a released moment of gradient norms, beside those with a known moment and
    with a Lipschitz constant."""
    rows = read_rows(RESULTS / "gradient_moment")
    lines = [
        [f"{n:,}", f"{m:g}", f"{b:g}", f"{share:.1%}", f"{upper:.4g}", *(f"{bound:.4f}" for bound in bounds)]
        for n, m, b, share, upper, *bounds in rows.drop(columns="status").itertuples(index=False)
    ]
    return markdown(["n", "m", "B", "part of mu^2", "released bound", "certificate", "moment known", "L = B"], lines)


def calculator() -> str:
    """Return what the calculator prints at the paper's synthetic setting, as a block of Markdown."""
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        params.main(CALCULATOR.split())
    return f"```text\n{out.getvalue().rstrip()}\n```"


def alternatives() -> str:
    """Return a table that compares this package with others, line by line. The numbers of a line were measured in
    one run, or are computed."""
    problem = Problem(n=10_000, d=2_000, r=8.178, lipschitz=1.0, smoothness=1.0, gap=1.0, loss_bound=1.0)
    bounds = {
        (answer.result.id, answer.calibration): answer.prescription.bound
        for answer in calculate(problem, epsilon=2.0, delta=1e-6)[0]
    }
    rows = read_rows(RESULTS / "accounting")
    noise = rows[(rows["n"] == 1024) & (rows["epsilon"] == 2)].set_index("accountant")
    steps = read_rows(RESULTS / "optimizer_step")
    step = having(steps, size="roberta-base", batch=8).set_index("method")
    tiny = having(steps, size="tiny", method="private-rademacher").set_index("batch")["ratio"]

    accuracy = last_norm_tasks_rows.ends(read_rows(RESULTS / "llm_last_norm_tasks"))
    held = having(read_rows(RESULTS / "tuning_step"), dtype="float32", batch=8).set_index("method")["memory_ratio"]

    def correct(method: str, epsilon: str) -> str:
        return accuracy["trec", "paper", method, epsilon].text()

    def cost(name: str) -> str:
        return f"{noise['noise_multiplier'][name]:.5f} in {noise['cpu_seconds'][name]:.3g} s"

    def time(name: str) -> str:
        return f"{step['ratio'][name]:.2f}; {step['peak_to_inference'][name]:.2f}"

    return markdown(
        ["what", "here", "elsewhere", "command"],
        [
            [
                "noise multiplier, n = 1,024, batch 64, T = 10,000, epsilon = 2, delta = 1e-5; processor time",
                f"{cost('this package')}, certified",
                f"dp-accounting {cost('dp-accounting PLD')}; prv-accountant {cost('prv-accountant')}",
                "`python -m benchmarks.accounting --preset compare`",
            ],
            [
                "one step of RoBERTa-base, batch 8, CPU: its time over that of two forward passes; its peak memory over"
                " that of one forward pass",
                f"private: {time('private-rademacher')} (time for a tiny RoBERTa, whose forward pass is short:"
                f" {tiny[8]:.2f}, at batch 64 {tiny[64]:.2f})",
                f"four passes in place, as published: {time('four-pass')}. AdamW, not private: {time('adamw')}",
                "`python -m benchmarks.optimizer_step --preset cpu`",
            ],
            [
                "SmolLM2-135M-Instruct, its last normalisation trained: accuracy on TREC in percent at epsilon = 2"
                " and 6",
                f"DPZero: {correct('dpzero', '2')} and {correct('dpzero', '6')}",
                f"DP-AdamW: {correct('dp-adamw', '2')} and {correct('dp-adamw', '6')}",
                "`python -m benchmarks.llm.last_norm_tasks --data DIR`",
            ],
            [
                "all weights of that model trained: the peak memory of a step, batch 8, over that of one forward pass"
                " (of the last normalisation alone both hold little more than the model)",
                f"DPZero: {held['dpzero']:.2f}",
                f"DP-AdamW: {held['dp-adamw']:.2f}, with ghost clipping {held['dp-adamw-ghost']:.2f}",
                "`python -m benchmarks.tuning_step`",
            ],
            [
                "certified E\\|\\|grad F\\|\\|^2, n = 10,000, epsilon = 2, delta = 1e-6, d = 2,000, r = 8.178",
                f"{bounds['theorem-3-sharp', 'exact']:.2g}",
                f"the paper's Theorem 3: {bounds['theorem-3', 'paper']:.3g}",
                "`python -m dpzero_theory.params`",
            ],
        ],
    )


def differences_step() -> str:
    """Return a table of the processor time of a step's evaluations by each difference rule, in units of central ones,
    with the peak memory in parentheses."""
    rows = read_rows(RESULTS / "differences_step")
    methods = list(rows["method"].unique())
    lines = []
    for (model, trained, k), group in rows.groupby(["model", "trained", "directions"], sort=False):
        found = {row.method: f"{row.ratio:.2f} ({row.peak_mb:.0f} MiB)" for row in group.itertuples()}
        counted = group.set_index("method")["evaluations"]["forward"]
        lines.append([f"{model}, {trained}", str(k), f"{counted:.2f}", *(found.get(name, "") for name in methods)])
    return markdown(["model, trained", "K", "(K + 1)/(2 K)", *methods], lines)


def gpu_steps() -> str:
    """Return a table of the time of a step on RoBERTa-large and its peak memory on one H100, in units of two plain
    forward passes and of one inference, by method and type of the weights."""
    rows = read_rows(RESULTS / "gpu" / "h100-80gb" / "optimizer_step", failed=True)
    kinds = list(rows["dtype"].unique())

    def cell(row: pd.Series) -> str:
        if row["status"] != OK:
            return str(row["status"])
        return f"{row['ratio']:.2f} ({1e3 * row['seconds']:.0f} ms); {row['peak_to_inference']:.2f}"

    lines = []
    for method, part in rows.groupby("method", sort=False):
        by_kind = part.set_index("dtype")
        lines.append([str(method), *(cell(by_kind.loc[kind]) for kind in kinds)])
    return markdown(["method", *(f"{kind}: time; memory" for kind in kinds)], lines)


def gpu_plans() -> str:
    """Return a table for each GPU model of the planned jobs, and of when each would begin within the available
    minutes, or why it would not."""
    rows = read_rows(RESULTS / "gpu_plans")
    begins = (rows["start_s"] / 60).map("{:.1f}".format)
    rows["when"] = rows["why_not"].where(rows["why_not"].notna(), begins)
    shows = {job.name: job.shows for job in JOBS}
    header = [
        "job",
        "what it shows",
        "minutes, estimated",
        "GiB",
        *(f"begins at, of {most} minutes" for most in rows["minutes"].unique()),
    ]
    parts = []
    for card, group in rows.groupby("card", sort=False):
        lines = [
            [
                str(job),
                shows[str(job)],
                f"{of['estimate_s'].iloc[0] / 60:.1f}",
                f"{of['memory_gib'].iloc[0]:.0f}",
                *of["when"],
            ]
            for job, of in group.groupby("job", sort=False)
        ]
        parts.append(f"**{card}**\n\n{markdown(header, lines)}")
    return "\n\n".join(parts)


FULL: dict[str, Callable[[], str]] = {
    "alternatives": alternatives,
    "calculator": calculator,
    "differences": differences,
    "difference_rules": difference_rules,
    "gradient_moment": gradient_moment,
    "certificates": certificates,
    **sentences.TABLES,
    "directions": directions,
    "correlated_noise": correlated_noise,
    "shapes": shapes,
    "shaped": shaped,
    "optimizer_directions": optimizer_directions,
    "accounting": accounting,
    **accounting_tables.TABLES,
    **adaptation_tables.TABLES,
    "sweep_speed": sweep_speed,
    "language_models": language_models,
    "opt_prompts": opt_prompts,
    "last_norm": last_norm,
    "last_norm_tasks": last_norm_tasks,
    "methods_order": methods_order,
    "only_d": only_d,
    "tuning_step": tuning_step.table,
    "llm_last_layer": last_layer.table,
    "llm_all_weights": all_weights.table,
    "llm_rewards": rewards.table,
    "llm_rewards_tasks": rewards.table_of_tasks,
    "llm_owners": owners.table,
    "users": users.table,
    "equal_evaluations": equal_evaluations,
    "equal_points": equal_points,
    "rule_checks": rule_checks,
    "one_pass": one_pass,
    "differences_step": differences_step,
    "gpu_plans": gpu_plans,
    "gpu_steps": gpu_steps,
    "step_lengths": step_lengths,
    "newcomer": newcomer.table,
    "audit_invented": audit_zoo.first_try,
    "membership": membership.table,
    **rank_tables.TABLES,
    **synthetic_tables.TABLES,
}


def _short(name: str) -> str:
    kept = KEPT[name]
    return shortened(FULL[name](), kept.columns, kept.lines, kept.below)


TABLES = FULL | {f"{name}_short": partial(_short, name) for name in KEPT}


def filled(page: str) -> str:
    """Return the text of a page of Markdown with every generated table, between its two marks, made anew from the
    rows."""
    return re.sub(
        r"<!-- (\w+) -->\n.*?<!-- /\1 -->",
        lambda found: f"<!-- {found[1]} -->\n\n{TABLES[found[1]]()}\n\n<!-- /{found[1]} -->",
        page,
        flags=re.DOTALL,
    )


def _write(page: Path) -> None:
    text = page.read_text()
    if (today := filled(text)) != text:
        page.write_text(today)
        print(page.relative_to(ROOT))


def _body(parser: Parser, options: Namespace) -> None:
    if options.write:
        for page in PAGES:
            _write(page)
        return
    for name, table_of in TABLES.items():
        print(f"<!-- {name} -->\n\n{table_of()}\n")


EXPERIMENT = Command(
    "summary", __doc__, _body, [flag("--write", action="store_true", help="put the tables into their pages")]
)
