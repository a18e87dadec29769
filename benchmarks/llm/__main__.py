"""One run of DPZero or MeZO on a task, with a complete statement of its privacy.  python -m benchmarks llm

    python -m benchmarks llm --model FacebookAI/roberta-large --task sst2 --method dpzero --epsilon 2 --clip 200
    python -m benchmarks llm --data DIR --task sst2 --method dpzero --epsilon 2 --delta 1e-5 --steps 1000 ...

All weights of a masked or causal model of Hugging Face are trained. The defaults are the paper's for masked models
(10,000 steps, batch 64, step size 1e-6, smoothing 1e-3, 512 records a class). A run that is interrupted resumes from
its folder under --out. Other experiments of this folder choose settings and compare methods with gradients.
"""

import hashlib
import json
import sys
import time
from argparse import Namespace
from contextlib import closing
from pathlib import Path
from typing import Any

from benchmarks.kit.device import chosen_device
from benchmarks.kit.experiment import Cell, Experiment, Rows, flag
from benchmarks.llm.models import DTYPES, load, model_name
from benchmarks.llm.prompts import Prompter
from benchmarks.llm.records import Selection, splits
from benchmarks.llm.scoring import Scorer
from benchmarks.llm.tasks import KINDS, names, task
from benchmarks.pretrained import PRETRAINED
from dpzero_theory import check
from dpzero_theory.cli import Parser, input_folder, integer, number
from dpzero_theory.optim.files.statement import statement
from dpzero_theory.optim.files.transcript import RUN, read
from dpzero_theory.optim.plan import Plan
from dpzero_theory.optim.private import make_from_seed_not_private, make_private_with_epsilon
from dpzero_theory.optim.run import Run
from dpzero_theory.privacy.relation import Relation
from dpzero_theory.sphere import DIRECTIONS

PRIVATE = ("epsilon", "delta", "relation", "clip")
"""The settings of a private run alone."""
SETTINGS = (
    "model", "task", "method", *PRIVATE, "steps", "batch", "step_size", "smoothing", "direction", "directions_per_step",
    "per_class", "total", "max_length", "dtype", "seed",
)  # fmt: skip
"""The columns by which a run is known; a value that the run does not use is the word `none`."""


def _check(parser: Parser, options: Namespace) -> None:
    options.device = chosen_device(parser, options.device)
    if options.per_class is not None and options.total is not None:
        parser.error("--total must not be given with --per-class")
    if options.total is None:
        options.per_class = options.per_class or 512
    with parser.refusals("--data"):
        selection = Selection(options.per_class, options.total, options.dev, options.test)
        found = splits(task(options.task), selection, options.seed, options.data)
    with parser.refusals():
        check.integer("batch", options.batch, at_most=max(len(found.train), 1))
    with parser.refusals("--model"):
        model = load(options.model, dtype=options.dtype, device=options.device)
        check.choice("model", model.kind, KINDS[:2])
        prompter = Prompter(task(options.task), model.kind, model.tokenizer, options.max_length)
        options.scorer = Scorer(prompter.words(), model.pad, options.rows)
    options.module = model.module
    options.examples = {part: prompter.examples(getattr(found, part)) for part in ("train", "dev", "test")}


def _cell(options: Namespace) -> Cell:
    unused = PRIVATE if options.method == "mezo" else ()
    values = {name: "none" if name in unused else getattr(options, name) for name in SETTINGS}
    return {name: "none" if value is None else value for name, value in values.items()}


def _measure(options: Namespace, at: Cell) -> Rows:
    """Make the run of the settings `at`. Returns a row for each evaluation, on test records before and after it. The
    training records are never evaluated, so that nothing is learned from them but what is released."""
    shown = {round(options.steps * index / options.evaluations) for index in range(1, options.evaluations)}
    train = options.examples["train"]
    rows: list[dict[str, Any]] = []
    started = time.perf_counter()

    def after(step: int, *parts: str) -> None:
        found = {"step": step, "n": len(train), "seconds": round(time.perf_counter() - started, 2)}
        for part in filter(options.examples.get, parts):
            accuracy, loss = options.scorer.evaluated(options.module, options.examples[part])
            found |= {f"{part}_accuracy": accuracy, f"{part}_loss": loss}
            print(f"  step {step:,}: {part} accuracy {100 * accuracy:.1f}", flush=True)
        rows.append(found)

    after(0, "dev", "test")
    folder = options.out / hashlib.sha256(json.dumps(at, sort_keys=True).encode()).hexdigest()[:16]
    with closing(_begun(options, train, folder)) as run:
        run.run(lambda record: after(record.release + 1, "dev") if record.release + 1 in shown else None)
        after(options.steps, "dev", "test")
        rows[-1]["d"] = sum(p.numel() for p in options.module.parameters())
        if options.method != "mezo":
            spent = run.get_epsilon(options.delta)
            rows[-1] |= {"epsilon_upper": spent, "noise_multiplier": run.plan.noise_multiplier}
    print("not private" if options.method == "mezo" else statement(read(folder)).text())
    return rows


def _begun(options: Namespace, train: Any, folder: Path) -> Run:
    o = options
    settings: dict[str, Any] = {
        "steps": o.steps, "expected_batch": float(o.batch), "step_size": o.step_size, "smoothing": o.smoothing,
        "sampling": "poisson", "direction": o.direction, "directions_per_step": o.directions_per_step,
    }  # fmt: skip
    execution: dict[str, Any] = {
        "folder": folder, "resume": (folder / RUN).exists(), "collate": list,
        "micro_batch": len(train),  # the scorer itself puts `rows` records through the model at a time
    }  # fmt: skip
    if o.method == "mezo":
        plan = Plan.without_privacy(n=len(train), **settings)
        return make_from_seed_not_private(o.module, o.scorer.losses, train, plan, seed=o.seed, **execution)
    return make_private_with_epsilon(
        o.module, o.scorer.losses, train, target_epsilon=o.epsilon, target_delta=o.delta, clip=o.clip,
        relation=o.relation, **settings, **execution,
    )  # fmt: skip


_positive, _count = number(at_least=1e-30, at_most=1e30), integer()
EXPERIMENT = Experiment(
    name="llm",
    about=__doc__,
    key=(*SETTINGS, "step"),
    fields=(
        "n", "d", "dev_accuracy", "dev_loss", "test_accuracy", "test_loss", "epsilon_upper", "noise_multiplier",
        "seconds",
    ),
    cells=lambda options: [_cell(options)],
    keys=lambda options, at: [{**at, "step": options.steps}],
    measure=_measure,
    check=_check,
    folder=lambda options: Path("out/llm"),
    seeds=lambda options: [options.seed],
    device=lambda options: str(options.device),
    dtype="a column of the rows",
    flags=[
        flag("--model", type=model_name, default=next(iter(PRETRAINED)), help="a folder or an id of Hugging Face"),
        flag("--task", choices=names(), default="sst2"),
        flag("--method", choices=("dpzero", "mezo"), default="dpzero"),
        flag("--epsilon", type=number(above=0, at_most=1e4), default=2.0),
        flag("--delta", type=number(above=0, below=1), default=1e-5),
        flag("--relation", choices=tuple(Relation), default="add-remove"),
        flag("--clip", type=_positive, default=100.0),
        flag("--steps", type=_count, default=10_000),
        flag("--batch", type=_count, default=64, help="records in a batch on average (Poisson)"),
        flag("--step-size", type=_positive, default=1e-6),
        flag("--smoothing", type=_positive, default=1e-3),
        flag("--direction", choices=tuple(DIRECTIONS), default="gaussian"),
        flag("--directions-per-step", type=integer(1, 10**6), default=1, help="directions, clipped jointly"),
        flag("--per-class", type=_count, help="training records of each class (default 512)"),
        flag("--total", type=_count, help="training records in all, instead of per class"),
        flag("--dev", type=_count, default=1000, help="at most so many dev records"),
        flag("--test", type=_count, default=1000, help="at most so many test records"),
        flag("--max-length", type=integer(1, 10**6), help="of prompts, at most the task's"),
        flag("--dtype", choices=tuple(DTYPES), default="float32"),
        flag("--seed", type=integer(0, 2**32 - 1), default=42, help="picks the records, and MeZO's randomness"),
        flag("--data", type=input_folder(), help="folder of local files (default: Hugging Face)"),
        flag("--device", choices=("auto", "cpu", "cuda"), default="auto"),
        flag("--rows", type=integer(1, 10_000), default=16, help="records in one forward"),
        flag("--evaluations", type=integer(1, 10_000), default=5, help="on dev records"),
    ],
)  # fmt: skip

if __name__ == "__main__":
    sys.exit(EXPERIMENT.main())
