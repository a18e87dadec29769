"""Write the sentences of docs/results that contain numbers, from committed rows or by the calculator."""

import tomllib
from collections import Counter

import numpy as np
import pandas as pd

from benchmarks.kit.rows import RESULTS, having, read_rows
from benchmarks.kit.tables import markdown, paragraphs
from dpzero_theory.privacy.gaussian import gdp_from_epsilon
from dpzero_theory.theory.calculate import calculate
from dpzero_theory.theory.problem import Problem
from dpzero_theory.theory.sharp.certificate import prescribe
from dpzero_theory.theory.sharp.poisson import poisson_noise, prescribe_poisson


def certified_bounds() -> str:
    """Return a table of the certified bound on the mean squared gradient, and of the steps, by the paper's theorem and
    by the sharpened one, at the setting of docs/results/theorem.md."""
    problem, gdp = Problem(n=10_000, d=2_000, r=8.178, loss_bound=1.0), float(gdp_from_epsilon(2, 1e-6))
    paper = {one.calibration: one for one in calculate(problem, 2, 1e-6)[0] if one.result.id == "theorem-3"}
    best = paper["exact"].best
    assert best is not None
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


def optimality() -> str:
    """Return sentences that say how near to the certificate runs come on the worst convex losses, and how much
    smaller it could be with other parameters."""
    rows = read_rows(RESULTS / "optimality")
    setting = ["n", "epsilon", "r", "evaluations", "chosen"]
    own = having(rows, step_factor=1.0, clip_factor=1.0)
    mean, long, spread = (own[own["member"] == name] for name in ("mean", "long", "long-spread"))

    def shares(part: pd.DataFrame, column: str) -> str:
        share = part[column] / part["prescribed"]
        return f"{share.min():.2f} to {share.max():.2f}"

    tried = having(rows, member="mean").groupby(setting).filter(lambda cell: len(cell) > 1).groupby(setting)
    gains = tried["prescribed"].first() / tried["measured"].min()
    most = int(rows["evaluations"].max())
    many = gains[gains.index.get_level_values("evaluations") == most]
    return paragraphs(
        f"""How much smaller could a certificate be that is true for every loss? On a family of convex losses that are
        as bad as we know (`benchmarks/problems/worst_case.py`), runs with the prescribed parameters reach
        {shares(mean, "measured")} of the [certificate](#glossary-certificate), in all {len(mean)} prescriptions tried.
        At the setting above the best of {tried.size().max()} pairs of a step size and a clip, in simulated runs,
        reaches 1/{gains.max():.2f} of it (1/{many.max():.2f} at {most:,} evaluations). A certificate that chooses among
        these pairs could not be smaller by more; one that chooses others might.""",
        f"""The last iterate does not do much better than the mean over the run on such losses: it reaches
        {shares(long, "last")} of the certificate where the loss falls along the whole run, and
        {shares(spread, "last")} where the curvature lies in ten times as many coordinates. The best of the last 2% of
        the iterates reaches {shares(long, "least_0.02")} and {shares(spread, "least_0.02")}.""",
    )


def price_of_directions() -> str:
    """Return a sentence that says by how much the certified bound of other laws of directions is above the sphere's,
    with one direction per step, at the setting of docs/results/theorem.md."""
    problem, gdp = Problem(n=10_000, d=2_000, r=8.178), float(gdp_from_epsilon(2, 1e-6))

    def price(law: str, steps: int) -> float:
        ours, sphere = (prescribe(problem, gdp, max_steps=steps, direction=name).bound for name in (law, "sphere"))
        return ours / sphere - 1

    signs = ", ".join(f"{price('rademacher', steps):.0%} at {steps:,}" for steps in (1_000, 4_671, 155_200))
    return paragraphs(
        f"""Compared with directions from the sphere, Gaussian directions raise the bound by
        {price("gaussian", 4_671):.1%} (one direction a step, 4,671 steps). Random signs raise it by more, because their
        law is not symmetric under rotation: {signs} steps."""
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


TABLES = {
    "claim_counts": claim_counts,
    "certified_bounds": certified_bounds,
    "optimality": optimality,
    "price_of_directions": price_of_directions,
    "effective_rank": effective_rank,
}
