"""How the sweeps' best errors grow with the dimension, for settings chosen on other seeds.  python -m benchmarks slopes

A setting is a combination of steps, step size and clip. A cell is a method, mode (spectrum) and dimension of a sweep.
For every cell, every output (the last iterate, the average, or x_tau) and both measurements (gradient norm and loss),
the setting with the smallest mean training value over all seeds but one is chosen, and its values on that one seed are
reported (selection `held-out`; `own` if there is one seed only). Seeds that were run only at the settings that another
seed chose are reported and choose nothing. These rows go into results/selection. `own_train` is each seed's own
smallest value; `edges` names the parameters of the chosen setting that are the smallest (-) or largest (+) of the grid,
and `beyond` is how many times larger the mean becomes, at best, without settings on these edges: far above 1, better
settings may lie beyond the edge.

For every method, mode and output, log(value) = a + slope log(d) is then fitted, over all dimensions and over the
largest three. The slope is the mean of the seeds' slopes, with a 95% interval by Student's t. These rows go into
results/slopes; `edge` is the share of problems whose chosen parameters are on an edge that costs more than 5%.

The sweep `long` has the paper's grid and its extension. `limit` has T = 0 for infinity, and alpha T as the step size
(finished rows). `rank` and `log` are experiments of `benchmarks rank`, with r fixed and with r like log d.
"""

from argparse import Namespace
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike, NDArray

from benchmarks.kit.experiment import Command, flag
from benchmarks.kit.remake import Remake, Row
from benchmarks.kit.rows import RESULTS, Results, discard, read_manifest, read_rows, rows_file
from benchmarks.kit.tables import half_width, rounded
from dpzero_theory.cli import Parser, input_folder, output_folder

Array = NDArray[np.float64]

CELL = ["method", "mode", "start", "calibration", "d"]
SETTING = ["steps", "step_size", "clip"]
SELECTION_KEY = ("sweep", *CELL, "measured", "output", "seed")
SELECTION_FIELDS = ("selection", *SETTING, "train", "test", "own_train", "edges", "beyond")
GROUP = ["sweep", "method", "mode", "start", "calibration", "output"]
KEY = (*GROUP, "measured", "range", "selection")
FIELDS = ("slope", "low", "high", "claimed", "claimed_here", "seeds", "edge")
SWEEPS = {
    "synthetic": ("synthetic", "synthetic_dpgd", "synthetic_dpgd_seeds"),
    "long": ("synthetic_long", "synthetic"),
    "limit": ("limit",),
    "rank": ("rank",),
    "log": ("rank",),
}
"""For each sweep the folders that its rows come from. Of the second folder of the sweep `long` only the cells and seeds
that are also in its first folder are used."""
OF_RANK = {"rank": ("dimension", "fixed"), "log": ("log", "c")}
"""For each sweep that comes from `benchmarks rank`: the name of the experiment there, and the name that its spectrum
has here as a mode."""
MEASURED = ("gradient", "loss")
OUTPUTS = ("last", "average", "tau")
RANGES = {"all": 0, "largest-3": -3}
POWERS = {
    "dpgd-0th": (3 / 4, 5 / 8, 1 / 2, 1 / 2),
    "dpzero": (1 / 4, 1 / 8, 0.0, 0.0),
    "dpgd": (1 / 4, 1 / 8, 0.0, 0.0),
}
"""For each method, in modes a, b, c and fixed, the power of d in the paper's upper bound on the gradient norm: half of
that in Table tab:compare, which is for the squared norm, with r = d, sqrt(d), log d or a constant."""
GAP_GROWTH = {"a": 1 / 2, "b": 1 / 4, "c": 0.0, "fixed": 0.0}
"""What must be added to the powers, by mode. The paper's table holds the gap F_S(x_0) - F_S^* fixed. Here it is about
r/2, which adds half the power with which r grows."""
CAP = 1.05
"""If the last value of a grid is better than the one before it by at most this ratio, the grid's edge counts as a limit
that is reached."""


def select(rows: pd.DataFrame, measured: str, output: str) -> Iterator[dict[str, Any]]:
    """Choose a setting for each method, problem and seed in a sweep's rows, and yield a row with what it gives on that
    seed. It is the one with the smallest mean training value over the other seeds, or, if there are none, over that
    seed. `measured` is "gradient" (its norm) or "loss", and `output` is "last", "average" or "tau" for x_tau. Nothing
    is yielded for what the rows do not have."""
    column, other = (f"{measured}_{on}_{output}" for on in ("train", "test"))
    if column not in rows:
        return
    for cell, part in rows.groupby(CELL):
        table = part.pivot_table(index=SETTING, columns="seed", values=column)
        tests = part.pivot_table(index=SETTING, columns="seed", values=other) if other in part else None
        values, settings = table.to_numpy(), np.array(table.index.to_list())
        # a seed has the whole grid if it has half as many values as the seed with the most: single runs may diverge
        count = np.isfinite(values).sum(axis=0)
        whole, seeds = 2 * count >= count.max(), table.columns.to_numpy()
        for index in np.flatnonzero(~whole) if not whole.all() else range(len(whole)):
            others = np.arange(len(whole)) != index if len(whole) > 1 else whole
            run = np.isfinite(values[:, index]) | whole[index]
            best = int(np.nanargmin(np.where(run, values[:, others].mean(axis=1), np.nan)))
            mean = values[:, others & whole].mean(axis=1)
            ends = zip(settings[best], settings.min(axis=0), settings.max(axis=0), strict=True)
            edge = np.array([at in (low, high) and low < high for at, low, high in ends])
            inside = mean[~(settings == settings[best])[:, edge].any(axis=1)]
            signs = np.where(settings[best] == settings.min(axis=0), "-", "+")
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
                "edges": " ".join(f"{SETTING[i]}{signs[i]}" for i in np.flatnonzero(edge)),
                "beyond": rounded(np.nanmin(inside) / mean[best]) if len(inside) else None,
            }


def load(folder: Path, sweep: str) -> tuple[pd.DataFrame | None, dict[str, str]]:
    """Return the rows of a sweep, a key of SWEEPS, from its folders below `folder` (None if its first folder is
    missing), and the SHA-256 of the rows in each folder that they come from."""
    there = [folder / name for name in SWEEPS[sweep] if rows_file(folder / name)]
    if not there or there[0].name != SWEEPS[sweep][0]:
        return None, {}
    tables = [read_rows(path) for path in there]
    if sweep == "long":
        own = tables[0][[*CELL, "seed"]].drop_duplicates()
        tables[1:] = [table.merge(own, on=[*CELL, "seed"]) for table in tables[1:]]
    rows = pd.concat(tables, ignore_index=True)
    if sweep == "long":
        rows = rows.drop_duplicates([*CELL, "seed", *SETTING])
    source = {path.name: read_manifest(path)["sha256"] for path in there}
    if sweep in OF_RANK:
        return _of_rank(rows, *OF_RANK[sweep]), source
    return (rows.assign(steps=0, step_size=rows["time"]) if "time" in rows else rows), source


def _of_rank(rows: pd.DataFrame, experiment: str, mode: str) -> pd.DataFrame:
    """Return the rows of an experiment of `benchmarks rank` with the columns of `benchmarks synthetic`, and with `mode`
    as the name of its spectrum. Step sizes are given in units of 1/(r + 2), with r the effective rank, and clips in
    those of the experiment's grid, so that rows of different problems have the same settings."""
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


def slope(d: ArrayLike, values: ArrayLike) -> float:
    """Return the least-squares slope of log(values) against log(d), natural logarithms: the power of d with which the
    values grow. All numbers must be positive, with at least two different d."""
    x = np.log(np.asarray(d, dtype=float))
    centred = x - x.mean()
    return float(centred @ np.log(np.asarray(values, dtype=float)) / (centred @ centred))


def interval(slopes: Sequence[float]) -> tuple[float, float | None, float | None]:
    """Return the mean of the slopes, one per seed, and the ends of a 95% interval for its expectation, by Student's t.
    The ends are None for fewer than two slopes."""
    mean, half = float(np.mean(slopes)), half_width(slopes)
    return (mean, None, None) if len(slopes) < 2 else (mean, mean - half, mean + half)


def fits(selected: pd.DataFrame) -> list[dict[str, Any]]:
    """Return the rows of results/slopes, from those of results/selection."""
    found: list[dict[str, Any]] = []
    for keys, cells in selected[selected["measured"] == "gradient"].groupby(GROUP):
        sizes = cells.groupby("seed")["d"].nunique()
        # only the seeds that have all dimensions are used
        group = cells[cells["seed"].isin(sizes.index[sizes == sizes.max()])]
        names = dict(zip(GROUP, map(str, keys), strict=True))
        claimed = POWERS[names["method"]][list(GAP_GROWTH).index(names["mode"])]
        bounds = {"claimed": claimed, "claimed_here": claimed + GAP_GROWTH[names["mode"]]}
        ways = [("own", "gradient_train", "own_train")]
        ways += [(cells["selection"].iloc[0], f"gradient_{on}", on) for on in ("train", "test")]
        for selection, measured, column in ways:
            if group[column].isna().any() or (selection == "own" and column == "train"):
                continue
            for name, first in RANGES.items():
                taken = group[group["d"].isin(sorted(group["d"].unique())[first:])]
                slopes = [slope(part["d"], part[column]) for _, part in taken.groupby("seed")]
                mean, low, high = interval(slopes)
                edge = float((taken["beyond"].where(taken["edges"].notna(), 1) > CAP).mean())
                key = {**names, "measured": measured, "range": name, "selection": selection}
                found.append(
                    {**key, "slope": mean, "low": low, "high": high, **bounds, "seeds": len(slopes), "edge": edge}
                )
    return found


def _again(row: Row) -> Iterator[dict[str, Any]]:
    rows, _ = load(RESULTS, row["sweep"])
    if rows is not None:
        yield from ({"sweep": row["sweep"], **found} for found in select(rows, row["measured"], row["output"]))


REMAKES = {
    "selection": Remake(SELECTION_KEY, _again),
    "slopes": Remake(KEY, lambda row: fits(read_rows(RESULTS / "selection"))),
}


def _save(
    folder: Path, key: Sequence[str], fields: Sequence[str], rows: Sequence[Mapping[str, Any]], source: Any
) -> None:
    discard(folder)
    seeds = sorted({row["seed"] for row in rows if "seed" in row})
    settings = {"rows": source}
    with Results(
        folder, key=key, fields=fields, seeds=seeds, device="cpu", dtype="float64", settings=settings
    ) as results:
        results.add(rows)


def _body(parser: Parser, options: Namespace) -> None:
    found: list[dict[str, Any]] = []
    source: dict[str, str] = {}
    with parser.refusals("--rows"):
        for sweep in SWEEPS:
            rows, names = load(options.rows, sweep)
            if rows is not None:
                source |= names
                chosen = [row for what in MEASURED for output in OUTPUTS for row in select(rows, what, output)]
                found += [{"sweep": sweep, **row} for row in chosen]
                print(f"{sweep}: {len(rows):,} rows, {len(chosen):,} selected", flush=True)
    if not found:
        parser.error(f"--rows must be a folder with rows of {', '.join(SWEEPS)}; got {str(options.rows)!r}")
    _save(options.out / "selection", SELECTION_KEY, SELECTION_FIELDS, found, source)
    made = read_manifest(options.out / "selection")["sha256"]
    _save(options.out / "slopes", KEY, FIELDS, fits(read_rows(options.out / "selection")), {"selection": made})


EXPERIMENT = Command(
    "slopes",
    __doc__,
    _body,
    [
        flag("--rows", type=input_folder(), default=RESULTS, help="folder of the sweeps' folders"),
        flag("--out", type=output_folder, default=RESULTS, help="folder of the folders selection and slopes"),
    ],
)
