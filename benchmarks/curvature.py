"""Does low effective rank hold? r against d before, during and after training.  python -m benchmarks.curvature

Networks 64 - W - 10 on digits for widths W, and random RoBERTa and OPT of two layers on random tokens, are trained by
full-batch Adam; at three moments the Hessian of the training loss is measured by `dpzero_theory.curvature`. Where d is
at most 400 the full Hessian gives the exact rank beside it. One row per model, moment and seed. Public and
synthetic data only; nothing here is private. The real encoder is measured by the library's own command, see
`benchmarks/results/curvature_problems`.
"""

import copy
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from benchmarks.arguments import Parser, positive_integer
from benchmarks.jobs import completed
from benchmarks.results import RESULTS, Results
from dpzero_theory.curvature import tasks
from dpzero_theory.curvature.objective import Objective
from dpzero_theory.curvature.spectrum import Effort, measure_spectrum

__all__ = ["MOMENTS", "PRESETS", "main", "run"]

MOMENTS = {"before": 0, "during": 30, "after": 600}
"""Steps of Adam."""
LEARNING_RATE = 1e-2
SAMPLES = 512
EFFORT = Effort(search=40, probes=12, steps=16)
SAMPLE_EFFORT = Effort(search=12, probes=2, steps=4)
SAMPLE_HESSIANS = 4
SMALL = 400
PRESETS = {
    "smoke": ("mlp-digits:2", "mlp-digits:4"),
    "full": (*(f"mlp-digits:{width}" for width in (4, 16, 64, 256, 1024)), "roberta-tiny", "opt-tiny"),
}
QUANTITIES = ("norm", "trace", "absolute_trace", "rank")
KEY = ("model", "moment", "seed")
FIELDS = (
    *("d", "adam_steps", "loss", "accuracy"),
    *(f"{name}_{end}" for name in QUANTITIES for end in ("low", "estimate", "high")),
    *("squared_frobenius", "exact_rank", "exact_absolute_trace", "sample_norm", "gradient_norm_median"),
    *("gradient_norm_largest", "products", "seconds"),
)


def run(model: str, seed: int) -> list[dict[str, Any]]:
    """The rows of one model and seed, a moment each."""
    task = tasks.load(model, "digits" if model.startswith("mlp") else "toy", SAMPLES, seed)
    module = copy.deepcopy(task.module)
    optimizer = torch.optim.Adam(module.parameters(), LEARNING_RATE)
    rows, steps = [], 0
    for moment, until in MOMENTS.items():
        for _ in range(until - steps):
            optimizer.zero_grad()
            loss = torch.cat([task.losses(module, batch) for batch in task.batches]).mean()
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
        steps = until
        row = {"model": model, "moment": moment, "seed": seed, "adam_steps": steps}
        rows.append(row | _measure(Objective(module, task.losses, task.batches), module, task.batches, seed))
    return rows


def _measure(objective: Objective, module: torch.nn.Module, batches: Sequence[Any], seed: int) -> dict[str, Any]:
    started = time.perf_counter()
    generator = torch.Generator().manual_seed(seed)
    x = objective.start
    found = measure_spectrum(objective.hessian(x), generator, EFFORT)
    chosen = torch.randperm(objective.n, generator=generator)[:SAMPLE_HESSIANS].tolist()
    sample_norm = max(
        measure_spectrum(objective.sample_hessian(x, i), generator, SAMPLE_EFFORT).norm.high for i in chosen
    )
    norms = objective.gradient_norms(x)
    with torch.no_grad():
        hits = torch.cat([module(inputs).argmax(dim=1) == labels for inputs, labels in batches])
    row: dict[str, Any] = {"d": objective.d, "loss": objective.value(x), "accuracy": float(hits.double().mean())}
    for name in QUANTITIES:
        interval = getattr(found, name)
        row |= {f"{name}_{end}": getattr(interval, end) for end in ("low", "estimate", "high")}
    if objective.d <= SMALL:
        sizes = _eigenvalues(objective, x).abs()
        row |= {"exact_rank": float(sizes.sum() / sizes.max()), "exact_absolute_trace": float(sizes.sum())}
    return row | {
        "squared_frobenius": float(found.weights @ found.points**2),
        "sample_norm": sample_norm,
        "gradient_norm_median": float(norms.median()),
        "gradient_norm_largest": float(norms.max()),
        "products": found.products,
        "seconds": round(time.perf_counter() - started, 2),
    }


def _eigenvalues(objective: Objective, x: torch.Tensor) -> torch.Tensor:
    """Of the full Hessian, column by column: another route than Lanczos."""
    operator = objective.hessian(x)
    columns = [operator.apply(row) for row in torch.eye(objective.d, dtype=x.dtype)]
    matrix = torch.stack(columns)
    values: torch.Tensor = torch.linalg.eigvalsh((matrix + matrix.T) / 2)
    return values


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the models and seeds that are not in the results yet."""
    parser = Parser(prog="benchmarks.curvature", description=__doc__.splitlines()[0])
    parser.add_argument("--preset", choices=PRESETS, default="smoke")
    parser.add_argument("--seeds", type=positive_integer("--seeds", 1000), default=3)
    parser.add_argument("--workers", type=positive_integer("--workers", 256), default=1)
    parser.add_argument("--out", type=Path, help="folder (default: out/curvature, else benchmarks/results/curvature)")
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    results = Results(
        options.out or (Path("out") if options.preset == "smoke" else RESULTS) / "curvature",
        key=KEY,
        fields=FIELDS,
        seeds=range(options.seeds),
        device="cpu",
        dtype="float64 (digits), float32",
        settings={"samples": SAMPLES, "learning_rate": LEARNING_RATE, "effort": vars(EFFORT)},
    )
    jobs = [(model, seed) for seed in range(options.seeds) for model in PRESETS[options.preset]]
    with results:
        todo = [
            (model, seed)
            for model, seed in jobs
            if not all(results.done(model=model, moment=moment, seed=seed) for moment in MOMENTS)
        ]
        for (model, seed), rows in completed(run, todo, options.workers):
            results.add(rows)
            ranks = ", ".join(f"{row['moment']} {row['rank_estimate']:.3g}" for row in rows)
            print(f"{model} (d = {rows[0]['d']}) seed {seed}: effective rank {ranks}", flush=True)


if __name__ == "__main__":
    main()
