"""Run or resume all rows of one of the paper's tables; ours beside the paper's.  python -m benchmarks.llm.table NAME

    python -m benchmarks.llm.table tab:dpzero-mezo --preset full --device cuda
    python -m benchmarks.llm.table tab:dpzero-mezo --preset few-steps --data DIR

Where a row of the table has a grid of settings, they are compared by the metric on the dev records, which are taken to
be public: its mean over the first `grid_seeds` seeds. The other seeds run the best setting. The table's epsilon is that
of one run; `search` is the number of runs compared. Beside the rows, FOLDER_summary has a row for each number of the
table. `fig:clip_lr` is a table too: all points of its grid, evaluated along the run. Memory tables:
benchmarks.llm.memory.
"""

import sys
from argparse import Namespace
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.kit.device import chosen_device
from benchmarks.kit.experiment import Command, flag
from benchmarks.kit.rows import RESULTS, Results, read_rows
from benchmarks.llm.configuration import Configuration
from benchmarks.llm.flags import model_name
from benchmarks.llm.grids import PRESETS, Row, Table, names, table
from benchmarks.llm.models import LanguageModel, load
from benchmarks.llm.records import Splits, splits
from benchmarks.llm.records import load as read
from benchmarks.llm.report import best, last_step, report, save_summary
from benchmarks.llm.runs import FIELDS, KEY, execute
from benchmarks.llm.tasks import task
from dpzero_theory.cli import Parser, Several, input_folder, integer, output_folder

Load = Callable[[str, str], LanguageModel]
"""A function from a model's name and a dtype to the model."""


def run_table(
    entry: Table,
    results: Results,
    *,
    data: Path | None,
    runs: Path,
    rows: int,
    load_model: Load,
    say: Callable[[str], None] = print,
) -> None:
    """Make the runs of the table that are not in `results` yet, seed by seed, so that every cell has a number early.

    entry: the table. results: where the rows are kept. data: a folder of local files, else Hugging Face. runs: the
    parent of the runs' folders. rows: records in one forward pass. load_model: loads a model by name and dtype. say: is
    called with lines that say what happens.
    """
    loaded: dict[tuple[str, str], LanguageModel] = {}
    for seed in entry.seeds:
        for model in entry.models:
            for task_name in entry.tasks:
                found: Splits | None = None
                for row in entry.rows:
                    for c in _configurations(entry, results, model, task_name, row, seed):
                        if results.done(**c.key(), step=last_step(c)):
                            continue
                        key = (model, c.dtype)
                        if key not in loaded:
                            loaded = {key: load_model(*key)}
                        found = found or splits(task(task_name), c.selection, seed, data)
                        outcome = execute(
                            c,
                            loaded[key],
                            folder=runs,
                            data=data,
                            rows=rows,
                            evaluations=entry.evaluations,
                            found=found,
                        )
                        results.add([line for line in outcome.rows if not results.done(**{k: line[k] for k in KEY})])
                        last = outcome.rows[-1]
                        metric = "" if last["test_metric"] is None else f"{100 * last['test_metric']:.1f}"
                        say(f"{model} {task_name} {row.label} seed {seed}: test {metric}, {last['seconds']:.0f} s")


def _configurations(
    entry: Table, results: Results, model: str, task_name: str, row: Row, seed: int
) -> list[Configuration]:
    grid, choosing = list(entry.grid(model, task_name, row, seed)), entry.seeds[: entry.grid_seeds]
    if seed in choosing or len(grid) == 1:
        return grid
    compared = [list(entry.grid(model, task_name, row, other)) for other in choosing]
    return [grid[best(read_rows(results.folder), compared)]]


def results_of(entry: Table, folder: Path, device: str, dtype: str) -> Results:
    return Results(folder, key=KEY, fields=FIELDS, seeds=entry.seeds, device=device, dtype=dtype)


def _body(parser: Parser, options: Namespace) -> int:
    """The command: make the runs of the table that are missing, and print the table beside the paper's numbers."""
    device = chosen_device(parser, options.device)
    with parser.refusals():
        entry = _narrowed(table(options.name, options.preset), options)
    place = "llm_" + entry.name.rpartition(":")[2].replace("-", "_")
    folder = options.out or (Path("out") if entry.preset == "smoke" else RESULTS) / place
    if not options.report:
        if options.data is not None:
            with parser.refusals("--data"):
                for name in entry.tasks:
                    read(task(name), "train", options.data)
        rows = results_of(entry, folder, device, str(entry.common.get("dtype", "float32")))
        with parser.opened("--out", rows) as results, parser.refusals():
            run_table(
                entry,
                results,
                data=options.data,
                runs=options.out / "runs" if options.out else Path("out/llm") / place,
                rows=options.batch_rows,
                load_model=lambda name, dtype: load(name, dtype=dtype, device=device),
                say=lambda line: print(line, flush=True),
            )
        save_summary(entry, folder)
    with parser.refusals("--out"):
        print(report(entry, read_rows(folder)))
    return 0


def _narrowed(entry: Table, options: Any) -> Table:
    values = dict(vars(entry))
    if options.model:
        values["models"] = (options.model,)
    for name, kind in (("tasks", str), ("rows", Row)):
        wanted = getattr(options, name)
        if wanted:
            chosen = tuple(map(kind, wanted))
            unknown = [part for part in chosen if part not in values[name]]
            if unknown:
                raise ValueError(f"--{name} must be some of the table's; got {wanted}")
            values[name] = chosen
    return Table(**values)


EXPERIMENT = Command(
    "llm.table",
    __doc__,
    _body,
    [
        flag("name", choices=names()),
        flag("--preset", choices=PRESETS, default="smoke"),
        flag("--model", type=model_name, help="folder or id instead of the table's models"),
        flag("--tasks", nargs="+", action=Several, help="some of the table's tasks"),
        flag("--rows", nargs="+", action=Several, help="some of the table's rows, as METHOD[:EPSILON[:DIRECTION]]"),
        flag("--data", type=input_folder(), help="folder of local files (default: Hugging Face)"),
        flag("--device", choices=("auto", "cpu", "cuda"), default="auto"),
        flag("--batch-rows", type=integer(1, 10_000), default=16),
        flag(
            "--out",
            type=output_folder,
            help="folder of rows, runs in it (default: out/llm_NAME, else benchmarks/results/llm_NAME; runs: out/llm)",
        ),
        flag("--report", action="store_true", help="print what is there and run nothing"),
    ],
)

if __name__ == "__main__":
    sys.exit(EXPERIMENT.main())
