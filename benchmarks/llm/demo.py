"""Fine-tune a real sentence encoder on real sentences, privately, in minutes on a CPU.  python -m benchmarks.llm.demo

DPZero is run on SST-2: 2,048 movie-review phrases of six words or more, epsilon = 2, with the accuracy on the 872 test
sentences before and after. The label vectors and the encoder's last normalisation are trained; the layers below run
once for each phrase. Clip and step size are the best of six pairs by accuracy on 1,000 dev phrases (`python -m
benchmarks.llm.table demo --preset few-steps`), which are taken to be public and on which nothing is trained, so the
test accuracy is an honest estimate for that choice. What is trained, the batch and the directions were settled earlier,
with test accuracy in view. On data that are really private the choice would have to be paid for. One record is one
phrase, not one review.

    python -m benchmarks.llm.demo --data DIR        # DIR holds sst2_train.tsv and sst2_test.tsv
    python -m benchmarks.llm.demo                   # from Hugging Face
"""

import sys
from argparse import Namespace
from tempfile import TemporaryDirectory

from benchmarks.kit.experiment import Command, flag
from benchmarks.llm import __main__ as one_run
from benchmarks.llm.configuration import Configuration
from benchmarks.llm.grids import Row, table
from benchmarks.llm.records import load
from benchmarks.llm.tasks import task
from dpzero_theory.cli import Parser, input_folder, number, output_folder

CHOSEN = {"clip": 30.0, "step_size": 0.01}
"""The best setting on the dev phrases among the rows in benchmarks/results/llm_demo_choice."""


def grid() -> list[Configuration]:
    """The configurations that were compared: those of the table `demo`."""
    entry = table("demo", "few-steps")
    return list(entry.grid(entry.models[0], entry.tasks[0], Row("dpzero:2"), entry.seeds[0]))


def recipe() -> Configuration:
    """The configuration of the grid that has the chosen clip and step size."""
    (found,) = (c for c in grid() if {name: getattr(c, name) for name in CHOSEN} == CHOSEN)
    return found


def _body(parser: Parser, options: Namespace) -> int:
    """Run `python -m benchmarks.llm` with the recipe; without --out the ledger and the transcript are thrown away."""
    if options.data is not None:
        with parser.refusals("--data"):
            load(task("sst2"), "train", options.data)
    defaults = vars(Configuration())
    given = {name: value for name, value in vars(recipe()).items() if value != defaults[name] and value is not None}
    given |= {name: value for name, value in vars(options).items() if value is not None and name != "out"}
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
