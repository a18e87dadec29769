"""Whether a generated answer is right, as what is trained: the restaurant's name in an E2E description.

    python -m benchmarks.pretrained smollm2            # the model, once
    python -m benchmarks.llm.exact_match --data DIR    # DIR holds e2e_devset.csv

The model reads a description and "Name:", and writes tokens until the end of the line, the likeliest one each time. The
exact match of a record is 1 where these are the name and nothing else. Three losses train the same weights on the same
records, with as many steps and directions:

    exact-match             1 minus the exact match, which has no derivative
    expected-exact-match    its average over answers that are drawn from the model: 1 minus the probability of the name
    cross-entropy           the mean loss of the tokens of the name and of the end of the line

Trained is the gain of the last normalisation, 576 weights, so the layers below run once for each record. No answer has
to be generated in training: the likeliest tokens are the name exactly where each token of the name is the likeliest
after those before it, and the hidden states at these places are kept. In training the model chooses among the tokens of
the names and those that are among the LIKELIEST at such a place of a dev record. What is reported is the share of test
descriptions that it answers with the name and nothing else, choosing among all its tokens. Before training and of the
runs with seed 1, ANSWERED of the answers are generated: their exact match and F1 are SQuAD's, which look at words in
lower case, without punctuation and articles.

Each loss has the clip and step size of `SETTINGS` that give the highest exact match on dev records, which are taken to
be public like the list of names, in one run with seed 0 at epsilon = 2. Runs that are not private have no clip and no
noise, and by the same rule a step size of `STEP_SIZES`. No two splits share a restaurant's attributes, but they do
share names.
"""

import math
import re
import sys
from argparse import Namespace
from collections.abc import Iterator, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, rms_norm

from benchmarks.kit.experiment import Cell, Experiment, flag
from benchmarks.kit.rows import RESULTS, having, read_rows
from benchmarks.kit.tables import markdown, percent
from benchmarks.llm import chat
from benchmarks.llm.generation import exact, generate, token_f1
from benchmarks.llm.models import LanguageModel, load
from benchmarks.llm.prompts import Example
from benchmarks.llm.settings import CHOSEN, MODEL, best, reported, tried
from benchmarks.training.pretrained import cache
from dpzero_theory.cli import input_folder, integer
from dpzero_theory.optim.losses.frozen import STATES, States, cached
from dpzero_theory.optim.losses.task_losses import IGNORED
from dpzero_theory.optim.plan import Plan
from dpzero_theory.optim.private import make_from_seed_not_private, make_private_with_epsilon

SIZES = {"train": 3000, "dev": 300, "test": 300}
ASKED, LONGEST = "\nName:", {"prompt": 44, "answer": 10}
"""What comes after a description, and the most tokens of a prompt and of a name; longer descriptions are cut."""
LIKELIEST, ANSWERED = 3, 100
"""How many tokens are kept of each place of a dev record, and the number of test descriptions whose answers are
generated; they are spread evenly over all."""
STEPS, BATCH, DIRECTIONS, DELTA = 40, 256, 16, 1e-5
SMOOTHINGS = {"exact-match": 0.1, "expected-exact-match": 3e-2, "cross-entropy": 1e-2}
SETTINGS = {
    "exact-match": ((5.0, 3.0), (10.0, 3.0), (5.0, 1.0), (10.0, 1.0)),
    "expected-exact-match": ((1.0, 10.0), (2.0, 10.0), (1.0, 3.0), (2.0, 3.0)),
    "cross-entropy": ((4.0, 1.0), (8.0, 1.0), (8.0, 3.0), (16.0, 1.0)),
}
"""The clips and step sizes that are compared, by loss."""
STEP_SIZES = {
    "exact-match": (0.3, 1.0, 3.0),
    "expected-exact-match": (1.0, 3.0, 10.0),
    "cross-entropy": (0.1, 0.3, 1.0),
}
"""The step sizes of runs that are not private."""
OPEN = "not-private"
EPSILONS = ("2", "8", OPEN)


class Prepared(NamedTuple):
    """The model, and its records by split: the hidden states before each token of the name, with labels (`parts`), and
    the test records as prompts with their names (`asked`). tokens: those that the model chooses among in training."""

    model: LanguageModel
    parts: dict[str, States]
    asked: list[tuple[Example, str]]
    tokens: Tensor


class Top(nn.Module):
    """The last normalisation of a Llama, with a trained gain, and the rows of the output matrix of some tokens.

    module: the model. tokens: the tokens, shape (tokens,); their places in it are the classes of `forward`.
    """

    def __init__(self, module: Any, tokens: Tensor) -> None:
        super().__init__()
        norm, head = module.model.norm, module.get_output_embeddings().weight.detach()
        self.gain, self.eps = nn.Parameter(norm.weight.detach().float().clone()), norm.variance_epsilon
        self.register_buffer("rows", head[tokens].float())
        self.register_buffer("place", torch.full((len(head),), -1).index_copy(0, tokens, torch.arange(len(tokens))))

    def forward(self, batch: Any) -> tuple[Tensor, Tensor]:
        """Return two tensors of shape (records, places): the cross-entropy of each token of the name, and whether that
        token is the likeliest, both 0 and true at places without one."""
        labels = batch["labels"][:, 1:]
        named = labels != IGNORED
        hidden = batch[STATES][:, :-1].float()
        scores = (rms_norm(hidden, hidden.shape[-1:], eps=self.eps)[named] * self.gain) @ self.rows.T  # type: ignore
        wanted = self.place[labels[named]]  # type: ignore[index]
        loss, right = torch.zeros(named.shape), torch.ones(named.shape, dtype=torch.bool)
        loss[named] = cross_entropy(scores, wanted, reduction="none")
        right[named] = scores.argmax(1) == wanted
        return loss, right


def losses(name: str) -> Any:
    """Return the loss function (module, batch) -> losses, shape (records,), with this name, a key of SETTINGS. `module`
    is a `Top` and `batch` has records of `Prepared.parts`."""

    def found(module: nn.Module, batch: Any) -> Tensor:
        loss, right = module(batch)
        of_record: Tensor = loss.sum(1) / (batch["labels"][:, 1:] != IGNORED).sum(1)
        if name == "exact-match":
            of_record = (~right.all(1)).float()
        if name == "expected-exact-match":
            of_record = -torch.expm1(-loss.sum(1))
        return of_record

    return found


def prepared(data: Path) -> Prepared:
    """Return the model with its records. data: the folder of the E2E file."""
    model = load(MODEL, dtype="bfloat16")
    said = {
        part: [(text, _name(mr)) for mr, (text,) in rows] for part, rows in chat.answers(data, "sft", SIZES).items()
    }
    asked = {part: [_prompt(model.tokenizer, text) for text, _ in rows] for part, rows in said.items()}
    ends = {
        name: model.tokenizer(f" {name}\n")["input_ids"][: LONGEST["answer"]]
        for rows in said.values()
        for _, name in rows
    }
    padded = [
        [_padded(ids, ends[name], model.pad) for ids, (_, name) in zip(asked[part], rows, strict=True)]
        for part, rows in said.items()
    ]
    module: Any = model.module
    module.requires_grad_(False)
    module.model.norm.requires_grad_(True)
    _, *states = cached(module, *padded, folder=cache() / "states")
    parts = dict(zip(said, states, strict=True))
    tokens = {token for ids in ends.values() for token in ids} | set(_likeliest(module, parts["dev"]))
    tests = [(Example(tuple(ids)), name) for ids, (_, name) in zip(asked["test"], said["test"], strict=True)]
    tests = tests[:: max(len(tests) // ANSWERED, 1)][:ANSWERED]
    return Prepared(model, parts, tests, torch.tensor(sorted(tokens)))


def _name(mr: str) -> str:
    found = re.search(r"name\[([^\]]*)\]", mr)
    if found is None:
        raise ValueError(f"the records must have a name each; got {mr}")
    return found[1]


def _prompt(tokenizer: Any, text: str) -> list[int]:
    after: list[int] = tokenizer(ASKED)["input_ids"]
    return [*tokenizer(text)["input_ids"][: LONGEST["prompt"] - len(after)], *after]


def _padded(prompt: Sequence[int], answer: Sequence[int], pad: int) -> dict[str, Tensor]:
    """Return the token ids, attention mask and labels of a prompt with its answer, padded on the right with `pad`. Only
    the answer has labels."""
    length, count = sum(LONGEST.values()), len(prompt) + len(answer)
    ids, labels = torch.full((length,), pad), torch.full((length,), IGNORED)
    ids[:count] = torch.tensor([*prompt, *answer])
    labels[len(prompt) : count] = ids[len(prompt) : count]
    return {"input_ids": ids, "attention_mask": (torch.arange(length) < count).long(), "labels": labels}


def _likeliest(module: Any, states: States) -> list[int]:
    """Return the tokens that are among the LIKELIEST at a place of a name in some record."""
    named = states.tensors[states.names.index("labels")][:, 1:] != IGNORED
    hidden = states.tensors[0][:, :-1][named]
    with torch.no_grad():
        found: Tensor = module.get_output_embeddings()(module.model.norm(hidden)).topk(LIKELIEST).indices
    return [int(token) for token in set(found.flatten().tolist())]


def evaluated(top: nn.Module, states: States) -> float:
    """Return the share of records all of whose name's tokens are the likeliest ones of `top`, a `Top`."""
    with torch.no_grad():
        return 1 - float(losses("exact-match")(top, states[torch.arange(len(states))]).mean())


def generated(work: Prepared, gain: Tensor) -> dict[str, float]:
    """Return the mean exact match and the mean F1 of SQuAD, both in [0, 1], of the answers that the model generates to
    the prompts of `work.asked` with this gain of its last normalisation, shape (width,). The model has its own gain
    again afterwards."""
    module: Any = work.model.module
    weight = module.model.norm.weight
    own = weight.detach().clone()
    with torch.no_grad():
        weight.copy_(gain)
        prompts = [example for example, _ in work.asked]
        answers = generate(module, work.model.tokenizer, prompts, 50, LONGEST["answer"])
        weight.copy_(own)
    pairs = [(answer, [name]) for answer, (_, name) in zip(answers, work.asked, strict=True)]
    return {
        "answered_match": sum(exact(*pair) for pair in pairs) / len(pairs),
        "answered_f1": sum(token_f1(*pair) for pair in pairs) / len(pairs),
    }


def trained(work: Prepared, at: Cell, clip: float, step_size: float) -> dict[str, Any]:
    """Train by the loss of the cell `at` (its `loss`, `epsilon` and, without privacy, `seed`) with this clip and first
    step size, which falls linearly to 0, and return the measured columns of the row."""
    top, data, loss = Top(work.model.module, work.tokens), work.parts["train"], losses(at["loss"])
    law: dict[str, Any] = {
        "steps": STEPS, "expected_batch": float(BATCH), "smoothing": SMOOTHINGS[at["loss"]], "sampling": "poisson",
        "step_size": lambda step: step_size * (1 - step / STEPS), "direction": "rademacher",
        "directions_per_step": DIRECTIONS, "difference": "forward",
    }  # fmt: skip
    cost = {}
    with TemporaryDirectory() as folder:
        if at["epsilon"] == OPEN:
            plan = Plan.without_privacy(n=len(data), **law)
            seed: dict[str, Any] = {"seed": at["seed"], "folder": folder, "micro_batch": 2 * BATCH}
            run = make_from_seed_not_private(top, loss, data, plan, **seed)
            run.run()
        else:
            run = make_private_with_epsilon(
                top, loss, data, target_epsilon=float(at["epsilon"]), target_delta=DELTA, clip=clip,
                relation="add-remove", folder=folder, micro_batch=2 * BATCH, **law,
            )  # fmt: skip
            run.run()
            cost = {
                "clip": clip, "epsilon_upper": run.get_epsilon(DELTA), "noise_multiplier": run.plan.noise_multiplier
            }  # fmt: skip
        run.close()
    return {"step_size": step_size, "dev_match": evaluated(top, work.parts["dev"]), **cost, **_reported(work, at, top)}


def _reported(work: Prepared, at: Cell, top: Top) -> dict[str, float]:
    if at["setting"] != CHOSEN:
        return {}
    module: Any = work.model.module
    whole = Top(module, torch.arange(module.config.vocab_size))
    with torch.no_grad():
        whole.gain.copy_(top.gain)
    answered = generated(work, top.gain.detach()) if at["seed"] <= 1 else {}
    return {"test_match": evaluated(whole, work.parts["test"]), **answered}


def table(folder: Path = RESULTS / "llm_exact_match") -> str:
    """Return a table of the exact match and F1 of generated answers before and after, by epsilon and loss."""
    rows = having(read_rows(folder).astype({"setting": str, "epsilon": str}), setting=CHOSEN)
    (before,) = having(rows, loss="none").to_dict("records")
    lines = []
    for epsilon in EPSILONS:
        for name in SETTINGS:
            part = having(rows, loss=name, epsilon=epsilon)
            if not len(part):
                continue
            lines.append(
                [
                    epsilon.replace("-", " "), name.replace("-", " ").replace("cross ", "cross-"),
                    f"{100 * before['test_match']:.1f}", percent(part["test_match"]), f"{len(part)}",
                    *(f"{100 * before[one]:.0f}, {100 * part[one].mean():.0f}" for one in FIELDS[4:6]),
                ]
            )  # fmt: skip
    header = ["epsilon", "loss", "match before", "match after", "runs", "SQuAD match before, after", "F1 before, after"]
    return markdown(header, lines)


def _cells(options: Namespace) -> Iterator[Cell]:
    yield {"loss": "none", "epsilon": "none", "setting": CHOSEN, "seed": 0}
    for name in options.losses:
        for epsilon in EPSILONS:
            if epsilon in (EPSILONS[0], OPEN):
                yield from tried({"loss": name, "epsilon": epsilon}, len(_settings(name, epsilon)))
            yield from reported({"loss": name, "epsilon": epsilon}, options.seeds)


def _settings(name: str, epsilon: str) -> Sequence[tuple[float, float]]:
    """Return the clips (NaN where there is none) and step sizes that are compared for the loss `name`."""
    return [(math.nan, size) for size in STEP_SIZES[name]] if epsilon == OPEN else SETTINGS[name]


def _measure(options: Namespace, at: Cell) -> dict[str, Any]:
    if not options.work:
        options.work = prepared(options.data)
    work: Prepared = options.work
    if at["loss"] == "none":
        top = Top(work.model.module, work.tokens)
        return {"dev_match": evaluated(top, work.parts["dev"]), **_reported(work, at, top)}
    setting = at["setting"]
    if setting == CHOSEN:
        epsilon = OPEN if at["epsilon"] == OPEN else EPSILONS[0]
        setting = best(read_rows(options.out), "dev_match", loss=at["loss"], epsilon=epsilon)
    return trained(work, at, *_settings(at["loss"], at["epsilon"])[int(setting)])


FIELDS = (
    "clip", "step_size", "dev_match", "test_match", "answered_match", "answered_f1", "epsilon_upper",
    "noise_multiplier",
)  # fmt: skip
EXPERIMENT = Experiment(
    name="llm.exact_match",
    about=__doc__,
    flags=[
        flag("--data", type=input_folder(), help=f"folder with {chat.FILE}"),
        flag("--losses", nargs="+", choices=tuple(SETTINGS), default=list(SETTINGS), help="which ones (default: all)"),
        flag("--seeds", type=integer(1, 100), default=3, help="runs of each kind that are reported"),
    ],
    folder="llm_exact_match",
    key=("loss", "epsilon", "setting", "seed"),
    fields=FIELDS,
    seeds=lambda options: range(options.seeds + 1),
    dtype="bfloat16, what is trained in float32",
    settings={
        "model": MODEL, "sizes": str(SIZES), "steps": STEPS, "batch": BATCH, "directions": DIRECTIONS,
        "smoothings": str(SMOOTHINGS), "difference": "forward", "delta": DELTA, "sampling": "poisson",
        "relation": "add-remove", "trained": "the last normalisation",
    },
    check=chat.check_data,
    cells=_cells,
    measure=_measure,
    told=lambda at, rows: (
        f"{at['loss']}, epsilon {at['epsilon']}, setting {at['setting']}, seed {at['seed']}:"
        + "".join(f" {name} {100 * rows[0][name]:.1f}" for name in FIELDS[2:6] if name in rows[0])
    ),
)  # fmt: skip

if __name__ == "__main__":
    sys.exit(EXPERIMENT.main())
