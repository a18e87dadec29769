"""Time of one private run of 64,000 directions, beside an older build.

    python -m benchmarks llm.run_time --data DIR --old CHECKOUT

SmolLM2-135M's last normalisation, 1,024 phrases of SST-2, 64 directions in each of 1,000 steps, batches of 64, with the
epsilon of `directions_total`. The builds take turns, each run in a process of its own with one thread of torch; the
time is that of the run with the search for its noise, without the model's loading.
"""

import json
import os
import subprocess
import sys
from argparse import Namespace
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.kit.experiment import Cell, Experiment, flag
from dpzero_theory.cli import input_folder

ROUNDS, STEPS, K, N, BATCH, CLIP, STEP_SIZE = 3, 1000, 64, 1024, 64, 40.0, 0.02
_BOTH = """
import json, sys, time
from pathlib import Path
import torch
torch.set_num_threads(1)
begun = {}
def after(step):
    if step == 0:
        begun.update(cpu=time.process_time(), wall=time.perf_counter())
from benchmarks.llm import last_norm
"""
_RUNS = {
    "old": f"""
from benchmarks.training.pretrained import cache
work = last_norm.prepared({{"train": last_norm.texts(Path(sys.argv[1]))["train"][:{N}]}}, cache() / "old")
at = dict(method="dpzero", n={N}, epsilon="2", seed=1, steps={STEPS}, batch={BATCH}, directions={K}, clip={CLIP})
spent = last_norm.trained(work, at, {STEP_SIZE}, after)
""",
    "new": f"""
from benchmarks.llm import tuned
from benchmarks.llm.top import NORM, TRAINED
work = last_norm.prepared(Path(sys.argv[1]))
how = tuned.Recipe("dpzero", 2.0, steps={STEPS}, batch={BATCH}, step_size={STEP_SIZE}, clip={CLIP}, directions={K},
                   points_at_once=17)
data = tuned.first(work.states(0)["train"], {N})
spent = tuned.trained(how, work.top(TRAINED[NORM]), work.losses, data, after)
""",
}
_TOLD = """
print(json.dumps(dict(processor_s=round(time.process_time() - begun["cpu"], 2),
                      wall_s=round(time.perf_counter() - begun["wall"], 2), epsilon_upper=spent["epsilon_upper"])))
"""


def _folder(options: Namespace, build: str) -> Path:
    return Path(options.old) if build == "old" else Path(__file__).parents[2]


def _cells(options: Namespace) -> Iterator[Cell]:
    for number in range(ROUNDS):
        yield from ({"build": build, "round": number} for build in ("old", "new"))


def _measured(options: Namespace, at: Cell) -> dict[str, Any]:
    folder = _folder(options, at["build"])
    environment = {**os.environ, "PYTHONPATH": str(folder), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "-c", _BOTH + _RUNS[at["build"]] + _TOLD, str(options.data.resolve())],
        cwd=folder, env=environment, check=True, capture_output=True, text=True,
    )  # fmt: skip
    commit = subprocess.run(["git", "rev-parse", "--short=8", "HEAD"], cwd=folder, capture_output=True, text=True)
    return {"commit": commit.stdout.strip(), **json.loads(done.stdout.splitlines()[-1])}


EXPERIMENT = Experiment(
    name="llm.run_time",
    about=__doc__,
    flags=[
        flag("--data", type=input_folder(), required=True, help="folder of local files"),
        flag("--old", type=input_folder(), required=True, help="the older checkout"),
    ],
    folder="llm_run_time",
    key=("build", "round"),
    fields=("commit", "processor_s", "wall_s", "epsilon_upper"),
    seeds=(0,),
    dtype="float32",
    settings={"model": "smollm2", "n": N, "batch": BATCH, "directions_per_step": K, "steps": STEPS, "epsilon": 2.0},
    cells=_cells,
    measure=_measured,
    reads_rows=True,
)
