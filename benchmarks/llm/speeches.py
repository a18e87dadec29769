"""Shakespeare's speeches, continued by a pretrained language model: perplexity before and after private tuning.

    python -m benchmarks.pretrained smollm2         # the model, once
    python -m benchmarks.llm.speeches --data DIR    # DIR holds tinyshakespeare.txt
    python -m benchmarks.llm.speeches --summary     # the table

A record is what a speaker says at a time, at most LENGTH tokens of it, after a line with the speaker's name. Its loss
is the mean over its tokens of minus the log-probability of the token, over the whole vocabulary. What is reported is
the perplexity of test speeches: exp of the sum of this loss over all tokens of all of them, over the number of tokens,
so that a long speech counts for more than a short one.

Trained is one number for each token that public speeches have, added to the model's logits, as in
`benchmarks.llm.e2e`. All layers are frozen and run once for each record, in bfloat16. As nothing but these numbers
changes, the model's probabilities of these tokens are all that must be kept of a record.

Public are DEV speeches, which are neither trained on nor reported. They say which tokens have a number; they give the
median gradient norm G, from which the clip is sqrt(K) G and the step size s K/G^2; and s, or AdamW's step size, is the
one with the lowest loss of them in one run with seed 0, at epsilon = 2. The runs that are reported have other seeds.
"""

import math
import re
import sys
from argparse import Namespace
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from benchmarks.kit.experiment import Cell, Experiment, flag
from benchmarks.kit.rows import RESULTS, having, read_rows
from benchmarks.kit.tables import markdown, mean_interval
from benchmarks.llm.last_norm import DELTA, NONE, Prepared, trained
from benchmarks.llm.models import LanguageModel, load
from benchmarks.llm.settings import CHOSEN, MODEL, best, ready, reported, tried
from dpzero_theory.cli import Parser, input_folder, integer
from dpzero_theory.optim.losses.frozen import STATES, States
from dpzero_theory.optim.losses.starting import public_clip

FILE = "tinyshakespeare.txt"
N, DEV, TEST, LENGTH = 1500, 200, 300, 24
STEPS, BATCH, DIRECTIONS, SMOOTHING = 60, 200, 16, 1e-2
SETTINGS = {"zero-shot": (0.0,), "dpzero": (0.05, 0.1), "mezo": (0.05, 0.1), "adamw": (0.03, 0.1)}
"""What is compared, by method: s, in units of K/G^2, or AdamW's step sizes."""
RUNS = (("zero-shot", NONE), ("dpzero", "2"), ("dpzero", "8"), ("mezo", NONE), ("adamw", NONE))
LABELS = {"zero-shot": "before", "dpzero": "DPZero, epsilon {}", "mezo": "MeZO", "adamw": "AdamW, not private"}


class Numbers(nn.Module):
    """The numbers that are added to the logits of `count` tokens, 0 at the start."""

    def __init__(self, count: int) -> None:
        super().__init__()
        self.added = nn.Parameter(torch.zeros(count))


def losses(module: nn.Module, batch: Mapping[str, Tensor]) -> Tensor:
    """Return the mean loss a token of each speech, in nats, shape (speeches,). module: the `Numbers`. batch: speeches
    as `kept` returns them."""
    return (_each(module, batch) * batch["share"]).sum(1)


def _each(module: nn.Module, batch: Mapping[str, Tensor]) -> Tensor:
    """Return the loss of each token of each speech, shape (speeches, LENGTH); what stands behind a speech's end means
    nothing. If numbers s are added to the logits of tokens with probabilities p, the partition function grows by the
    factor 1 + sum p (exp(s) - 1)."""
    added: Any = module.added
    own = torch.cat([added, added.new_zeros(1)])[batch["place"]]
    return batch["lost"] + torch.log1p(batch[STATES] @ added.expm1()) - own


def said(data: Path) -> list[tuple[str, str]]:
    """Return what is said at a time, with its speaker's name before it, in the order of the file. data: the folder that
    holds FILE."""
    blocks = re.split("\n\n+", (data / FILE).read_text(encoding="utf-8").strip())
    return [(name[:-1], text) for name, _, text in (b.partition("\n") for b in blocks) if name.endswith(":") and text]


def speeches(data: Path) -> list[tuple[str, str]]:
    """Return the speaker's name and the text of N + DEV + TEST speeches, in a fixed random order and no two equal.
    data: the folder that holds FILE. Raises ValueError if it has fewer."""
    found = [*dict.fromkeys(said(data))]
    if len(found) < N + DEV + TEST:
        raise ValueError(f"data must hold {N + DEV + TEST} speeches in {FILE}; got {len(found)}")
    return [found[i] for i in np.random.default_rng(0).permutation(len(found))[: N + DEV + TEST]]


def prepared(data: Path) -> Prepared:
    """Return the numbers, 0 at first, with the speeches by split ("train", "dev", "test"). data: as for `speeches`."""
    model = load(MODEL, dtype="bfloat16")
    tokens = [
        (model.tokenizer(f"{name}:\n")["input_ids"], model.tokenizer(text)["input_ids"][:LENGTH])
        for name, text in speeches(data)
    ]
    ends = {"train": (0, N), "dev": (N, N + DEV), "test": (N + DEV, N + DEV + TEST)}
    numbered = sorted({token for _, text in tokens[N : N + DEV] for token in text})
    parts = {part: kept(model, tokens[start:end], numbered) for part, (start, end) in ends.items()}
    return Prepared(Numbers(len(numbered)), losses, (), (), parts)


def kept(model: LanguageModel, rows: list[tuple[list[int], list[int]]], numbered: list[int]) -> States:
    """Run the model once on each speech and return what training needs of it.

    rows: the tokens before each speech, and its own. numbered: the tokens that have a trained number.

    Returns a data set with, by name, STATES: the probabilities of these tokens at each place of the speech, shape
    (LENGTH, tokens with a number); "lost": minus the log-probability of the speech's own token, 0 behind its end;
    "place": the index of that token's number, or the count of numbers if it has none; "share": 1 over the length of the
    speech, 0 behind its end. The last three have shape (LENGTH,).
    """
    index = {token: place for place, token in enumerate(numbered)}
    chances, lost = torch.zeros(len(rows), LENGTH, len(numbered)), torch.zeros(len(rows), LENGTH)
    place, share = torch.full((len(rows), LENGTH), len(numbered)), torch.zeros(len(rows), LENGTH)
    order = sorted(range(len(rows)), key=lambda row: sum(map(len, rows[row])))
    for some in (order[begin : begin + 16] for begin in range(0, len(order), 16)):
        width = max(sum(map(len, rows[row])) for row in some)
        ids = torch.tensor([[*(both := [*rows[r][0], *rows[r][1]]), *[model.pad] * (width - len(both))] for r in some])
        with torch.no_grad():
            hidden = model.module.model(input_ids=ids).last_hidden_state  # type: ignore[operator]
        for states, row in zip(hidden, some, strict=True):
            before, text = rows[row]
            own = states[len(before) - 1 : len(before) - 1 + len(text)]
            with torch.no_grad():
                found = model.module.lm_head(own).float().log_softmax(1)  # type: ignore[operator]
            lost[row, : len(text)] = -found[range(len(text)), text]
            chances[row, : len(text)] = found[:, numbered].exp()
            place[row, : len(text)] = torch.tensor([index.get(token, len(numbered)) for token in text])
            share[row, : len(text)] = 1 / len(text)
    return States(chances, {"lost": lost, "place": place, "share": share})


def evaluated(work: Prepared, part: str) -> float:
    """Return the loss a token of the speeches of the split `part`: the sum over all their tokens, over their number."""
    batch = work.parts[part][torch.arange(len(work.parts[part]))]
    with torch.no_grad():
        return float(_each(work.tail, batch)[batch["share"] > 0].double().mean())


def _measure(options: Namespace, at: Cell) -> dict[str, Any]:
    work = options.work = options.work or prepared(options.data)
    sizes, method = SETTINGS[at["method"]], at["method"]
    chosen = at["setting"] == CHOSEN
    number = best(read_rows(options.out), "dev_loss", lowest=True, method=method) if chosen and len(sizes) > 1 else 0
    size = sizes[number] if chosen else sizes[int(at["setting"])]
    with torch.no_grad():
        work.tail.added.zero_()  # type: ignore[operator]
    norm = public_clip(work.tail, losses, work.parts["dev"], work.parts["train"], smoothing=SMOOTHING)
    step_size = size if method == "adamw" else size * DIRECTIONS / norm**2
    run = {
        **at, "n": N, "steps": STEPS, "batch": BATCH, "clip": math.sqrt(DIRECTIONS) * norm, "directions": DIRECTIONS,
        "smoothing": SMOOTHING,
    }  # fmt: skip
    cost = trained(work, run, step_size, lambda step: None)
    count = sum(p.numel() for p in work.tail.parameters())
    return {
        "n": N, "d": count, "scale": size, "step_size": step_size, "gradient_norm": norm,
        "dev_loss": evaluated(work, "dev"), "test_loss": (loss := evaluated(work, "test")),
        "perplexity": math.exp(loss), **cost,
    }  # fmt: skip


def table(folder: Path = RESULTS / "llm_speeches") -> str:
    """Return a table of the perplexity of test speeches before and after training, by method: the mean over the
    reported runs, with its 95% interval (Student's t)."""
    rows = having(read_rows(folder).astype({"setting": str, "epsilon": str}), setting=CHOSEN)
    lines = []
    for method, epsilon in RUNS:
        mine = having(rows, method=method, epsilon=epsilon)
        texts = [mean_interval(mine[name], of, of) for name, of in (("test_loss", ".3f"), ("perplexity", ".1f"))]
        lines.append([LABELS[method].format(epsilon), *texts, f"{len(mine)}"])
    return markdown(["model", "loss a token", "perplexity", "runs"], lines)


def _cells(options: Namespace) -> Iterator[Cell]:
    done = set()
    for method, epsilon in RUNS:
        at = {"method": method, "epsilon": epsilon}
        if method not in done and len(SETTINGS[method]) > 1:
            yield from tried(at, len(SETTINGS[method]))
        done.add(method)
        yield from reported(at, options.seeds if method != "zero-shot" else 1)


def check_data(parser: Parser, options: Namespace) -> None:
    """Refuse a command line without data, and one whose model is not made."""
    if options.data is None:
        parser.error(f"--data must be given, a folder with {FILE}")
    ready(parser, options)


EXPERIMENT = Experiment(
    name="llm.speeches",
    about=__doc__,
    flags=[
        flag("--data", type=input_folder(), help=f"folder with {FILE}"),
        flag("--seeds", type=integer(1, 100), default=5, help="runs of each kind that are reported"),
    ],
    folder="llm_speeches",
    key=("method", "epsilon", "setting", "seed"),
    fields=(
        "n", "d", "scale", "step_size", "gradient_norm", "dev_loss", "test_loss", "perplexity", "epsilon_upper",
        "noise_multiplier",
    ),
    seeds=lambda options: range(options.seeds + 1),
    dtype="bfloat16, what is trained in float32",
    settings={
        "model": MODEL, "tokens": LENGTH, "steps": STEPS, "batch": BATCH, "directions": DIRECTIONS,
        "smoothing": SMOOTHING, "difference": "forward", "delta": DELTA, "sampling": "poisson",
        "relation": "add-remove", "clip": "sqrt(K) times the median gradient norm",
        "trained": "one number for each token of public speeches, added to the logits",
    },
    check=check_data,
    cells=_cells,
    measure=_measure,
    told=lambda at, rows: (
        f"{at['method']} ({at['epsilon']}), setting {at['setting']}, seed {at['seed']}: dev loss"
        f" {rows[0]['dev_loss']:.3f}, test loss {rows[0]['test_loss']:.3f}, perplexity {rows[0]['perplexity']:.1f}"
    ),
    summary=table,
)  # fmt: skip

if __name__ == "__main__":
    sys.exit(EXPERIMENT.main())
