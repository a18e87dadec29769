"""The settings that a parameter search would choose, reported on other seeds.  python -m benchmarks.selection

A setting is a combination of steps, step size and clip. A cell is a method, mode (spectrum), start, calibration and
dimension of a sweep. For every cell, every output (the last iterate, the average, or x_tau) and both measurements
(gradient norm and loss), the setting with the smallest mean training value over all seeds but one is chosen. Its values
on that one seed are reported, on the training and the test sample (selection `held-out`, a row for each seed). If a
cell has one seed only, the setting is chosen on the seed that is reported (selection `own`). If some seeds were run
only at the settings that another seed chose (`benchmarks.dpgd_seeds`), only those seeds are reported, and whether a
setting is on the grid's edge is seen on the other. The column `own_train` is each seed's own smallest value, which is
what choosing and reporting on the same seed gives; it is empty if a seed has not the whole grid. Two columns say
whether the grid ends at the best setting:

- edges: the parameters of the chosen setting that are the smallest (-) or the largest (+) of the grid, empty if none
is;
- beyond: how many times larger the mean by which settings are chosen becomes, at best, if settings on these edges are
left out. If it is close to 1, the edge of the grid is a limit (T to infinity, or alpha to infinity with alpha C fixed)
that is nearly reached; if it is far above 1, better settings may lie beyond the edge.

Figures and slopes read these rows, so that all of them select alike. The sweep `long` has the paper's grid and its
extension. `limit` has T = 0 for infinity, and alpha T as the step size. `rank` and `log` are experiments of
`benchmarks.rank`, with r fixed (mode `fixed`) and with r like log d (mode c).
"""

from argparse import Namespace
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from benchmarks.kit.experiment import Experiment, flag
from benchmarks.kit.remake import Remake, Row
from benchmarks.kit.rows import RESULTS, read_manifest, read_rows
from benchmarks.kit.tables import rounded
from dpzero_theory.cli import Parser, input_folder

Array = NDArray[np.float64]

CELL = ["method", "mode", "start", "calibration", "d"]
SETTING = ["steps", "step_size", "clip"]
KEY = ("sweep", *CELL, "measured", "output", "seed")
FIELDS = ("selection", *SETTING, "train", "test", "own_train", "edges", "beyond")
SWEEPS = {
    "synthetic": ("synthetic", "synthetic_dpgd", "synthetic_dpgd_seeds"),
    "long": ("synthetic_long", "synthetic"),
    "limit": ("limit",),
    "wide": ("synthetic_wide",),
    "choices": ("synthetic_choices",),
    "rank": ("rank",),
    "log": ("rank",),
}
"""For each sweep the folders that its rows come from. The first of several must exist. Of the second folder of the
sweep `long` only the cells and seeds that are also in its first folder are used."""
OF_RANK = {"rank": ("dimension", "fixed"), "log": ("log", "c")}
"""For each sweep that comes from `benchmarks.rank`: the name of the experiment there, and the name that its spectrum
has here as a mode."""
MEASURED = ("gradient", "loss")
OUTPUTS = ("last", "average", "tau")


def select(rows: pd.DataFrame, measured: str, output: str) -> Iterator[dict[str, Any]]:
    """Choose a setting (steps, step size, clip) for each method, problem and seed in a sweep's rows, and yield a row
    with what it gives on that seed. It is the one with the smallest mean training value over the other seeds, or, if
    there are none, over that seed. `measured` is "gradient" (its norm) or "loss", and `output` is "last", "average" or
    "tau" for x_tau. Nothing is yielded for what the rows do not have."""
    column, other = (f"{measured}_{on}_{output}" for on in ("train", "test"))
    if column not in rows:
        return
    for cell, part in rows.groupby(CELL):
        table = part.pivot_table(index=SETTING, columns="seed", values=column)
        tests = part.pivot_table(index=SETTING, columns="seed", values=other) if other in part else None
        values, settings = table.to_numpy(), np.array(table.index.to_list())
        whole, seeds = _whole(values), table.columns.to_numpy()
        for index in np.flatnonzero(~whole) if not whole.all() else range(len(whole)):
            others = np.arange(len(whole)) != index if len(whole) > 1 else whole
            run = np.isfinite(values[:, index]) | whole[index]
            best = int(np.nanargmin(np.where(run, values[:, others].mean(axis=1), np.nan)))
            mean = values[:, others & whole].mean(axis=1)
            edges = _edges(settings, best)
            inside = mean[~_on(settings, best, edges)]
            yield {
                **dict(zip(CELL, cell, strict=True)),
                "measured": measured,
                "output": output,
                "seed": int(seeds[index]),
                "selection": "held-out" if values.shape[1] > 1 else "own",
                **dict(zip(SETTING, (int(settings[best][0]), *map(float, settings[best][1:])), strict=True)),
                "train": float(values[best, index]),
                "test": None if tests is None else float(tests.to_numpy()[best, index]),
                "own_train": float(np.nanmin(values[:, index])) if whole[index] else None,
                "edges": " ".join(f"{name}{sign}" for name, sign in edges),
                "beyond": rounded(np.nanmin(inside) / mean[best]) if len(inside) else None,
            }


def _whole(values: Array) -> NDArray[np.bool_]:
    """Return which seeds were run on the whole grid. `values` has a row for each setting and a column for each seed,
    NaN where a run is missing or diverged. These are the seeds with at least half as many values as the seed with the
    most, because single runs may diverge."""
    count = np.isfinite(values).sum(axis=0)
    found: NDArray[np.bool_] = 2 * count >= count.max()
    return found


def _edges(settings: Array, best: int) -> list[tuple[str, str]]:
    """Return the parameters that have, in the setting number `best`, the smallest value of the grid, each with "-", or
    the largest one, with "+". A parameter with one value in the whole grid is left out. A row of `settings` is (steps,
    step size, clip)."""
    ends = zip(SETTING, settings[best], settings.min(axis=0), settings.max(axis=0), strict=True)
    return [(name, "-" if at == low else "+") for name, at, low, high in ends if at in (low, high) and low < high]


def _on(settings: Array, best: int, edges: Sequence[tuple[str, str]]) -> NDArray[np.bool_]:
    """Return, for each row of `settings`, whether it has in one of the parameters named in `edges` (as `_edges` returns
    them) the same value as the setting number `best`. That setting itself has, unless `edges` is empty."""
    places = [SETTING.index(name) for name, _ in edges]
    shared: NDArray[np.bool_] = (settings[:, places] == settings[best, places]).any(axis=1)
    return shared


def load(folder: Path, sweep: str) -> tuple[pd.DataFrame | None, dict[str, str]]:
    """Return the rows of a sweep, a key of SWEEPS, from its folders below `folder` (None if there are none), and the
    SHA-256 of the rows in each folder that they come from. For the sweep `long` None is returned also if its first
    folder is missing."""
    names = SWEEPS[sweep]
    there = [folder / name for name in names if (folder / name / "manifest.json").exists()]
    if not there or (sweep == "long" and there[0].name != names[0]):
        return None, {}
    tables = [read_rows(path) for path in there]
    if sweep == "long":
        own = tables[0][[*CELL, "seed"]].drop_duplicates()
        tables[1:] = [table.merge(own, on=[*CELL, "seed"]) for table in tables[1:]]
        rows = pd.concat(tables, ignore_index=True).drop_duplicates([*CELL, "seed", *SETTING])
    else:
        rows = pd.concat(tables, ignore_index=True)
    source = {path.name: read_manifest(path)["sha256"] for path in there}
    if sweep in OF_RANK:
        return as_synthetic(rows, *OF_RANK[sweep]), source
    return (rows.assign(steps=0, step_size=rows["time"]) if "time" in rows else rows), source


def as_synthetic(rows: pd.DataFrame, experiment: str, mode: str) -> pd.DataFrame:
    """Return the rows of an experiment of `benchmarks.rank` with the columns of `benchmarks.synthetic`, and with `mode`
    as the name of its spectrum.

    Step sizes are given in units of 1/(r + 2), with r the effective rank, and clips in those of the experiment's grid,
    so that rows of different problems have the same settings.
    """
    part = rows[rows["experiment"] == experiment]
    unit = np.sqrt(np.where(part["method"] == "dpgd-0th", part["d"], part["directions"]))
    return part.assign(
        mode=mode,
        start="zero",
        calibration="exact",
        gradient_train_tau=np.sqrt(part["gradient_squared"]),
        gradient_train_last=np.sqrt(part["last_gradient_squared"]),
        step_size=(part["step_size"] * (part["r"] + 2)).map(rounded),
        clip=(part["clip"] / unit).map(rounded),
    )


def _again(row: Row) -> Iterator[dict[str, Any]]:
    rows, _ = load(RESULTS, row["sweep"])
    if rows is not None:
        yield from ({"sweep": row["sweep"], **found} for found in select(rows, row["measured"], row["output"]))


REMAKES = {"selection": Remake(KEY, _again)}


def _check(parser: Parser, options: Namespace) -> None:
    if any(options.out.resolve() == (options.rows / name).resolve() for names in SWEEPS.values() for name in names):
        parser.error(f"--out must not be the folder of a sweep; got {str(options.out)!r}")
    options.found, options.source = [], {}
    with parser.refusals("--rows"):
        for sweep in SWEEPS:
            rows, names = load(options.rows, sweep)
            options.source |= names
            if rows is not None:
                chosen = [row for what in MEASURED for output in OUTPUTS for row in select(rows, what, output)]
                options.found += [{"sweep": sweep, **row} for row in chosen]
                print(f"{sweep}: {len(rows):,} rows, {len(chosen):,} selected", flush=True)
    if not options.found:
        parser.error(f"--rows must be a folder with rows of {', '.join(SWEEPS)}; got {str(options.rows)!r}")


EXPERIMENT = Experiment(
    name="selection",
    about=__doc__,
    flags=[flag("--rows", type=input_folder(), default=RESULTS, help="folder of the sweeps' folders")],
    key=KEY,
    fields=FIELDS,
    seeds=lambda options: sorted({row["seed"] for row in options.found}),
    settings=lambda options: {"rows": options.source},
    figure="figures.synthetic",
    fresh=True,
    check=_check,
    measure=lambda options, at: options.found,
)
