"""Steps of a model that does not fit into memory: its layers come from files, one at a time.

    python -m benchmarks.llm.streamed opt-66b --device cuda
    python -m benchmarks.llm.streamed opt-tiny                    # seconds on a CPU

The step of MeZO and of DPZero is measured on batches of 8 records of random tokens; each layer is read once for both
signs (`weights.streamed`). Weights are random, and in half precision on a GPU. All layers are read from the file of one
layer, because no disk at hand holds 132 GB. After the first reading that file comes from the system's memory, so what
is measured is the way from there to the device. `read_s` is the part of a step that reading takes, and `start_s` the
time before the first step. A peak is that of the allocator (CPU: of the process). DPZero's noise comes from a seed
here, and no step is private: the start of a private run evaluates the losses in ten passes over the weights, which
takes minutes at this size and is no part of a step.
"""

import statistics
import sys
import time
from argparse import Namespace
from collections.abc import Iterator, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from safetensors.torch import save_file
from torch import nn

from benchmarks.kit.device import chosen_device, device_name
from benchmarks.kit.experiment import Experiment, flag
from benchmarks.kit.peaks import peak, reset_peak
from benchmarks.kit.rows import OK, read_rows
from benchmarks.llm import models
from benchmarks.llm.flags import model_name
from benchmarks.llm.prompts import Example
from benchmarks.llm.scoring import WordScorer
from dpzero_theory.cli import Parser, integer
from dpzero_theory.optim.plan import Plan
from dpzero_theory.optim.private import make_from_seed_not_private
from dpzero_theory.optim.weights.layers import Tensors, stream

KEY = ("model", "method", "batch", "length", "dtype")
FIELDS = ("d", "seconds", "read_s", "start_s", "peak_mib", "weights_mib")
BATCH, RECORDS = 8, 100
METHODS = ("mezo", "dpzero")


class _OneLayer(Tensors):
    """The tensors of a model whose layers all have the weights of the first; it counts the seconds of reading."""

    def __init__(self, folder: Path, layers: str) -> None:
        super().__init__(folder)
        self._layers, self.seconds = layers, 0.0

    def read(self, names: Sequence[str]) -> torch.Tensor:
        started = time.perf_counter()
        found = super().read([self._first(name) for name in names]).contiguous()
        self.seconds += time.perf_counter() - started
        return found

    def _first(self, name: str) -> str:
        number, dot, rest = name.removeprefix(self._layers).partition(".")
        return f"{self._layers}0{dot}{rest}" if name.startswith(self._layers) and number.isdigit() else name


def measure(model: str, method: str, steps: int, length: int, device: str) -> dict[str, Any]:
    """Measure `steps` steps of the method "mezo" or "dpzero", after one that is not timed, on a model with random
    weights whose layers are read from files. Returns the row of results.

    model: a name that `models.configuration` knows. length: tokens of a record. device: where the model runs, "cuda"
    (in float16) or "cpu" (in float32).
    """
    dtype = "float32" if device == "cpu" else "float16"
    config, kind = models.configuration(model)
    module: Any = models.random_model(config, kind, seed=0, dtype=dtype, device="meta")
    layers = module.get_decoder().layers
    prefix = next(name for name, part in module.named_modules() if part is layers) + "."
    with TemporaryDirectory() as name:
        source = _drawn(module, prefix, Path(name))
        before = reset_peak(device)
        stream(module, list(layers), source, device=device)
        words = int(config.vocab_size)
        ids = torch.randint(5, words, (RECORDS, length), generator=torch.Generator().manual_seed(0)).tolist()
        examples = tuple(Example(tuple(row), length - 1, index % 2) for index, row in enumerate(ids))
        scorer = WordScorer([words - 1, words - 2], pad=1, rows=BATCH)
        begun = time.perf_counter()
        run = make_from_seed_not_private(
            module, scorer.losses, examples, _plan(method, steps + 1), seed=0, folder=Path(name) / "run",
            precision="nearest" if dtype == "float32" else "stochastic", micro_batch=BATCH, collate=list,
        )  # fmt: skip
        run.catch_up()
        start, seconds, read = time.perf_counter() - begun, [], []
        while run.releases_left:
            started, source.seconds = time.perf_counter(), 0.0
            run.step()
            if device == "cuda":
                torch.cuda.synchronize()
            seconds.append(time.perf_counter() - started)
            read.append(source.seconds)
        run.close()
    weights = sum(p.numel() * p.element_size() for p in module.parameters()) / 2**20
    return {
        **dict(zip(KEY, (model, method, BATCH, length, dtype), strict=True)),
        "d": run.weights.d,
        "seconds": round(statistics.median(seconds[1:]), 4),
        "read_s": round(statistics.median(read[1:]), 4),
        "start_s": round(start, 4),
        "peak_mib": round(peak(device) - before),
        "weights_mib": round(weights),
    }


def _plan(method: str, steps: int) -> Plan:
    settings: dict[str, Any] = {
        "expected_batch": BATCH, "step_size": 1e-6, "smoothing": 1e-3, "sampling": "fixed-size",
        "direction": "rademacher",
    }  # fmt: skip
    if method == "mezo":
        return Plan.without_privacy(n=RECORDS, steps=steps, **settings)
    target: dict[str, Any] = {"target_epsilon": 6.0, "target_delta": 1e-5, "clip": 1.0, "relation": "replace-one"}
    return Plan.for_target(n=RECORDS, steps=steps, **target, **settings)


def _drawn(module: nn.Module, layers: str, folder: Path) -> _OneLayer:
    """Write random weights of the module, whose own have no storage, into `folder`: those outside the layers and those
    of the first layer. Returns them as the tensors of the whole model. layers: the prefix of the names of the layers'
    weights, with its last dot."""
    generator, values = torch.Generator().manual_seed(0), {}
    for name, parameter in module.named_parameters():
        if not name.startswith(layers) or name.startswith(f"{layers}0."):
            drawn = torch.empty(parameter.shape, dtype=parameter.dtype)
            values[name] = drawn.normal_(0, 0.02, generator=generator)
    save_file(values, folder / "model.safetensors")
    return _OneLayer(folder, layers)


def _check(parser: Parser, options: Namespace) -> None:
    options.device = chosen_device(parser, options.device)


def _cells(options: Namespace) -> Iterator[dict[str, Any]]:
    dtype = "float32" if options.device == "cpu" else "float16"
    return (dict(zip(KEY, (options.model, method, BATCH, options.length, dtype), strict=True)) for method in METHODS)


def _told(at: dict[str, Any], rows: list[dict[str, Any]]) -> str:
    row = rows[0]
    said = f"{row['seconds']} s a step, of which reading {row['read_s']} s" if "status" not in row else row["status"]
    return f"{at['method']}: {said}"


EXPERIMENT = Experiment(
    name="llm.streamed",
    about=__doc__,
    flags=[
        flag("model", type=model_name, help="a size of sizes.toml, a causal one, or a folder"),
        flag("--steps", type=integer(1, 10_000), default=3),
        flag("--length", type=integer(1, 2048), default=64, help="tokens in a record"),
        flag("--device", choices=("auto", "cpu", "cuda"), default="cpu"),
    ],
    folder="llm_streamed",
    key=KEY,
    fields=FIELDS,
    seeds=[0],
    device=device_name,
    dtype="a column",
    tolerant=True,
    check=_check,
    cells=_cells,
    measure=lambda options, at: measure(options.model, at["method"], options.steps, options.length, options.device),
    told=_told,
    report=lambda options: int(set(read_rows(options.out, failed=True)["status"]) != {OK}),
)

if __name__ == "__main__":
    sys.exit(EXPERIMENT.main())
