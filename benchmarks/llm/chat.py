"""Learning how to answer, and which answer is preferred, with a pretrained language model: private and not.

    python -m benchmarks.pretrained smollm2         # the model, once
    python -m benchmarks.llm.chat --data DIR        # DIR holds e2e_devset.csv

"sft" learns to describe a restaurant from its attributes (E2E). A record is one description, its loss the mean over
its tokens, and what is reported is the mean loss of descriptions of other restaurants. "dpo" learns which of two such
descriptions of one restaurant is preferred, made so that the shorter one is. A record is a pair, its loss that of
direct preference optimisation, and what is reported beside the loss is the win rate: the share of other pairs whose
chosen answer has become likelier, relative to the rejected one, than it was before training.

Trained is one number for each token of the vocabulary, added to the model's logits (49,152 of them, 0 at the start).
The layers below are frozen and run once. DPZero and AdamW take as many steps on batches as large on average. The step
size is the best of two by the loss of descriptions that are neither trained on nor reported, in one run each, at
epsilon = 2; the clip comes from gradient norms of such descriptions. Both take these as public.
"""

import csv
import sys
from argparse import Namespace
from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from benchmarks.kit.experiment import Cell, Experiment, flag
from benchmarks.kit.rows import RESULTS, having, read_rows
from benchmarks.kit.tables import markdown
from benchmarks.llm.models import LanguageModel, load
from benchmarks.llm.settings import CHOSEN, MODEL, best, reported, tried
from benchmarks.training.pretrained import cache, pretrained_folder
from dpzero_theory.cli import Parser, input_folder, integer
from dpzero_theory.optim.losses.evaluation import Losses
from dpzero_theory.optim.losses.frozen import States, cached
from dpzero_theory.optim.losses.preferences import PREFERENCES
from dpzero_theory.optim.losses.task_losses import IGNORED, losses_for
from dpzero_theory.optim.private import make_private_with_epsilon

FILE = "e2e_devset.csv"
TASKS = ("sft", "dpo")
PARTS = {"sft": {"train": 2000, "dev": 200, "test": 300}, "dpo": {"train": 500, "dev": 100, "test": 300}}
"""The numbers of records, by task and split; no two splits share a restaurant's attributes."""
LONGEST = {"prompt": 72, "answer": 32}
"""The most tokens of a prompt and of an answer; records with more are left out."""
SHORTER = 5
"""How many words fewer the chosen answer of a pair has at least."""
STEPS, DIRECTIONS, DELTA, BETA, SMOOTHING = 60, 8, 1e-5, 0.5, 1e-2
BATCHES = {"sft": 32, "dpo": 16}
CLIPS = {"sft": 0.5, "dpo": 1.0}
STEP_SIZES = {("sft", "dpzero"): (8.0, 16.0), ("dpo", "dpzero"): (2.0, 4.0)}
LEARNING_RATES = (0.03, 0.1)
RUNS = (("dpzero", "2"), ("dpzero", "8"), ("adamw", "none"))


class Remembering(nn.Linear):
    """A linear layer that keeps its last input x and the product W x. A call with an equal input reuses the product, so
    that a call after which only the bias changed costs little."""

    last: tuple[Tensor, Tensor] | None = None

    def forward(self, x: Tensor) -> Tensor:
        if self.last is None or not torch.equal(self.last[0], x):
            self.last = x, functional.linear(x, self.weight)
        return self.last[1] + self.bias


class Prepared(NamedTuple):
    """The model, its part above the frozen layers, the losses of a task's records, its records by split, and its
    trained bias."""

    model: LanguageModel
    tail: nn.Module
    losses: Losses
    parts: dict[str, States]
    bias: nn.Parameter


def answers(
    data: Path, task: str, sizes: Mapping[str, int] | None = None
) -> dict[str, list[tuple[str, tuple[str, ...]]]]:
    """Return the records by split ("test", "dev", "train"). A record is a prompt and a tuple of texts: its answer or,
    for "dpo", its chosen and its rejected answer.

    data: the folder of the E2E file. task: "sft" or "dpo". sizes: the numbers of records by split; those of `PARTS` if
    None. Restaurants are taken in a fixed random order, the test split first, and no restaurant is in two splits. Fewer
    records are returned where the file has no more.
    """
    sizes = sizes or PARTS[task]
    with (data / FILE).open(newline="") as file:
        rows = sorted((row["mr"], row["ref"].strip()) for row in csv.DictReader(file))
    groups = [(mr, [text for _, text in group]) for mr, group in groupby(rows, key=lambda row: row[0])]
    made: dict[str, list[tuple[str, tuple[str, ...]]]] = {part: [] for part in ("test", "dev", "train")}
    for number in np.random.default_rng(0).permutation(len(groups)):
        mr, found = groups[number]
        part = next((name for name in made if len(made[name]) < sizes[name]), None)
        if part is None:
            break
        made[part] += [(f"{mr}\n", record) for record in (_pairs(found) if task == "dpo" else [(t,) for t in found])]
    return {part: records[: sizes[part]] for part, records in made.items()}


def _pairs(texts: Sequence[str]) -> list[tuple[str, str]]:
    """Return pairs (shorter, longer) of the given texts. Each text is in one of them at most, and the longer one has at
    least SHORTER words more."""
    ordered = sorted(texts, key=lambda text: len(text.split()))
    pairs = zip(ordered[: len(ordered) // 2], ordered[-(len(ordered) // 2) :], strict=True)
    return [(short, long) for short, long in pairs if len(long.split()) >= len(short.split()) + SHORTER]


def prepared(
    data: Path, task: str, folder: Path, sizes: Mapping[str, int] | None = None, dtype: str = "float32"
) -> Prepared:
    """Return what a run of the task ("sft" or "dpo") needs: the model with a trained bias of 0 at its output, and the
    records by split. data: the folder of the E2E file. folder: where hidden states are kept for the next call. sizes:
    as for `answers`. dtype: that of all frozen weights and of the hidden states."""
    model = load(MODEL, dtype=dtype)
    model.module.requires_grad_(False)
    old: Any = model.module.get_output_embeddings()  # type: ignore[operator]
    head = Remembering(old.in_features, old.out_features)
    head.weight = old.weight
    nn.init.zeros_(head.bias)
    model.module.set_output_embeddings(head)  # type: ignore[operator]
    records = answers(data, task, sizes)
    rows = [_tokens(model.tokenizer, model.pad, found) for found in records.values()]
    tail, *states = cached(model.module, *rows, folder=folder)
    losses = losses_for(tail)
    parts = dict(zip(records, states, strict=True))
    if task == "dpo":
        parts = {part: _paired(tail, found) for part, found in parts.items()}
        losses = preferred
    return Prepared(model, tail, losses, parts, head.bias)


def _tokens(tokenizer: Any, pad: int, records: Sequence[tuple[str, tuple[str, ...]]]) -> list[dict[str, Tensor]]:
    """Return for each prompt with each of its answers the token ids, attention mask and labels, padded on the right to
    one length with the token `pad`. Only the tokens of the answer have a label.

    records: pairs of a prompt and its answers.
    """
    rows, length = [], sum(LONGEST.values())
    for prompt, texts in records:
        before = tokenizer(prompt)["input_ids"][: LONGEST["prompt"]]
        for text in texts:
            answer = [*tokenizer(text)["input_ids"], tokenizer.eos_token_id][: LONGEST["answer"]]
            count = len(before) + len(answer)
            ids, labels = torch.full((length,), pad), torch.full((length,), IGNORED)
            ids[:count] = torch.tensor([*before, *answer])
            labels[len(before) : count] = ids[len(before) : count]
            rows.append({"input_ids": ids, "attention_mask": (torch.arange(length) < count).long(), "labels": labels})
    return rows


def _paired(tail: nn.Module, states: States) -> States:
    """Return a data set of pairs, each with both answers' states and their log-probabilities before training.

    tail: the model above its frozen layers. states: two rows for each pair, the chosen answer first.
    """
    with torch.no_grad():
        before = torch.cat(
            [log_probabilities(tail, states[rows]) for rows in torch.split(torch.arange(len(states)), 64)]
        )
    tensors = {
        name: tensor.reshape(-1, 2, *tensor.shape[1:])
        for name, tensor in zip(states.names, states.tensors, strict=True)
    }
    return States(tensors.pop(states.names[0]), {**tensors, "reference": before.view(-1, 2)})


def log_probabilities(tail: nn.Module, batch: Any) -> Tensor:
    """Return for each row of a batch the log-probability of its labelled tokens, summed over them, shape (rows,). tail:
    the model above its frozen layers, whose states the batch has."""
    labels = batch["labels"][:, 1:]
    logits = tail(**{name: value for name, value in batch.items() if name != "labels"}).logits[:, :-1].float()
    each = functional.cross_entropy(logits.flatten(0, 1), labels.flatten(), ignore_index=IGNORED, reduction="none")
    return -each.view(labels.shape).sum(1)


def margins(tail: nn.Module, batch: Any) -> tuple[Tensor, Tensor]:
    """Return (chosen, rejected), each of shape (pairs,): by how much the log-probability of each pair's chosen answer,
    and of its rejected one, is larger than before training. tail: the model above its frozen layers. batch: records of
    `_paired`."""
    rows = {name: value.flatten(0, 1) for name, value in batch.items() if name != "reference"}
    chosen, rejected = (log_probabilities(tail, rows).view(-1, 2) - batch["reference"]).unbind(1)
    return chosen, rejected


def preferred(tail: nn.Module, batch: Any) -> Tensor:
    """Return the loss of direct preference optimisation, with beta = BETA, of each pair of a batch, shape (pairs,).
    tail: the model above its frozen layers. batch: records of `_paired`."""
    return PREFERENCES["sigmoid"](*margins(tail, batch), BETA)


def evaluated(work: Prepared, part: str) -> tuple[float, float]:
    """Return the mean loss of the records of the split `part` with the present weights, and their win rate in [0, 1],
    which is the share of pairs whose chosen answer has gained more log-probability than the rejected one. The win rate
    is 0 where records are not pairs."""
    states = work.parts[part]
    losses, wins = [], []
    with torch.no_grad():
        for rows in torch.split(torch.arange(len(states)), 32):
            batch = states[rows]
            losses.append(torch.as_tensor(work.losses(work.tail, batch)))
            if "reference" in batch:
                chosen, rejected = margins(work.tail, batch)
                wins.append((chosen > rejected).float())
    return float(torch.cat(losses).mean()), float(torch.cat(wins).mean()) if wins else 0.0


def trained(
    work: Prepared, task: str, at: Cell, size: float, folder: Path, steps: int = STEPS, batch_size: int | None = None
) -> dict[str, Any]:
    """Set the trained bias to 0 and train it by the method of the cell `at` (its `method`, "dpzero" or "adamw"; its
    `epsilon`, for dpzero; its `seed`, for adamw). Returns the measured columns of the row: the losses and win rates on
    the dev and test records afterwards, the test loss before, and for DPZero the epsilon spent at DELTA and the noise
    multiplier.

    work, task: as `prepared` returns it for the task. size: the first step size, which falls linearly to 0. folder: for
    the files of a private run. batch_size: the number of records in a batch, on average for DPZero; that of `BATCHES`
    if None.
    """
    batch_size = batch_size or BATCHES[task]
    with torch.no_grad():
        work.bias.zero_()
    before, _ = evaluated(work, "test")
    data, cost = work.parts["train"], {}
    if at["method"] == "dpzero":
        run = make_private_with_epsilon(
            work.tail, work.losses, data, target_epsilon=float(at["epsilon"]), target_delta=DELTA, clip=CLIPS[task],
            relation="add-remove", steps=steps, expected_batch=batch_size, smoothing=SMOOTHING, sampling="poisson",
            direction="rademacher", step_size=lambda step: size * (1 - step / steps), difference="forward",
            directions_per_step=DIRECTIONS, folder=folder, micro_batch=4 * batch_size,
        )  # fmt: skip
        run.run()
        run.close()
        cost = {"epsilon_upper": run.get_epsilon(DELTA), "noise_multiplier": run.plan.noise_multiplier}
    else:
        draws = np.random.default_rng(at["seed"])
        optimizer = torch.optim.AdamW([work.bias], lr=size, weight_decay=0.0)
        for step in range(steps):
            optimizer.param_groups[0]["lr"] = size * (1 - step / steps)
            optimizer.zero_grad()
            batch = data[torch.from_numpy(draws.choice(len(data), batch_size, replace=False))]
            torch.as_tensor(work.losses(work.tail, batch)).mean().backward()  # type: ignore[no-untyped-call]
            optimizer.step()
    found = {"n": len(data), "step_size": size, "loss_before": before, **cost}
    for part in ("dev", "test"):
        found[f"{part}_loss"], found[f"{part}_wins"] = evaluated(work, part)
    return found


def table(folder: Path = RESULTS / "llm_chat") -> str:
    """Return a table of the losses before and after, and of the win rates, on records that were not trained on."""
    rows = having(read_rows(folder).astype({"setting": str, "epsilon": str}), setting=CHOSEN)
    names = {"dpzero": "DPZero, epsilon {}", "adamw": "AdamW, not private"}
    lines = []
    for task in TASKS:
        for method, epsilon in RUNS:
            if not len(runs := having(rows, task=task, method=method, epsilon=epsilon)):
                continue
            loss, wins = runs["test_loss"], 100 * runs["test_wins"]
            lines.append(
                [
                    {"sft": "describe", "dpo": "prefer the shorter"}[task],
                    names[method].format(epsilon),
                    f"{int(runs['n'].iloc[0]):,}",
                    f"{runs['loss_before'].mean():.3f}",
                    f"{loss.mean():.3f} ± {loss.std():.3f}",
                    "" if task == "sft" else f"{wins.mean():.1f}% ± {wins.std():.1f}",
                ]
            )
    return markdown(["task", "method", "records", "loss before", "loss after", "win rate"], lines)


def check_data(parser: Parser, options: Namespace) -> None:
    """Refuse a command line without data, and one whose model is not made."""
    if options.data is None:
        parser.error(f"--data must be given, a folder with {FILE}")
    with parser.refusals():
        pretrained_folder(MODEL)
    options.work = {}


def _sizes(task: str, method: str) -> tuple[float, ...]:
    return STEP_SIZES.get((task, method), LEARNING_RATES)


def _cells(options: Namespace) -> Iterator[Cell]:
    for task in TASKS:
        for method, epsilon in RUNS:
            at = {"task": task, "method": method, "epsilon": epsilon}
            if epsilon != "8":
                yield from tried(at, len(_sizes(task, method)))
            yield from reported(at, options.seeds)


def _measure(options: Namespace, at: Cell) -> list[dict[str, Any]]:
    task, method = at["task"], at["method"]
    if task not in options.work:
        options.work = {task: prepared(options.data, task, cache() / "states")}
    index = at["setting"]
    if index == CHOSEN:
        index = best(read_rows(options.out), "dev_loss", lowest=True, task=task, method=method)
    with TemporaryDirectory() as folder:
        return [trained(options.work[task], task, at, _sizes(task, method)[int(index)], Path(folder))]


EXPERIMENT = Experiment(
    name="llm.chat",
    about=__doc__,
    flags=[
        flag("--data", type=input_folder(), help=f"folder with {FILE}"),
        flag("--seeds", type=integer(1, 100), default=3, help="runs of each kind that are reported"),
    ],
    folder="llm_chat",
    key=("task", "method", "epsilon", "setting", "seed"),
    fields=(
        "n", "step_size", "epsilon_upper", "noise_multiplier", "loss_before", "dev_loss", "dev_wins", "test_loss",
        "test_wins",
    ),
    seeds=lambda options: range(options.seeds + 1),
    dtype="float32",
    settings={
        "model": MODEL, "steps": STEPS, "batches": str(BATCHES), "directions": DIRECTIONS, "clips": str(CLIPS),
        "smoothing": SMOOTHING, "difference": "forward", "delta": DELTA, "beta": BETA, "sampling": "poisson",
        "relation": "add-remove", "trained": "one number for each token, added to the logits",
    },
    check=check_data,
    cells=_cells,
    measure=_measure,
    told=lambda at, rows: (
        f"{at['task']}, {at['method']}, epsilon {at['epsilon']}, setting {at['setting']}, seed {at['seed']}: loss"
        f" {rows[0]['loss_before']:.3f} to {rows[0]['test_loss']:.3f}, win rate {rows[0]['test_wins']:.3f}"
    ),
)  # fmt: skip

if __name__ == "__main__":
    sys.exit(EXPERIMENT.main())
