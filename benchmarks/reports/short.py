"""The short forms of tables, for pages; the tables stand in full in a NOTES.md beside their rows."""

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Kept:
    """What the short form of a table keeps. columns: the names of the columns that are kept, each with its name in the
    short form; None for all. lines: a regular expression that a line must match somewhere to be kept. below: whether
    the paragraphs below the table are kept, too. They are the arguments of `benchmarks.kit.tables.shortened`."""

    columns: Mapping[str, str] | None = None
    lines: str = ""
    below: bool = False


KEPT: Mapping[str, Kept] = {
    "certificates": Kept(
        {
            "problem": "problem",
            "n": "n",
            "d": "d",
            "epsilon": "epsilon",
            "K = 1 certified": "sharpened: certified",
            "K = 1 measured": "measured",
            "paper certified": "Theorem 3: certified",
            "paper measured": "measured",
        },
        r"\(a\)|\(b\)|200 \| 2 |2,000|100,000 \| 8|digits|sst2",
        below=True,
    ),
    "differences": Kept(lines="sphere"),
    "differences_step": Kept(lines=r"^(minilm|smollm2), (top-norm|lora|body) \| 4 "),
    "difference_rules": Kept(
        {
            "difference": "difference",
            "K": "K",
            "certificate": "certificate",
            "mean over the run": "mean over the run",
            "last": "last",
        },
        r"^2,000 \| (central \| 3|forward \| 6|exact \| 6) \| 1 ",
    ),
    "equal_points": Kept(
        {
            "task": "task",
            "points": "evaluations",
            "central": "central",
            "forward": "forward",
            "forward over central, K = 4, 16, 64": "forward over central at equal K",
        }
    ),
    "gradient_moment": Kept(
        {
            "n": "n",
            "m": "m",
            "B": "B",
            "part of mu^2": "part of the budget",
            "certificate": "certified, moment released",
            "moment known": "moment known",
            "L = B": "L = B in place of a moment",
        },
        r"^10,000 \| . \| (2|5|20) ",
    ),
    "five_settings": Kept(
        {
            "n/B/T/epsilon/delta": "n/B/T/epsilon/delta",
            "this package": "this package",
            "dp-accounting PLD": "dp-accounting PLD",
            "dp-accounting RDP": "dp-accounting RDP",
            "Opacus PRV": "Opacus PRV",
            "times faster": "times faster",
        },
        "^60,000/",
        below=True,
    ),
    "corners": Kept(lines="^(fixed-size, replace-one|all)", below=True),
    "asked": Kept(lines="^all ", below=True),
    "adaptive_budgets": Kept(
        {
            "n/B/T/epsilon/delta": "n/B/T/epsilon/delta",
            "more noise": "a filter needs more noise than a plan",
            "or steps left": "or makes so many of the steps",
        },
        "^(60,000|1,024|10,000)/",
        below=True,
    ),
    "random_allocation": Kept(
        {
            "relation": "relation",
            "width, median": "width of the bracket, median",
            "largest": "largest",
            "time, median": "time, median",
            "sampled and inside": "sampled and inside",
        }
    ),
    "step_lengths": Kept(
        {
            "batch": "batch",
            "tokens": "tokens",
            "two forwards": "two forward passes",
            "Rademacher": "random signs",
            "Gaussian": "Gaussian",
            "four passes in place, as published": "as published",
        },
        r"^(1 \| 16|8 \| (16|256)|64 \| (16|256)) ",
    ),
    "equal_evaluations": Kept(
        {"task": "task", "K T": "K T", **{f"K = {k}": f"K = {k}" for k in (1, 4, 64, 256)}},
        "last normalisation|small encoder|SST-2|digits",
    ),
    "one_pass": Kept(
        {
            "trained": "trained",
            "small, 16 texts, K = 4": "small, 16 texts, K = 4",
            "small, 256 texts, K = 4": "small, 256 texts, K = 4",
            "minilm, 16 texts, K = 4": "MiniLM, 16 texts, K = 4",
        },
        "^(head|top-norm|lora|body) ",
    ),
    "correlated_noise": Kept(
        {
            "d": "d",
            "P": "P",
            "noise knows the directions": "noise knows the directions",
            "noise does not": "noise does not",
            "signal left": "signal left",
        },
        r"^64 \| (1|8|32|128) ",
    ),
    "shapes": Kept(
        {
            "mode": "mode",
            "B": "B",
            "gradient": "gradient",
            "height": "height",
            "estimated from 1,000": "height, B estimated from 1,000 records",
        },
        r"A\^(-1|0|1) ",
    ),
    "gpu_plans": Kept(
        {
            "job": "job",
            "what it shows": "what it shows",
            "minutes, estimated": "minutes, estimated",
            "GiB": "GiB",
            "begins at, of 40 minutes": "begins at, of 40 minutes",
        }
    ),
    "language_models": Kept(
        {"method": "method", "TREC": "TREC", "SST-2": "SST-2", "SST-5": "SST-5", "RTE": "RTE"},
        r"^(Zero-Shot|AdamW|MeZO) |\(2\)|^DPZero",
    ),
    "last_norm": Kept(
        {
            "method (epsilon)": "method (epsilon)",
            "n": "records",
            "test accuracy (%)": "test accuracy (%)",
            "gain": "gain",
            "a run": "time of a run",
        }
    ),
    "llm_last_layer": Kept(
        {
            "task": "task",
            "trained": "trained weights",
            "method": "method",
            "epsilon = 2": "epsilon = 2",
            "epsilon = 6": "epsilon = 6",
            "not private": "not private",
        }
    ),
    "only_d": Kept(
        {
            "trained": "trained weights",
            "d": "d",
            "r": "effective rank r",
            "steps, s = 0.03": "steps, s = 0.03",
            "steps, s = 0.1": "steps, s = 0.1",
        },
        below=True,
    ),
    "tuning_step": Kept(
        {
            "method": "method",
            "batch 8: time; memory": "batch 8: time; memory",
            "batch 64: time; memory": "batch 64: time; memory",
        },
        "^f32",
    ),
    "rank_dimension": Kept(
        {
            "spectrum": "spectrum",
            "iterate": "iterate",
            "": "method",
            "d = 10^2": "d = 10^2",
            "d = 10^4": "d = 10^4",
            "d = 10^7": "d = 10^7",
            "slope in d": "slope in d",
        },
        "DP(Zero|GD)",
    ),
    "synthetic_slopes": Kept(
        {
            "method": "method",
            "mode": "mode",
            "T to 5,120": "the paper's grid",
            "T to 81,920": "16 times the steps",
            "T to infinity": "any number of steps",
            "bound (here)": "paper's bound (from this start)",
        },
        r"^x_tau \| DP(Zero|GD-0th)",
    ),
    "synthetic_ratios": Kept(
        {"mode": "mode", "d = 20": "d = 20", "d = 200": "d = 200", "d = 2,000": "d = 2,000"}, "^x_tau"
    ),
}
"""By the name of the table. The short form has the name and `_short`."""
