"""The effective rank r beside d, for what `benchmarks.llm.only_d` trains.

    python -m benchmarks.pretrained smollm2              # the model, once
    python -m benchmarks.llm.only_d_rank --data DIR      # DIR holds sst2_train.tsv and sst2_test.tsv

Measured is the Hessian H of the mean loss of the 128 public phrases of that experiment, at the model's own weights: its
norm ||H||, its trace and that of its absolute value, and r = tr|H|/||H||, as `dpzero-curvature` measures them, with 95%
intervals. Single records' Hessians, which can only make the theory's r smaller, are not measured.
"""

import sys
from argparse import Namespace
from typing import Any

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

from benchmarks.kit.device import device_name
from benchmarks.kit.experiment import Cell, Experiment, flag
from benchmarks.kit.tables import rounded
from benchmarks.llm import only_d
from benchmarks.llm.settings import MODEL
from dpzero_theory.cli import input_folder
from dpzero_theory.curvature.objective import Objective
from dpzero_theory.curvature.spectrum import Effort, measure_spectrum

PUBLIC = "public"
NUMBERS = ("norm", "trace", "absolute_trace", "r")
EFFORT = Effort(search=12, probes=16, steps=4)
AT_ONCE = 32
"""How many records are differentiated together."""


def measured(work: only_d.Work, trained: only_d.Trained) -> dict[str, Any]:
    """Measure the Hessian of the mean loss of the public records of `work` with respect to the weights that `trained`
    names. Returns the row: d, and the norm, trace, absolute trace and effective rank with the ends of their 95%
    intervals."""
    states = work.states(trained.layers)[PUBLIC]
    batches = [states[rows] for rows in torch.split(torch.arange(len(states)), AT_ONCE)]
    objective = Objective(work.top(trained).eval(), work.losses, batches)
    with sdpa_kernel(SDPBackend.MATH):  # torch's other kernels of attention have no forward derivative
        found = measure_spectrum(objective.hessian(objective.start), torch.Generator().manual_seed(0), EFFORT)
    row: dict[str, Any] = {"d": objective.d, "records": objective.n, "products": found.products}
    for name, of in zip(NUMBERS, (found.norm, found.trace, found.absolute_trace, found.rank), strict=True):
        row |= {f"{name}_low": rounded(of.low), name: rounded(of.estimate), f"{name}_high": rounded(of.high)}
    return row


def _measure(options: Namespace, at: Cell) -> dict[str, Any]:
    if options.work is None:
        options.work = only_d.Work(options.data, [PUBLIC], options.device)
    return measured(options.work, only_d.TRAINED[at["trained"]])


EXPERIMENT = Experiment(
    name="llm.only_d_rank",
    about=__doc__,
    flags=[
        flag("--data", type=input_folder(), help="folder of local files (default: Hugging Face)"),
        flag("--trained", nargs="+", choices=tuple(only_d.TRAINED), default=only_d.LIGHT, help="default: 7 of them"),
        flag("--device", choices=("auto", "cpu", "cuda"), default="cpu"),
    ],
    folder="llm_only_d_rank",
    key=("trained",),
    fields=("d", "records", "products", *(f"{name}{end}" for name in NUMBERS for end in ("_low", "", "_high"))),
    seeds=[0],
    device=device_name,
    dtype="float32",
    settings={
        "model": MODEL, "effort": f"search {EFFORT.search}, probes {EFFORT.probes}, steps {EFFORT.steps}",
        "level": 0.95, "tokens": only_d.LENGTH,
    },
    check=only_d.EXPERIMENT.check,
    cells=lambda options: [{"trained": name} for name in options.trained],
    measure=_measure,
    told=lambda at, rows: (
        "{0}, d = {d:,}: r {r:.3g} ({r_low:.3g} to {r_high:.3g})".format(at["trained"], **rows[0])
    ),
)  # fmt: skip

if __name__ == "__main__":
    sys.exit(EXPERIMENT.main())
