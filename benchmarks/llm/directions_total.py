"""Accuracy against the number of directions in all: the last normalisation of a language model, three tasks.

    python -m benchmarks pretrained smollm2                          # the model, once
    python -m benchmarks llm.directions_total --data DIR             # resumable; --tasks sst2 --epsilons 2: some of it
    python -m benchmarks llm.directions_total --summary              # the table
    python -m benchmarks llm.directions_total --data DIR --model mpnet    # a sentence encoder, with rows of its own

DPZero makes T steps with K directions each, beside DP-AdamW and AdamW on the same weights (the gain of the last
normalisation), the same 1,024 records, epsilon, relation and accountant. A run has K T directions in all. With clip
G sqrt(K) and a step size that does not depend on K, the noise of a coordinate is that of a gradient method with clip G,
for every K. What K T buys is how well the directions span the 576 weights.

    python -m benchmarks llm.directions_total --data DIR --shaped --out benchmarks/results/llm_directions_shaped

The last line makes the same runs of DPZero with directions of a public shape (`optim.losses.shaping`), from the
gradients of the dev records at the start.

With `--geodpzo` they are made by the rule of GeoDPZO, which clips at C/sqrt(2) where C is the clip above, from the same
step sizes. DP-AggZO's rule for K directions is that of DPZero here: it clips the vector of a record's K differences.

A batch has a quarter of the records where a run has at most 250 steps, and a sixteenth where it has more. K, T and the
step size of DPZero, and T and the step size of the others, are chosen by the accuracy on public dev records: first on a
grid; then, as long as the best trial is at an edge of what was tried, beyond it (`beyond`).

Of the sentence encoder the last normalisation and a vector for each class are trained (`benchmarks.llm.encoder`), and
MeZO, which is DPZero without clip and noise, stands beside.
"""

import math
import sys
from argparse import Namespace
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pandas as pd

from benchmarks.kit.experiment import Cell, Rows, flag
from benchmarks.kit.rows import RESULTS, having, read_rows
from benchmarks.kit.tables import markdown
from benchmarks.llm import last_norm, last_norm_tasks, tuned
from benchmarks.llm.encoder import Sentences
from benchmarks.llm.tasks import task
from benchmarks.llm.top import MODEL, NORM, TRAINED, Records
from benchmarks.llm.tuned import CHOSEN, NONE, Recipe, Study, first, studied, timed
from dpzero_theory.optim.losses.shaping import public_shape

N, SMOOTHING = 1024, 1e-2
TASKS = ("sst2", "trec", "sst5")
SIZES = {"sst2": last_norm_tasks.Size(N, 500, last_norm.TEST, last_norm.LENGTH), **last_norm_tasks.SIZES}
"""The sizes of the tasks with a sentence encoder."""
EPSILONS = ("2", "0.5", "6", "0.25", "0.1")
SPLITS: dict[int, tuple[tuple[int, int], ...]] = {
    1_000: ((1, 1000), (16, 62)),
    4_000: ((16, 250), (64, 62)),
    16_000: ((16, 1000), (64, 250), (256, 62)),
    64_000: ((64, 1000), (256, 250)),
    256_000: ((256, 1000),),
}
"""The pairs (K, T) that are compared, by about K T."""
BY = ("task", "method", "epsilon", "directions")
"""What tells choices of a setting apart."""
RULES = ("dpzero", "shaped", "geodpzo")
MEZO = 16_000
"""The K T of MeZO."""
SCALES = (1.0, 3.0, 10.0)
"""The step sizes of DPZero and MeZO that are compared, in units of 1/G^2, where G is the median gradient norm of dev
records."""
RATES = {"dp-adamw": (0.01, 0.03, 0.1), "adamw": (0.003, 0.01, 0.03)}
STEPS = (60, 250, 1000)
"""The numbers of steps and the step sizes of AdamW and DP-AdamW that are compared."""
ENCODER = (
    {1_000: ((16, 62),), 4_000: ((16, 250),), 16_000: ((16, 1000),), 64_000: ((64, 1000),)},
    (0.5, 1.5, 5.0),
    {"dp-adamw": (0.001, 0.003, 0.01), "adamw": (0.0003, 0.001, 0.003)},
)
"""The pairs (K, T) and the step sizes that are compared with a sentence encoder. Those of zeroth-order methods are for
runs of 250 steps; with T steps they are 250/T times as long."""


def _grid(model: str) -> tuple[Mapping[int, Any], Sequence[float], Mapping[str, Sequence[float]]]:
    return (SPLITS, SCALES, RATES) if model == MODEL else ENCODER


def _settings(model: str, at: Cell) -> list[tuple[int, int, float]]:
    """Return the settings (K, T, step size) that are compared; K is 0 for methods with gradients."""
    splits, scales, rates = _grid(model)
    if at["method"] == "zero-shot":
        return [(0, 0, 0.0)]
    if at["method"] in (*RULES, "mezo"):
        length = {steps: 1.0 if model == MODEL else 250 / steps for _, steps in splits[at["directions"]]}
        return [(k, steps, scale * length[steps]) for k, steps in splits[at["directions"]] for scale in scales]
    return [(0, steps, rate) for steps in STEPS for rate in rates[at["method"]]]


def beyond(tried: pd.DataFrame) -> tuple[int, int, float] | None:
    """Return the next setting (K, T, step size) to try, None if the best of the trial runs `tried` is at no edge.

    The edges are the smallest and the largest step size with the best run's K and T and, for methods with gradients,
    the largest T. Beyond them the step size is a third, or three times as large; T is four times as large, with a third
    of the step size.
    """
    k, steps, scale = _best(tried)
    scales = having(tried, k=k, steps=steps)["scale"]
    if scale == scales.min():
        return k, steps, float(f"{scale / 3:.3g}")
    if scale == scales.max():
        return k, steps, float(f"{3 * scale:.3g}")
    if k == 0 and steps == tried["steps"].max():
        return 0, 4 * steps, float(f"{scale / 3:.3g}")
    return None


def _best(tried: pd.DataFrame) -> tuple[int, int, float]:
    best = tried.iloc[int(tried["dev_accuracy"].to_numpy().argmax())]  # of equal ones the first
    return int(best["k"]), int(best["steps"]), float(best["scale"])


def _prepared(name: str, options: Namespace) -> Records:
    if options.model != MODEL:
        work = Sentences(task(name), SIZES[name].length, options.model)
        for part, found in last_norm_tasks.texts(name, options.data, SIZES[name]).items():
            work.add(part, found)
        return work
    return (
        last_norm.prepared(options.data)
        if name == last_norm.TASK
        else last_norm_tasks.prepared(name, "paper", options.data)
    )


def _kinds(options: Namespace) -> Iterator[tuple[Cell, int]]:
    rule = RULES[1 if options.shaped else 2 if options.geodpzo else 0]
    for epsilon in options.epsilons:
        for name in options.tasks:
            common = {"task": name, "directions": 0}
            if epsilon == options.epsilons[0]:
                yield {**common, "method": "zero-shot", "epsilon": NONE}, 1
            if epsilon == options.epsilons[0] and rule == "dpzero":
                yield {**common, "method": "adamw", "epsilon": NONE}, options.seeds
            if rule == "dpzero":
                yield {**common, "method": "dp-adamw", "epsilon": epsilon}, options.seeds
            for directions in _grid(options.model)[0]:
                if options.least <= directions <= options.most:
                    yield {**common, "method": rule, "epsilon": epsilon, "directions": directions}, options.seeds
    for name in options.tasks if options.model != MODEL and rule == "dpzero" else ():
        yield {"task": name, "method": "mezo", "epsilon": NONE, "directions": MEZO}, options.seeds


def _measured(options: Namespace, at: Cell) -> Rows:
    """Return the row of a run. Before that of a reported run are those of the trial runs beyond the grid that its
    choice needs and that are not there yet."""
    if at["setting"] != CHOSEN or at["method"] == "zero-shot":
        return STUDIES[options.model].measure(options, at)
    tried = having(read_rows(options.out), seed=0, **{name: at[name] for name in BY})
    more: list[dict[str, Any]] = []
    while setting := beyond(tried):
        trial = {**at, "setting": str(len(tried)), "seed": 0}
        more.append({**trial, **_run(options, trial, *setting)})
        tried = pd.concat([tried, pd.DataFrame(more[-1:])], ignore_index=True)
    return [*more, _run(options, at, *_best(tried))]


def _trial(options: Namespace, at: Cell, number: int) -> dict[str, Any]:
    return _run(options, at, *_settings(options.model, at)[number])


def _run(options: Namespace, at: Cell, k: int, steps: int, size: float) -> dict[str, Any]:
    if options.work is None or options.work[0] != at["task"]:
        options.work = at["task"], _prepared(at["task"], options)
    work = options.work[1]
    top, data, how = work.top(TRAINED[NORM]), first(work.states(0)["train"], N), None
    if steps:
        norm = work.gradient_norm(TRAINED[NORM], "dev", SMOOTHING)
        shape = public_shape(top, work.losses, work.states(0)["dev"]) if at["method"] == "shaped" else ""
        clip = norm * math.sqrt(max(k, 1) / (2 if at["method"] == "geodpzo" else 1))
        how = Recipe(
            "dpzero" if at["method"] in RULES else at["method"],
            None if at["epsilon"] == NONE else float(at["epsilon"]),
            steps=steps, batch=len(data) // 4 if steps <= 250 else len(data) // 16,
            step_size=size / norm**2 if k else size, clip=clip, directions=max(k, 1), smoothing=SMOOTHING,
            # more points in one pass take longer: their activations no longer fit into the cache
            seed=at["seed"], points_at_once=min(k + 1, 17), shape=shape,
        )  # fmt: skip
    row = timed(work, top, how, data, "dev")[-1]
    found = {name: value for name, value in row.items() if name != "step"}
    return {"n": len(data), "k": k, "steps": steps, "scale": size, **found}


def ends(rows: pd.DataFrame) -> dict[tuple[str, ...], tuned.End]:
    """Return the test accuracy of the reported runs in `rows`, by task, method, epsilon and K T (0 for others)."""
    return tuned.ends(rows, *BY)


def table(rows: pd.DataFrame) -> str:
    """Return a table of the test accuracy of the reported runs: a line for each task and epsilon. An asterisk is at
    runs whose step size or T is at an edge of what was tried."""
    trials = rows[rows["seed"] == 0].groupby(list(BY))
    at_edge = {tuple(map(str, at)) for at, tried in trials if beyond(tried)}
    found, lines = {at: end.text() + "*" * (at in at_edge) for at, end in ends(rows).items()}, []
    heads = ["task", "epsilon", *(f"K T = {directions:,}" for directions in SPLITS), "DP-AdamW", "AdamW", "zero-shot"]
    for name in TASKS:
        for epsilon in EPSILONS:
            keys = [
                *(("dpzero", epsilon, str(directions)) for directions in SPLITS), ("dp-adamw", epsilon, "0"),
                ("adamw", NONE, "0"), ("zero-shot", NONE, "0"),
            ]  # fmt: skip
            if any((name, *key) in found for key in keys[: len(SPLITS)]):
                lines.append([task(name).title, epsilon, *(found.get((name, *key), "-") for key in keys)])
    return markdown(heads, lines)


def shaped_table(rows: pd.DataFrame, shaped: pd.DataFrame, adam: pd.DataFrame) -> str:
    """Return a table of the test accuracy of the reported runs without and with a public shape, the gain in points with
    its 95% interval, and DP-AdamW without and with it (rows `adam`): a line for each task, epsilon and K T."""
    found, other, lines = ends(rows), ends(adam), []
    order = sorted(ends(shaped).items(), key=lambda one: (TASKS.index(one[0][0]), one[0][2], int(one[0][3])))
    for (name, method, epsilon, directions), end in order:
        if method == "shaped":
            plain, key = found[name, "dpzero", epsilon, directions], (name, "dp-adamw", epsilon, "0")
            both = (one[key].text() if key in one else "-" for one in (found, other))
            lines.append(
                [task(name).title, epsilon, f"{int(directions):,}", plain.text(), end.text(), _gain(end, plain), *both]
            )
    return markdown(["task", "epsilon", "K T", "no shape", "shape", "gain", "DP-AdamW", "with the shape"], lines)


def rules_table(rows: pd.DataFrame) -> str:
    """Return a table of the test accuracy of the reported runs by DPZero and by GeoDPZO's rule, and the difference in
    points with its 95% interval: a line for each task, epsilon and K T."""
    found, lines = ends(rows), []
    for (name, method, epsilon, directions), end in found.items():
        if method == "geodpzo":
            plain = found[name, "dpzero", epsilon, directions]
            lines.append(
                [task(name).title, epsilon, f"{int(directions):,}", plain.text(), end.text(), _gain(end, plain)]
            )
    return markdown(["task", "epsilon", "K T", "clip C, DPZero and DP-AggZO", "clip C/sqrt(2), GeoDPZO", "gain"], lines)


def _gain(end: tuned.End, plain: tuned.End) -> str:
    return f"{end.mean - plain.mean:+.1f} +- {math.hypot(end.half, plain.half):.1f}"


def splits_table(rows: pd.DataFrame) -> str:
    """Return a table of the dev and test accuracy of the trial runs at epsilon = 2 by K and T, each with its best step
    size: what K is worth at equal K T."""
    mine = rows[(rows["method"] == "dpzero") & (rows["seed"] == 0) & (rows["epsilon"].astype(str) == "2")]
    lines, tasks = [], [name for name in TASKS if name in set(mine["task"])]
    for (directions, k, steps), part in mine.groupby(["directions", "k", "steps"], sort=True):
        best = part.sort_values("dev_accuracy", ascending=False).groupby("task").first()
        shown = (f"{100 * best['test_accuracy'][name]:.1f}" if name in best.index else "-" for name in tasks)
        lines.append([f"{directions:,}", str(k), str(steps), *shown])
    return markdown(["K T", "K", "T", *(task(name).title for name in tasks)], lines)


def _study(model: str) -> Study:
    return Study(_kinds, lambda at: len(_settings(model, at)), BY, _trial)


STUDIES = {name: _study(name) for name in (MODEL, "mpnet")}
EXPERIMENT = studied(
    "directions_total",
    __doc__,
    STUDIES[MODEL],
    cells=lambda options: STUDIES[options.model].cells(options),
    measure=_measured,
    seeds=5,
    folder=lambda options: RESULTS / ("llm_directions_total" + f"_{options.model}" * (options.model != MODEL)),
    flags=[
        flag("--model", choices=tuple(STUDIES), default=MODEL, help=f"which model (default: {MODEL})"),
        flag("--tasks", nargs="+", choices=TASKS, default=list(TASKS), help="which tasks (default: all)"),
        flag("--epsilons", nargs="+", choices=EPSILONS, default=list(EPSILONS), help="which (default: all)"),
        flag("--shaped", action="store_true", help="only runs whose directions have a public shape"),
        flag("--geodpzo", action="store_true", help="only runs by GeoDPZO's rule"),
        flag("--least", type=int, choices=tuple(SPLITS), default=0, help="the smallest K T that is run"),
        flag("--most", type=int, choices=tuple(SPLITS), default=max(SPLITS), help="the largest K T that is run"),
    ],
    key=("task", "method", "epsilon", "directions", "setting", "seed"),
    fields=(
        "n", "k", "steps", "scale", "dev_accuracy", "dev_loss", "test_accuracy", "test_loss", "epsilon_upper",
        "noise_multiplier", "seconds",
    ),
    settings=lambda options: {
        "model": options.model, "batch": "n/4 up to 250 steps, n/16 beyond", "adamw steps": str(STEPS),
        "beyond the grid": "while the best is at an edge",
        "smoothing": SMOOTHING, "clip": "sqrt(K) times the median gradient norm", "n": N,
        "prompt": "the paper's" if options.model == MODEL else "label sentences",
        "trained": "the last normalisation" + " and the label vectors" * (options.model != MODEL),
        **dict(zip(("splits", "scales", "rates"), map(str, _grid(options.model)), strict=True)),
    },
    summary=lambda out: table(read_rows(out)) + "\n\n" + splits_table(read_rows(out)),
)  # fmt: skip

if __name__ == "__main__":
    sys.exit(EXPERIMENT.main())
