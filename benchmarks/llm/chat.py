"""Supervised and preference fine-tuning of a pretrained model by TRL's trainers, private and not.

    python -m benchmarks.pretrained smollm2         # the model, once
    python -m benchmarks.llm.chat --data DIR        # DIR holds e2e_devset.csv

"sft" learns to write a restaurant's description from its attributes (E2E), and is measured by the loss per token on
other attributes. "dpo" learns from pairs of two such descriptions which is preferred, made so that the shorter one is,
and is measured by the share of other pairs in which the chosen one has become likelier relative to the other (the win
rate). Trained are the 576 gains of the last normalisation. DPZero and AdamW take as many steps on batches as large on
average. Step sizes come from short trials without noise on the training records, which are public; nothing else is
tuned.
"""

import csv
import sys
from argparse import Namespace
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from datasets import Dataset
from transformers import AutoModelForCausalLM, AutoTokenizer

from benchmarks.kit.experiment import Cell, Experiment, flag
from benchmarks.kit.rows import RESULTS, read_rows
from benchmarks.kit.tables import markdown
from benchmarks.training.pretrained import pretrained_folder
from dpzero_theory.cli import Parser, input_folder

MODEL, FILE = "smollm2", "e2e_devset.csv"
TRAINED, HELD_OUT = {"sft": 1000, "dpo": 400}, 100
"""The numbers of records that are trained on, and that are not."""
STEPS, BATCH, LENGTH, DELTA, BETA = 40, 32, 64, 1e-5, 0.5
STEP_SIZES = {("sft", "dpzero"): 2.0, ("dpo", "dpzero"): 2.0, ("sft", "adamw"): 0.01, ("dpo", "adamw"): 0.01}
CLIPS = {"sft": 4.0, "dpo": 2.0}
RUNS = (("dpzero", "2"), ("dpzero", "8"), ("adamw", "none"))


def records(data: Path, task: str) -> tuple[Dataset, Dataset]:
    """Return the records that are trained on and those held out, which share no attributes.

    data: the folder of the E2E file. A record of "dpo" is two descriptions of the same attributes whose numbers of
    words differ by 5 or more.
    """
    with (data / FILE).open(newline="") as file:
        rows = sorted((row["mr"], row["ref"].strip()) for row in csv.DictReader(file))
    groups = [(mr, [text for _, text in group]) for mr, group in groupby(rows, key=lambda row: row[0])]
    order = torch.randperm(len(groups), generator=torch.Generator().manual_seed(0)).tolist()
    made: list[dict[str, str]] = []
    ends: list[int] = []
    for mr, found in (groups[i] for i in order):
        prompt = f"{mr}\n"
        if task == "sft":
            made += [{"prompt": prompt, "completion": text} for text in found]
        else:
            found = sorted(found, key=lambda text: len(text.split()))
            pairs = zip(found[: len(found) // 2], found[len(found) // 2 :], strict=False)
            made += [
                {"prompt": prompt, "chosen": short, "rejected": long}
                for short, long in pairs
                if len(long.split()) >= len(short.split()) + 5
            ]
        ends.append(len(made))
    held = next(end for end in ends if end >= HELD_OUT)
    return Dataset.from_list(made[held : held + TRAINED[task]]), Dataset.from_list(made[:HELD_OUT])


def measured(data: Path, task: str, method: str, epsilon: str, steps: int = STEPS, **changes: Any) -> dict[str, Any]:
    """Train from the pretrained weights, and return the loss and the win rate before and after on records held out."""
    from trl import DPOConfig, DPOTrainer, SFTConfig, SFTTrainer  # type: ignore[attr-defined]

    from dpzero_theory.optim.trainers.trl import DPZeroDPOConfig, DPZeroDPOTrainer, DPZeroSFTConfig, DPZeroSFTTrainer

    folder = pretrained_folder(MODEL)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    model.requires_grad_(False)
    model.model.norm.requires_grad_(True)
    train, held_out = records(data, task)
    size = STEP_SIZES[task, method]
    common: dict[str, Any] = {
        "max_length": LENGTH, "report_to": "none", "save_strategy": "no", "per_device_eval_batch_size": 25,
    }  # fmt: skip
    if task == "dpo":
        common["beta"] = BETA
    data_of = {"train_dataset": train, "eval_dataset": held_out, "processing_class": tokenizer}
    with TemporaryDirectory() as out:
        config: Any
        kind: Any
        trainer: Any
        if method == "dpzero":
            config, kind = {"sft": (DPZeroSFTConfig, DPZeroSFTTrainer), "dpo": (DPZeroDPOConfig, DPZeroDPOTrainer)}[
                task
            ]
            private = {
                "target_epsilon": float(epsilon), "target_delta": DELTA, "relation": "add-remove",
                "sampling": "poisson", "steps": steps, "expected_batch": BATCH, "clip": CLIPS[task],
                "step_size": lambda step: size * (1 - step / steps), "smoothing": 1e-2, "directions_per_step": 4,
                "difference": "forward", "direction": "rademacher",
            } | changes  # fmt: skip
            trainer = kind(model, config(out, **common), private=private, **data_of)
        else:
            config, kind = {"sft": (SFTConfig, SFTTrainer), "dpo": (DPOConfig, DPOTrainer)}[task]
            if task == "dpo":
                common |= {"precompute_ref_log_probs": True}
            plain = {"learning_rate": size, "max_steps": steps, "per_device_train_batch_size": BATCH, "weight_decay": 0}
            trainer = kind(
                model=model, args=config(out, bf16=False, gradient_checkpointing=False, **common, **plain), **data_of
            )
        before = trainer.evaluate()
        trainer.train()
        after = trainer.evaluate()
        spent = trainer.run.get_epsilon(DELTA) if method == "dpzero" else None
    row = {"n": len(train), "step_size": size, "epsilon_upper": spent}
    for name, found in (("before", before), ("after", after)):
        row |= {f"loss_{name}": found["eval_loss"], f"wins_{name}": found.get("eval_rewards/accuracies")}
    return row


def table(folder: Path = RESULTS / "llm_chat") -> str:
    """Return a table of the losses and win rates before and after."""
    rows = read_rows(folder).astype({"epsilon": str})
    names = {"dpzero": "DPZero, epsilon {}", "adamw": "AdamW, not private"}
    lines = [
        [
            row["task"],
            names[row["method"]].format(row["epsilon"]),
            f"{row['n']:,}",
            *(f"{row[name]:.3f}" for name in ("loss_before", "loss_after")),
            "" if row["task"] == "sft" else f"{100 * row['wins_after']:.0f}%",
        ]
        for row in rows.to_dict("records")
    ]
    return markdown(["task", "method", "records", "loss before", "loss after", "win rate after"], lines)


def _check(parser: Parser, options: Namespace) -> None:
    with parser.refusals():
        pretrained_folder(MODEL)


def _cells(options: Namespace) -> Iterator[Cell]:
    for task in TRAINED:
        for method, epsilon in RUNS:
            yield {"task": task, "method": method, "epsilon": epsilon}


def _measure(options: Namespace, at: Cell) -> list[dict[str, Any]]:
    return [measured(options.data, at["task"], at["method"], at["epsilon"])]


EXPERIMENT = Experiment(
    name="llm.chat",
    about=__doc__,
    flags=[flag("--data", type=input_folder(), required=True, help=f"folder with {FILE}")],
    folder="llm_chat",
    key=("task", "method", "epsilon"),
    fields=("n", "step_size", "epsilon_upper", "loss_before", "wins_before", "loss_after", "wins_after"),
    dtype="float32",
    settings={
        "model": MODEL, "steps": STEPS, "batch": BATCH, "length": LENGTH, "delta": DELTA, "beta": BETA,
        "clips": str(CLIPS), "directions": 4, "difference": "forward", "trained": "the last normalisation",
    },
    check=_check,
    cells=_cells,
    measure=_measure,
    told=lambda at, rows: (
        f"{at['task']}, {at['method']}, epsilon {at['epsilon']}: loss {rows[0]['loss_before']:.3f} to"
        f" {rows[0]['loss_after']:.3f}, win rate {rows[0]['wins_after']}"
    ),
)  # fmt: skip

if __name__ == "__main__":
    sys.exit(EXPERIMENT.main())
