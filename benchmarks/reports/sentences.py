"""Write the sentences of docs/results that contain numbers, from committed rows or by the calculator."""

import numpy as np
import pandas as pd

from benchmarks.kit.rows import RESULTS, having, read_rows
from benchmarks.kit.tables import paragraphs
from benchmarks.optim.forged_tables import forged_folders
from dpzero_theory.privacy.gaussian import gdp_from_epsilon
from dpzero_theory.theory.problem import Problem
from dpzero_theory.theory.sharp.certificate import prescribe


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
        f"""On a convex family (`problems/worst_case.py`: a slope that lasts as long as the run, coordinates that hold
        the noise) runs sit at {shares(mean, "measured")} of the [certificate](#glossary-certificate) in all
        {len(mean)} prescriptions: n from 10^3 to 10^6, epsilon 0.5 to 8, r 2 to 200, K = 1 and best K. At the setting
        above, where other step sizes and clips were tried, none can be certified more than {gains.max():.2f} times
        better there than the prescribed ones, {many.max():.2f} at {most:,} evaluations (`python -m
        benchmarks.optimality`; a lower bound is proved in the limit of many steps, proof.md section 9, the rest is
        simulated exactly).""",
        f"""With the slope lengthened, F convex, the last iterate is at {shares(long, "last")} of the certificate and
        the best iterate of the last 2% at {shares(long, "least_0.02")}, in the same {len(long)}; with the curvature
        spread over ten times the coordinates, {len(spread)} prescriptions at the setting above, at
        {shares(spread, "last")} and {shares(spread, "least_0.02")}. All are of constant schedules.""",
    )


def price_of_directions() -> str:
    """Return a sentence that says by how much the certified bound of other laws of directions is above the sphere's,
    with one direction per step, at the setting of docs/results/theorem.md."""
    problem, gdp = Problem(n=10_000, d=2_000, r=8.178), float(gdp_from_epsilon(2, 1e-6))

    def price(law: str, steps: int) -> float:
        ours, sphere = (prescribe(problem, gdp, max_steps=steps, direction=name).bound for name in (law, "sphere"))
        return ours / sphere - 1

    signs = ", ".join(f"{price('rademacher', steps):.0%} at {steps:,}" for steps in (1_000, 4_672, 155_200))
    return paragraphs(
        f"""Gaussian directions, which the paper leaves open and its experiments use, cost
        {price("gaussian", 4_672):.1%} at the setting above, K = 1 and 4,672 steps. Random signs, for want of rotational
        symmetry, cost the more the more steps there are: {signs}."""
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
        f"""For 64-W-10 on digits, d from {d[0]:,.0f} to {d[-1]:,.0f}, the effective rank r goes from {before[0]:.0f} to
        {before[-1]:.0f} before training: the slope of log r against log d is {steep:.2f}, and r/(2 sqrt(d)) lies
        between {roots.min():.2f} and {roots.max():.2f}, largest in the middle. After training it goes from
        {after[0]:.1f} to {after[-1]:.0f}: slope {flat:.2f}, and r/log(d) between {logs.min():.2f} and
        {logs.max():.2f}. Low effective rank holds here after training only."""
    )


def audit_bounds() -> str:
    """Return sentences that say how near an audit's lower bounds come to the exact epsilon of the Gaussian
    mechanism."""
    rows = having(read_rows(RESULTS / "lower_bounds"), mechanism="gaussian")

    def reached(method: str) -> tuple[int, float, float]:
        part = rows[rows["method"] == method]
        most = part[part["size"] == part["size"].max()]
        shares = most["median"] / most["exact"]
        return int(part["size"].max()), shares.min(), shares.max()

    (runs, gdp, _), (fewer, turns, _) = reached("attack, gdp"), reached("sequential, gdp")
    (_, least, most), (canaries, *_), (_, _, one) = reached("attack"), reached("one run"), reached("one run, gdp")
    _, alone, best = reached("one run, independent, gdp")
    over = int(rows.loc[rows["method"] == "one run, independent, gdp", "above"].max())
    return paragraphs(
        f"""On the Gaussian mechanism at mu = 1/2, 1 and 2 the median bound of an audit that takes the mechanism to be
        mu-GDP reaches {gdp:.2f} of the exact epsilon and more by {runs:,} runs and Clopper-Pearson intervals,
        {turns:.2f} and more by {fewer:,} runs and the sequential audit. The Clopper-Pearson bound on epsilon that takes
        nothing for granted reaches {least:.2f} to {most:.2f} by {runs:,} runs, and the bounds of one run of
        {canaries:,} canaries at most {one:.2f}. Where no canary's score depends on another's sign, as here, the most
        right guesses that independent signs allow (after arXiv 2509.08704) prove {alone:.2f} to {best:.2f} by the same
        canaries, and are above the truth in at most {over} of 200; the audit's check `one-run` does not use that
        bound, since in a loop's run canaries share releases."""
    )


TABLES = {
    "optimality": optimality,
    "price_of_directions": price_of_directions,
    "effective_rank": effective_rank,
    "audit_bounds": audit_bounds,
    "forged_folders": forged_folders,
}
