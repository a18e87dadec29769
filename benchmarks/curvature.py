"""Does low effective rank hold? r against d before, during and after training.  python -m benchmarks curvature

Full-batch Adam trains two kinds of models: networks with 64 inputs, W hidden units and 10 outputs on digits for several
widths W, and random RoBERTa and OPT models of two layers on random tokens. At three moments of training
`dpzero_theory.curvature` measures the Hessian of the training loss and the Hessians of single samples; their effective
rank is r = trace/norm. If the number d of weights is at most 400, the eigenvalues of the full Hessian give the exact
rank, too. There is one row per model, moment and seed. The columns `samples`, `adam_steps` and `products` say how much
a row rests on. All data are public or synthetic; nothing here is private.

    python -m benchmarks curvature --preset networks                  # MLPs, RoBERTa, OPT
"""

import time
from argparse import Namespace
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from benchmarks.kit.device import one_thread
from benchmarks.kit.experiment import Cell, Experiment, flag
from benchmarks.kit.remake import Remake
from benchmarks.kit.rows import RESULTS
from benchmarks.problems import language
from dpzero_theory.cli import Parser, Several, integer
from dpzero_theory.curvature import tasks
from dpzero_theory.curvature.objective import Objective
from dpzero_theory.curvature.samples import measure_samples
from dpzero_theory.curvature.spectrum import Effort, measure_spectrum


@dataclass(frozen=True)
class Study:
    """How a kind of model is trained by Adam and measured.

    samples: the number of samples in the training loss. learning_rate: Adam's. moments: by name, the number of Adam
    steps after which the Hessian is measured. effort: how much is spent on measuring it. single: the number of samples
    whose own Hessian is measured. data: the name of the data set.
    """

    samples: int
    learning_rate: float
    moments: dict[str, int]
    effort: Effort
    single: int = 8
    data: str = "toy"


_LONG = {"before": 0, "during": 30, "after": 600}
STUDIES = {
    "mlp-digits": Study(512, 1e-2, _LONG, Effort(search=40, probes=12, steps=16), data="digits"),
    "roberta-tiny": Study(256, 1e-2, _LONG, Effort(search=40, probes=12, steps=16)),
    "opt-tiny": Study(256, 1e-2, _LONG, Effort(search=40, probes=12, steps=16)),
}
"""How each kind of model is trained and measured, by the model's name without its width."""
SAMPLE_EFFORT = Effort(search=12, probes=2, steps=4)
LEVEL = 0.95
SMALL = 400
PRESETS = {
    "smoke": ("mlp-digits:2", "mlp-digits:4"),
    "networks": (*(f"mlp-digits:{width}" for width in (4, 16, 64, 256, 1024)), "roberta-tiny", "opt-tiny"),
}
FOLDERS = {
    "smoke": Path("out") / "curvature",
    "networks": RESULTS / "curvature",
}
QUANTITIES = ("norm", "trace", "absolute_trace", "rank")
ENDS = ("low", "estimate", "high")
KEY = ("model", "moment", "seed")
FIELDS = (
    *("d", "adam_steps", "samples", "loss", "accuracy"),
    *(f"{name}_{end}" for name in (*QUANTITIES, "sample_trace") for end in ENDS),
    *("squared_frobenius", "exact_rank", "exact_absolute_trace", "sample_norm", "gradient_norm_median"),
    *("gradient_norm_largest", "products", "seconds"),
)


def study(model: str) -> Study:
    """Return how the model with this name, a kind or a kind and a width as `mlp-digits:16`, is trained and measured.
    Raises KeyError for an unknown kind."""
    return STUDIES[model.partition(":")[0]]


def run(model: str, moment: str, seed: int) -> dict[str, Any]:
    """Train a model from its start up to the moment, which is the name of a number of Adam steps, measure it, and
    return the row. `seed` draws the start, the data and the measurement's random vectors."""
    plan = study(model)
    task = language.load(model, plan.data, plan.samples, seed)
    module = task.module
    optimizer = torch.optim.Adam([p for p in module.parameters() if p.requires_grad], plan.learning_rate)
    for _ in range(plan.moments[moment]):
        optimizer.zero_grad()
        loss = torch.cat([task.losses(module, batch) for batch in task.batches]).mean()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    row = {"model": model, "moment": moment, "seed": seed, "adam_steps": plan.moments[moment], "samples": plan.samples}
    return row | _measure(Objective(module, task.losses, task.batches), module, task, plan, seed)


def _measure(objective: Objective, module: torch.nn.Module, task: tasks.Task, plan: Study, seed: int) -> dict[str, Any]:
    started = time.perf_counter()
    generator = torch.Generator().manual_seed(seed)
    x = objective.start
    found = measure_spectrum(objective.hessian(x), generator, plan.effort, LEVEL)
    single = measure_samples(objective, x, generator, plan.single, SAMPLE_EFFORT, LEVEL)
    norms = objective.gradient_norms(x)
    row: dict[str, Any] = {"d": objective.d, "loss": objective.value(x), "accuracy": _accuracy(module, task)}
    intervals = {name: getattr(found, name) for name in QUANTITIES} | {"sample_trace": single.trace}
    for name, interval in intervals.items():
        row |= {f"{name}_{end}": getattr(interval, end) for end in ENDS}
    if objective.d <= SMALL:
        sizes = _eigenvalues(objective, x).abs()
        row |= {"exact_rank": float(sizes.sum() / sizes.max()), "exact_absolute_trace": float(sizes.sum())}
    return row | {
        "squared_frobenius": float(found.weights @ found.points**2),
        "sample_norm": single.norm,
        "gradient_norm_median": float(norms.median()),
        "gradient_norm_largest": float(norms.max()),
        "products": found.products,
        "seconds": round(time.perf_counter() - started, 2),
    }


def _accuracy(module: torch.nn.Module, task: tasks.Task) -> float:
    """Return the share of the task's training samples that the module classifies correctly."""
    with torch.no_grad():
        hits = [tasks.logits(module, inputs).argmax(dim=1) == labels for inputs, labels in task.batches]
    return float(torch.cat(hits).double().mean())


def _eigenvalues(objective: Objective, x: torch.Tensor) -> torch.Tensor:
    """Return the d eigenvalues of the full Hessian at the weights x, ascending. The Hessian is formed column by column,
    and made symmetric, independently of the Lanczos method that it checks."""
    operator = objective.hessian(x)
    columns = [operator.apply(row) for row in torch.eye(objective.d, dtype=x.dtype)]
    matrix = torch.stack(columns)
    values: torch.Tensor = torch.linalg.eigvalsh((matrix + matrix.T) / 2)
    return values


# Adam in float32 enlarges differences in the last digits
REMAKES = {
    "curvature": Remake(KEY, lambda row: [run(*(row[name] for name in KEY))], varies=("seconds",), tolerance=1e-2)
}


def _check(parser: Parser, options: Namespace) -> None:
    for model in options.models or ():
        if model not in PRESETS[options.preset]:
            parser.error(f"--models must be of the preset {options.preset}; got {model!r}")
    one_thread(parser, options)


def _cells(options: Namespace) -> Iterator[Cell]:
    for seed in range(options.seeds):
        for model in options.models or PRESETS[options.preset]:
            yield from ({"model": model, "moment": moment, "seed": seed} for moment in study(model).moments)


def _measured(options: Namespace, at: Cell) -> dict[str, Any]:
    return run(**at)


def _told(at: Cell, rows: list[dict[str, Any]]) -> str:
    row = rows[0]
    return (
        f"{at['model']} (d = {row['d']}) {at['moment']}, seed {at['seed']}: effective rank {row['rank_estimate']:.3g} "
        f"in [{row['rank_low']:.3g}, {row['rank_high']:.3g}] ({row['seconds']} s)"
    )


EXPERIMENT = Experiment(
    name="curvature",
    about=__doc__,
    flags=[
        flag("--preset", choices=PRESETS, default="smoke"),
        flag("--models", nargs="+", action=Several, help="only these of the preset"),
        flag("--seeds", type=integer(1, 1000), default=3),
    ],
    folder=lambda options: FOLDERS[options.preset],
    key=KEY,
    fields=FIELDS,
    seeds=lambda options: range(options.seeds),
    dtype="float64 (digits), float32",
    settings=lambda options: {"level": LEVEL} | {model: asdict(study(model)) for model in PRESETS[options.preset]},
    check=_check,
    cells=_cells,
    measure=_measured,
    workers=1,
    told=_told,
)
