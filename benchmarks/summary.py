"""The tables of the README and of docs/: the calculator's answer and the committed measurements.

    python -m benchmarks summary            prints them
    python -m benchmarks summary --write    puts each between its two marks, in every page that has them

A test compares the pages with what this command prints. What finished experiments found stands in results/NOTES.md, and
no code makes it again.
"""

import contextlib
import io
import re
import tomllib
from argparse import Namespace
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import pandas as pd

from benchmarks import accounting as accountants
from benchmarks import corners as asked
from benchmarks import tuning_step
from benchmarks.audits import audit_zoo, membership
from benchmarks.kit.experiment import Command, flag
from benchmarks.kit.rows import OK, RESULTS, having, read_rows
from benchmarks.kit.tables import markdown, mean_error, paragraphs, shortened
from benchmarks.llm import directions_total, pages
from benchmarks.llm.top import ADAPTERS
from benchmarks.llm.tuned import ends
from benchmarks.problems.minimise import minimised
from benchmarks.problems.poisson import poisson_noise, prescribe_poisson
from benchmarks.slopes import OF_RANK
from dpzero_theory import params
from dpzero_theory.cli import Parser
from dpzero_theory.privacy.gaussian import gdp_from_epsilon
from dpzero_theory.privacy.grid import LEAST_DELTA
from dpzero_theory.theory.problem import Problem
from dpzero_theory.theory.results import calculate
from dpzero_theory.theory.sharp.certificate import prescribe
from dpzero_theory.theory.theorems import Inequality

ROOT = RESULTS.parents[1]
PAGES = [
    ROOT / "README.md",
    *sorted(path for path in (ROOT / "docs").rglob("*.md") if "modules" not in path.parts),
    RESULTS / "NOTES.md",
]
"""The README, all pages of docs/ that are written by hand, without those made from docstrings, and the notes on
the rows."""

CALCULATOR = "--n 10000 --epsilon 2 --delta 1e-6 --d 2000 --r 8.178 --result theorem-3 theorem-3-sharp"
SEEDS = 3
"""A combination of problem and privacy budget counts in the summary of certificates only if it was run with at least
this many seeds."""
CERTIFIED = (
    ("pseudo-huber", "a", 10_000, 200, 2.0),
    ("pseudo-huber", "b", 10_000, 200, 2.0),
    ("pseudo-huber", "c", 10_000, 200, 2.0),
    ("pseudo-huber", "c", 10_000, 2_000, 2.0),
    ("pseudo-huber", "c", 1_000, 100_000, 8.0),
    ("digits", "-", 1_797, 65, 2.0),
    ("sst2", "-", 60_614, 16_384, 0.5),
)
"""The combinations that the table of certificates shows: problem, mode (the name of a spectrum), n, d, epsilon."""


def certificates() -> str:
    """Return a table of the certified bound and the measured ||grad F||^2 (means over seeds), for the parameters of the
    sharpened theorem with one direction per step and for those of the paper's theorem."""
    rows = read_rows(RESULTS / "certificates")
    cell = ["problem", "mode", "n", "d", "epsilon"]
    mean = dict(rows.groupby([*cell, "parameters"])[["bound", "gradient_squared"]].mean().iterrows())
    lines = []
    for problem, mode, n, d, epsilon in CERTIFIED:
        shown = [f"{value:.2g}" for name in ("sharp", "paper") for value in mean[problem, mode, n, d, epsilon, name]]
        name = problem if mode == "-" else f"{problem} ({mode})"
        lines.append([name, f"{n:,}", f"{d:,}", f"{epsilon:g}", *shown])
    header = ["problem", "n", "d", "epsilon", "sharpened: certified", "measured", "Theorem 3: certified", "measured"]
    return markdown(header, lines) + "\n\n" + _held(rows, [*cell, "parameters"])


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


def low_rank() -> str:
    """Return a table of certified and measured ||grad F||^2 with directions of low rank beside the sphere's, for one
    direction a step and for the best number of them."""
    rows = pd.concat([read_rows(RESULTS / name) for name in ("certificates", "certificates_low_rank")])
    key = ["problem", "mode", "n", "d", "epsilon"]
    mean = dict(rows.groupby([*key, "parameters"])[["bound", "gradient_squared"]].mean().iterrows())
    names = ("sharp", "low-rank", "sharp-best-k", "low-rank-best-k")
    ours = rows[rows["parameters"].isin(["low-rank", "low-rank-best-k"])]
    lines: list[list[str]] = []
    for problem, mode, n, d, epsilon in ours[key].drop_duplicates().itertuples(index=False, name=None):
        shown = ("{:.2g}, {:.2g}".format(*mean[problem, mode, n, d, epsilon, name]) for name in names)
        lines.append([problem if mode == "-" else f"{problem} ({mode})", f"{n:,}", f"{d:,}", f"{epsilon:g}", *shown])
    run = ours.groupby([*key, "parameters"])
    value = run["gradient_squared"]
    upper = value.mean() + 3 * value.std(ddof=1) / np.sqrt(value.count())
    held = int((upper <= run["bound"].mean()).sum())
    said = f"The mean plus 3 standard errors is below the certificate in {held} of {len(upper)} cells of low rank."
    header = ["problem", "n", "d", "epsilon", "sphere, K = 1", "low rank, K = 1", "sphere, best K", "low rank, best K"]
    return markdown(header, lines) + "\n\n" + said


def _seconds(seconds: float) -> str:
    return f"{seconds * 1e3:.3g} ms" if seconds < 1 else f"{seconds:.3g} s"


def accounting() -> str:
    """Return a table of each accountant's noise multiplier and processor time, measured side by side in one run."""
    names = (accountants.OURS, "dp-accounting PLD", "dp-accounting RDP", "opake")
    lines = []
    rows = read_rows(RESULTS / "accounting")
    for (n, batch, steps, epsilon, _), group in rows.groupby(list(accountants.KEY[:-1]), sort=False):
        of = group.set_index("accountant")
        cells = (
            f"{of['noise_multiplier'][name]:.5f}, {_seconds(of['cpu_seconds'][name])}" if name in of.index else ""
            for name in names
        )
        lines.append([f"{n}/{batch}/{steps:,}/{epsilon:g}", *cells])
    return markdown(["n/B/T/epsilon", *names], lines)


def corners() -> str:
    """Return a table of the random settings that were asked: how many there are, the shares of answers in time, and
    how the answers compare with those of the older accountant."""
    rows = read_rows(RESULTS / asked.FOLDER, failed=True)
    rows = rows[rows["status"] != "not asked"]
    words = rows["sampling"] + " " + rows["other_sampling"].fillna("")
    allocated = words.str.contains("random-allocation")
    lines = []
    for name, group in {
        "all without random allocation": rows[~allocated],
        "random allocation": rows[allocated],
        "all": rows,
    }.items():
        seconds = group["cpu_seconds"].dropna()
        shares = [f"{100 * (seconds <= limit).mean():.1f}%" for limit in (1, 5)]
        lines.append([name, f"{len(group)}", f"{seconds.median():.2g} s", *shares, f"{seconds.max():.2g} s"])
    both = rows[(rows["status"] == OK) & rows["old_upper"].notna()]
    wrong = (both["upper"] < both["old_lower"] * (1 - 1e-12)) | (both["lower"] > both["old_upper"] * (1 + 1e-12))
    resolved = (both["question"] != "delta") | (both["upper"] > LEAST_DELTA)
    resolved &= (both["question"] != "epsilon") | (both["old_upper"] > 0.01)
    ratio = (both["upper"] / both["old_upper"])[resolved & (both["old_upper"] > 0)]
    wide = both["question"][ratio.index[ratio > 1.001]] == "delta"
    low, middle, high = (f"{ratio.quantile(share):.4g}" for share in (0.01, 0.5, 0.99))
    other = len(rows) - int((rows["status"] == OK).sum()) - int((rows["status"] == asked.TOO_LONG).sum())
    return (
        markdown(["sampling", "settings", "median", "within 1 s", "within 5 s", "slowest"], lines)
        + f"\n\n{other} refused; {int((rows['status'] == asked.TOO_LONG).sum())} given up after {asked.SECONDS:g} s."
        + f" Beside the older accountant {int(wrong.sum())} of {len(both)} are wrong; new upper end over old: {low},"
        + f" {middle} and {high} (quantiles of 1%, 50%, 99%; no delta below 1e-30, no epsilon below 0.01),"
        + f" above 1.001 for {int((~wide).sum())} of epsilon and the noise and {int(wide.sum())} of delta."
        + f" Peak memory {rows['peak_mb'].max():.0f} MB."
    )


def rank_dimension() -> str:
    """Return a table of the gradient norm that the methods reach, a mean over seeds, at three dimensions, and of its
    slope in d on logarithmic axes with a 95% interval over seeds."""
    selected, slopes = read_rows(RESULTS / "selection"), read_rows(RESULTS / "slopes")
    spectra = {"rank": "r = 5.0", "log": "r like log d"}
    sizes = (10**2, 10**4, 10**7)
    lines = []
    for sweep in OF_RANK:
        for output, iterate in ITERATES.items():
            for method in ("dpzero", "dpgd-0th"):
                at = {"sweep": sweep, "method": method, "output": output}
                mean = having(selected, **at).groupby("d")["train"].mean()
                how = {"measured": "gradient_train", "selection": "held-out", "range": "all"}
                (fit,) = having(slopes, **at, **how).to_dict("records")
                shown = f"{fit['slope']:.3f} ({fit['low']:.3f} to {fit['high']:.3f})"
                lines.append([spectra[sweep], iterate, METHODS[method], *(f"{mean[d]:.3g}" for d in sizes), shown])
    names = (f"d = 10^{len(f'{d}') - 1}" for d in sizes)
    return markdown(["spectrum", "iterate", "method", *names, "slope in d"], lines)


METHODS = {"dpzero": "DPZero", "dpgd-0th": "DPGD-0th", "dpgd": "DP-GD"}
MODES = "abc"
ITERATES = {"tau": "x_tau", "last": "last"}


def synthetic_slopes() -> str:
    """Return a table of slopes of the log gradient norm at x_tau in log d, with 95% intervals over seeds, for
    parameters chosen on other seeds: from the paper's grid, from a grid that also has longer runs, and in the limit of
    many steps. The last column has the paper's bound on the slope."""
    rows = having(read_rows(RESULTS / "slopes"), measured="gradient_train", start="zero", output="tau", range="all")
    lines = []
    for method in ("dpzero", "dpgd-0th"):
        for mode in MODES:
            of = having(rows, method=method, mode=mode)
            fits = [having(of, sweep=sweep, selection="held-out").iloc[0] for sweep in ("synthetic", "long", "limit")]
            shown = [f"{fit['slope']:.2f} ({fit['low']:.2f} to {fit['high']:.2f})" for fit in fits]
            lines.append([METHODS[method], mode, *shown, f"{fits[0]['claimed']:g} ({fits[0]['claimed_here']:g})"])
    header = ["method", "mode", "the paper's grid", "16 times the steps", "any number of steps"]
    return markdown([*header, "paper's bound (from this start)"], lines)


def synthetic_ratios() -> str:
    """Return a table of DPZero's gradient norm at x_tau over DP-GD's on the same problem, at three dimensions: means of
    the ratio over the seeds that both have, with parameters chosen on other seeds."""
    rows = having(read_rows(RESULTS / "selection"), sweep="synthetic", measured="gradient", output="tau")
    sizes, lines = (20, 200, 2_000), []
    for mode in MODES:
        cells = []
        for d in sizes:
            pair = (
                having(rows, method=method, mode=mode, d=d).set_index("seed")["train"] for method in ("dpzero", "dpgd")
            )
            above, below = pair
            cells.append(mean_error((above / below).dropna(), ".2f"))
        lines.append([mode, *cells])
    return markdown(["mode", *(f"d = {d:,}" for d in sizes)], lines)


def step_lengths() -> str:
    """Return a table by batch size and text length of the time of a private step with two laws of directions, and of
    the published step (four passes over the weights in place), over the time of two forward passes."""
    rows = read_rows(RESULTS / "optimizer_step_lengths")
    names = {"rademacher": "random signs", "gaussian": "Gaussian", "four-pass": "as published"}
    lines = []
    for batch, length in ((1, 16), (8, 16), (8, 256), (64, 16), (64, 256)):
        of = having(rows, batch=batch, length=length).set_index("method")
        shown = [
            f"{of['ratio'][name]:.2f} ({of['ratio_low'][name]:.2f} to {of['ratio_high'][name]:.2f})" for name in names
        ]
        lines.append([f"{batch}", f"{length}", f"{1000 * of['seconds']['two-forwards']:.0f} ms", *shown])
    return markdown(["batch", "tokens", "two forward passes", *names.values()], lines)


def low_rank_steps() -> str:
    """Return a table by model and batch of the time of a private step over that of as many plain forward passes, by
    direction law and number K of directions, and of its peak memory over that of inference, with and without code."""
    rows, lines = read_rows(RESULTS / "optimizer_step_low_rank"), []
    laws = {"low-rank": "rank 1", "rademacher": "random signs"}
    methods = {f"{law}-{k}": f"{said}, K = {k}" for law, said in laws.items() for k in (1, 4, 16)}
    methods |= {"stacked-16": "rank 1, 17 points in one pass", "together-17": "17 copies in one plain pass"}
    peaks = {"peak_to_inference": "memory, rank 1, K = 1", "peak_less_code_to_inference": "the same without code"}
    for (size, batch, length), part in rows.groupby(["size", "batch", "length"], sort=False):
        of = part.set_index("method")
        shown = [f"{of['ratio'][name]:.2f}" if name in of.index else "-" for name in methods]
        shown += [f"{of[peak]['low-rank-1']:.2f}" for peak in peaks]
        lines.append([str(size), f"{batch} of {length}", *shown])
    return markdown(["model", "records of tokens", *methods.values(), *peaks.values()], lines)


def calculator() -> str:
    """Return what the calculator prints at the paper's synthetic setting, and with --full, as blocks of Markdown."""
    blocks = []
    for more in ([], ["--full"]):
        out = io.StringIO()
        with contextlib.redirect_stdout(out):
            params.main([*CALCULATOR.split(), *more])
        blocks.append(f"```text\n{out.getvalue().rstrip()}\n```")
    return "\n\nWith `--full`:\n\n".join(blocks)


def alternatives() -> str:
    """Return a table of the accuracy of DPZero and of DP-AdamW at epsilon = 2, and of a step's memory, on a pretrained
    language model."""
    total = directions_total.ends(read_rows(RESULTS / "llm_directions_total"))
    norm = total["trec", "dpzero", "2", "64000"], total["trec", "dp-adamw", "2", "0"]
    adapters = having(read_rows(RESULTS / "llm_last_layer"), task="sst2", trained=ADAPTERS)
    layer = ends(adapters, "method", "epsilon")
    long = ends(having(read_rows(RESULTS / "llm_many_directions"), steps=1000), "method", "epsilon")["dpzero", "2"]
    whole = ends(read_rows(RESULTS / "llm_all_weights"), "method", "epsilon")
    held = having(read_rows(RESULTS / "tuning_step"), dtype="float32", batch=8).set_index("method")["memory_ratio"]
    ours, theirs = ("dpzero", "2"), ("dp-adamw", "2")
    lines = [
        [what, one.text(), other.text(), f"`llm.{name}`"]
        for what, one, other, name in (
            ("SST-2, all weights, 64,000 directions", long, whole[theirs], "many_directions"),
            ("SST-2, all weights, 300 directions", whole[ours], whole[theirs], "many_directions"),
            ("TREC, the last normalisation, 64,000 directions", *norm, "directions_total"),
            ("SST-2, adapters of rank 8, 2,400 directions", layer[ours], layer[theirs], "last_layer"),
        )
    ]
    memory = [
        "peak memory of a step on all weights over that of a forward pass, batch 8",
        f"{held['dpzero']:.2f}",
        f"{held['dp-adamw']:.2f}; with ghost clipping {held['dp-adamw-ghost']:.2f}",
        "`tuning_step`",
    ]
    return markdown(["trained", "DPZero", "DP-AdamW", "`python -m benchmarks ...`"], [*lines, memory])


def certified_bounds() -> str:
    """Return a table of the certified bound on the mean squared gradient, and of the steps, by the paper's theorem and
    by the sharpened one, at the setting of docs/results/theorem.md."""
    problem, gdp = Problem(n=10_000, d=2_000, r=8.178, loss_bound=1.0), float(gdp_from_epsilon(2, 1e-6))
    paper = {one.calibration: one for one in calculate(problem, 2, 1e-6)[0] if one.result.id == "theorem-3"}
    closed = paper["exact"].prescription
    best = minimised(Inequality.of("theorem-3", problem, closed.gdp), closed)
    most = paper["paper"].prescription.steps
    free = prescribe(problem, gdp)
    noise = poisson_noise(2, 1e-6)
    evaluations = most * problem.n
    several = prescribe(problem, gdp, max_evaluations=free.steps * problem.n, directions_per_step=32)
    few = prescribe(problem, gdp, max_evaluations=evaluations, directions_per_step="best")
    lines = {
        "Theorem 3 of the paper": paper["paper"].prescription,
        "the same with the exact Gaussian trade-off": paper["exact"].prescription,
        "the inequality in its proof, at its best parameters": best,
        "sharpened, as many steps as the paper": prescribe(problem, gdp, max_steps=most),
        "sharpened, as many steps as it likes": free,
        "sharpened, 32 directions a step, evaluations of the line above": several,
        f"sharpened, best K = {few.directions_per_step} for the paper's evaluations": few,
        "sharpened, Poisson batches, the paper's evaluations": prescribe_poisson(
            problem, gdp, noise, max_evaluations=evaluations
        ),
        "sharpened, Poisson batches, a tenth of these, at most 100,000 steps": prescribe_poisson(
            problem, gdp, noise, max_evaluations=evaluations // 10, max_steps=100_000
        ),
    }
    shown = [
        [name, f"{of.bound:.2g}" if of.bound < 1 else f"{of.bound:.2f}", f"{of.steps:,}"] for name, of in lines.items()
    ]
    return markdown(["what is certified by", "bound", "steps"], shown)


def claim_counts() -> str:
    """Return a sentence that counts the paper's claims by their status, from the list of claims."""
    claims = tomllib.loads((RESULTS.parents[1] / "paper_checks" / "claims.toml").read_text())["claim"]
    own = [claim for claim in claims if claim["kind"] == "remark"]
    count = Counter(claim["status"] for claim in claims if claim["kind"] != "remark")
    return paragraphs(
        f"""The list has {count.total()} claims of the paper: {count["verified"]} are verified, {count["corrected"]}
        hold after a correction, {count["contradicted"]} are contradicted, and {count["not testable here"]} cannot be
        tested here, because they need models, data or hardware that cannot be had. {len(own)} remarks are our own."""
    )


def effective_rank() -> str:
    """Return sentences about how the effective rank r of multi-layer perceptrons grows with the dimension d, before
    and after training, and how well a power of d fits."""
    rows = read_rows(RESULTS / "curvature")
    rows = rows[rows["model"].str.startswith("mlp-digits")]
    (d, before), (_, after) = (
        having(rows, moment=moment).sort_values("d")[["d", "rank_estimate"]].to_numpy(float).T
        for moment in ("before", "after")
    )
    steep, flat = (float(np.polyfit(np.log(d), np.log(r), 1)[0]) for r in (before, after))
    roots, logs = before / (2 * np.sqrt(d)), after / np.log(d)
    return paragraphs(
        f"""How does the effective rank r of the Hessian grow with the number d of weights? In a network with one hidden
        layer on digits, with d from {d[0]:,.0f} to {d[-1]:,.0f}, r goes from {before[0]:.0f} to {before[-1]:.0f} before
        training: roughly like the root of d (the slope of log r against log d is {steep:.2f}, and r/(2 sqrt(d))
        lies between {roots.min():.2f} and {roots.max():.2f}). After training it goes from {after[0]:.1f} to
        {after[-1]:.0f}: roughly like log d (slope {flat:.2f}, r/log(d) between {logs.min():.2f} and {logs.max():.2f}).
        Low effective rank holds here after training only."""
    )


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


TABLES: dict[str, Callable[[], str]] = {
    "alternatives": alternatives,
    "calculator": calculator,
    "claim_counts": claim_counts,
    "certified_bounds": certified_bounds,
    "certificates": certificates,
    "low_rank": low_rank,
    "effective_rank": effective_rank,
    "accounting": accounting,
    "corners": corners,
    "rank_dimension": rank_dimension,
    "synthetic_slopes": synthetic_slopes,
    "synthetic_ratios": synthetic_ratios,
    "step_lengths": step_lengths,
    "low_rank_steps": low_rank_steps,
    "tuning_step": tuning_step.table,
    "audit_invented": audit_zoo.first_try,
    "membership": membership.table,
    **pages.TABLES,
    "gpu_steps": gpu_steps,
}

SHORT = {
    "language_models": ("method | TREC | SST-2 | SST-5 | RTE", r"^(Zero-Shot|AdamW|MeZO) |\(2\)|^DPZero"),
    "tuning_step": ("method | batch 8: time; memory | batch 64: time; memory", "^f32"),
}
"""By the name of a table, what its short form `NAME_short` keeps: the columns, and a regular expression for the
lines."""


def _short(name: str) -> str:
    columns, lines = SHORT[name]
    return shortened(TABLES[name](), columns.split(" | "), lines)


TABLES |= {f"{name}_short": partial(_short, name) for name in SHORT}


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
