"""Seconds per step and peak memory at full size.  python -m benchmarks.llm.memory NAME

    python -m benchmarks.llm.memory tab:dpero-dpgd --device cuda
    python -m benchmarks.llm.memory tab:opt-memory --device cuda        # 1.3B to 66B
    python -m benchmarks.llm.memory cpu                                 # 125M to 1.3B
    python -m benchmarks.llm.memory smoke                               # a minute on a CPU

Models of the published sizes get random weights, drawn on the device, so that no copy is made elsewhere. Each cell runs
in a process of its own. Its peak is the weights and the most that the steps held beside them (CUDA: allocated by torch;
CPU: resident memory, with freed memory given back, which makes each step some 15% slower). Records are `--length`
random tokens, in batches of fixed size. The method `forwards` is two plain forward passes and nothing else. DPZero is
timed a second time, in turns with MeZO on the same weights (to_mezo: the median ratio, and its standard error from the
quartiles), because the speed of a shared processor differs from one process to the next. What does not fit is a row
with status `out of memory`.
"""

import statistics
import sys
import time
from argparse import Namespace
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch

from benchmarks.kit.device import chosen_device, device_name, full_float32
from benchmarks.kit.experiment import Experiment, flag
from benchmarks.kit.peaks import in_new_process, peak, reset_peak
from benchmarks.kit.rows import OK, RESULTS, read_rows
from benchmarks.kit.timing import median_ratio
from benchmarks.llm import first_order, models, zeroth_order
from benchmarks.llm.configuration import FIRST_ORDER, METHODS, Configuration
from benchmarks.llm.flags import model_name
from benchmarks.llm.privacy import first_order_noise
from benchmarks.llm.prompts import Example
from benchmarks.llm.scoring import WordScorer
from benchmarks.problems.encoder import SUBSETS, train
from dpzero_theory.cli import Parser, Several, integer
from dpzero_theory.optim.run import Run

KEY = ("model", "method", "batch", "length", "dtype", "weights")
FIELDS = ("d", "seconds", "peak_mib", "weights_mib", "to_mezo", "to_mezo_error")
RECORDS = 1000
WARM_UP = 2
NO_ROOM = "out of memory"


@dataclass(frozen=True)
class MemoryTable:
    """What a table measures: every one of its methods with every one of its models is a cell.

    batch: records in a batch. length: tokens of a record. steps: how many steps are timed, after
    `WARM_UP` steps that are not.
    """

    models: tuple[str, ...]
    methods: tuple[str, ...]
    batch: int
    length: int
    dtype: str
    steps: int = 20


_ROBERTA = ("forwards", "mezo", "dpzero", "dpgd-0th", "adamw", "dp-adamw", "lora", "dp-lora")
_BESIDE = ("forwards", "mezo", "dpzero")
_OPT = ("opt-1.3b", "opt-2.7b", "opt-6.7b", "opt-13b", "opt-30b", "opt-66b")
PRESETS = {
    "tab:dpero-dpgd": MemoryTable(("roberta-large",), _ROBERTA, batch=64, length=64, dtype="float32"),
    "tab:others": MemoryTable(("roberta-large",), _ROBERTA, batch=64, length=64, dtype="float32"),
    "tab:opt-memory": MemoryTable(_OPT, (*_BESIDE, "adamw"), batch=8, length=256, dtype="float16"),
    "cpu": MemoryTable(("roberta-base", "roberta-large", "opt-1.3b"), _BESIDE, 8, 64, "float32", steps=6),
    "smoke": MemoryTable(("roberta-base",), ("forwards", "mezo", "dpzero", "lora"), 2, 8, "float32", steps=2),
}


@dataclass(frozen=True)
class MemoryCell:
    """One model and method, measured as a `MemoryTable` says. weights: which weights are trained. rows: records in one
    forward pass."""

    model: str
    method: str
    batch: int
    length: int
    dtype: str
    weights: str
    steps: int
    rows: int
    device: str

    def key(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in KEY}


def measure(cell: MemoryCell) -> dict[str, Any]:
    """Measure time and peak memory of the cell's method on its model in this process; returns the row of results."""
    row: dict[str, Any] = cell.key()
    full_float32()
    try:
        config, kind = models.configuration(cell.model)
        module = models.random_model(config, kind, seed=0, dtype=cell.dtype, device=cell.device)
        weights = sum(p.numel() * p.element_size() for p in module.parameters()) / 2**20
        held = reset_peak(cell.device)
        words = int(config.vocab_size)
        examples = _examples(words, cell.length, kind)
        scorer = WordScorer([words - 1, words - 2], pad=1, rows=cell.rows)
        with ExitStack() as stack:
            row["d"], seconds, run = _steps(cell, module, scorer, examples, stack)
            row["seconds"] = round(statistics.median(seconds[WARM_UP:] or seconds), 4)
            row |= {"weights_mib": round(weights), "peak_mib": round(weights + peak(cell.device) - held)}
            if run is not None and cell.method == "dpzero":
                other = _started(cell, "mezo", module, scorer, examples, stack)
                row["to_mezo"], row["to_mezo_error"] = _in_turns(run, other, cell)
    except torch.OutOfMemoryError:
        return {**row, "d": None, "seconds": None, "status": NO_ROOM}
    return {**row, "status": OK}


def _examples(words: int, length: int, kind: str) -> tuple[Example, ...]:
    ids = torch.randint(5, words, (RECORDS, length), generator=torch.Generator().manual_seed(0)).tolist()
    position = length - 1 if kind == "causal" else length // 2
    return tuple(Example(tuple(row), position, index % 2) for index, row in enumerate(ids))


def _steps(
    cell: MemoryCell, module: torch.nn.Module, scorer: WordScorer, examples: Sequence[Example], stack: ExitStack
) -> tuple[int, list[float], Run | None]:
    """Make the steps of a cell, with those that only warm up, and time each.

    Returns the number d of trained weights, the seconds of each step, and, for a zeroth-order method, its run, which
    can make as many steps again (None for other methods). scorer, examples: give the losses, and are the records. The
    run's files are closed with `stack`.
    """
    c = _configuration(cell, "zero-shot" if cell.method == "forwards" else cell.method)
    lora = "lora" in cell.method
    d = first_order.add_lora(module, c) if lora else train(module, cell.weights)
    clock, run = _Clock(cell.device), None
    if cell.method == "forwards":
        with torch.no_grad():
            for _ in range(c.steps):
                for _ in range(2):
                    scorer.losses(module, examples[: cell.batch])
                clock(0)
    elif cell.method not in FIRST_ORDER:
        run = _started(cell, cell.method, module, scorer, examples, stack)
        clock.start()
        for _ in range(c.steps):
            clock(run.step().release)
    elif c.private:
        noise = first_order_noise(c, len(examples))
        clock.start()
        first_order.train_private_first_order(module, scorer, examples, c, noise, clock)
    else:
        first_order.train_first_order(module, scorer, examples, c, clock)
    return d, clock.seconds, run


def _started(
    cell: MemoryCell,
    method: str,
    module: torch.nn.Module,
    scorer: WordScorer,
    examples: Sequence[Example],
    stack: ExitStack,
) -> Run:
    """Start a run of twice the cell's steps by the zeroth-order method `method`, which need not be the cell's own, and
    return it. module, scorer, examples: the model, what gives its losses, and the records. The run's files are closed
    with `stack`.

    All runs of a cell change the weights of one module, so a run must be started while the module has the weights from
    which it begins.
    """
    c = replace(_configuration(cell, method), steps=2 * (cell.steps + WARM_UP))
    folder = Path(stack.enter_context(TemporaryDirectory()))
    run = zeroth_order.start(module, scorer, examples, c, folder / "run")
    stack.callback(run.close)
    run.catch_up()
    return run


def _configuration(cell: MemoryCell, method: str) -> Configuration:
    return Configuration(
        method=method, relation="replace-one", sampling="fixed-size", batch=cell.batch, dtype=cell.dtype,
        steps=cell.steps + WARM_UP, weights=cell.weights, direction="rademacher", step_size=1e-6, clip=1.0,
    )  # fmt: skip


def _in_turns(run: Run, other: Run, cell: MemoryCell) -> tuple[float, float]:
    """Let the two runs take turns, and return the median over turns of the time of a step of `run` over that of
    `other`, and its standard error. cell: says how many turns are made, and on which device."""
    pairs = [(run, _Clock(cell.device)), (other, _Clock(cell.device))]
    for turn in range(cell.steps + WARM_UP):
        for one, clock in pairs[:: 1 if turn % 2 else -1]:
            clock.start()
            clock(one.step().release)
    ratio, error = median_ratio(*(clock.seconds[WARM_UP:] for _, clock in pairs))
    return round(ratio, 4), round(error, 4)


class _Clock:
    """Measures the time of steps on a device: each call adds the wall seconds since the last call, or since `start` was
    called, to the list `seconds`. A call is given the number of the step, which it does not use."""

    def __init__(self, device: str) -> None:
        self.seconds: list[float] = []
        self._cuda = device == "cuda"
        self.start()

    def start(self) -> None:
        if self._cuda:
            torch.cuda.synchronize()
        self._last = time.perf_counter()

    def __call__(self, step: int) -> None:
        before = self._last
        self.start()
        self.seconds.append(self._last - before)


def _check(parser: Parser, options: Namespace) -> None:
    options.device = chosen_device(parser, options.device)


def _cells(options: Namespace) -> Iterator[MemoryCell]:
    preset = PRESETS[options.name]
    for model in options.models or preset.models:
        for method in options.methods or preset.methods:
            yield MemoryCell(
                model,
                method,
                preset.batch,
                options.length or preset.length,
                preset.dtype,
                options.weights,
                options.steps or preset.steps,
                options.batch_rows or preset.batch,
                options.device,
            )


def _report(options: Namespace) -> int:
    """Return the exit status of the command: 1 where a cell failed for another reason than too little memory, else
    0."""
    return int(not set(read_rows(options.out, failed=True)["status"]) <= {OK, NO_ROOM})


def _told(cell: MemoryCell, rows: list[dict[str, Any]]) -> str:
    (row,) = rows
    if row.get("status", OK) != OK:
        return f"{row['model']} {row['method']}: {row['status']}"
    return (
        f"{row['model']} {row['method']}: {row['seconds']} s a step, peak {row['peak_mib']:,} MiB"
        f" (weights {row['weights_mib']:,} MiB)"
    )


EXPERIMENT = Experiment(
    name="llm.memory",
    about=__doc__,
    flags=[
        flag("name", choices=PRESETS),
        flag(
            "--models",
            nargs="+",
            action=Several,
            type=model_name,
            help="some of the table's, or other sizes and configurations",
        ),
        flag("--methods", nargs="+", action=Several, choices=("forwards", *METHODS[1:]), help="some methods"),
        flag("--weights", choices=SUBSETS, default="all"),
        flag("--steps", type=integer(2, 10_000)),
        flag("--length", type=integer(1, 2048), help="tokens in a record"),
        flag("--batch-rows", type=integer(1, 10_000), help="records in one forward"),
        flag("--device", choices=("auto", "cpu", "cuda"), default="cpu"),
    ],
    folder=lambda options: (Path("out") if options.name == "smoke" else RESULTS) / "llm_memory",
    key=KEY,
    fields=FIELDS,
    seeds=[0],
    device=device_name,
    dtype=lambda options: PRESETS[options.name].dtype,
    tolerant=True,
    check=_check,
    cells=_cells,
    keys=lambda options, cell: [cell.key()],
    measure=lambda options, cell: in_new_process(measure, cell),
    told=_told,
    report=_report,
)

if __name__ == "__main__":
    sys.exit(EXPERIMENT.main())
