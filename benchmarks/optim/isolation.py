"""How rounding lets other records change a record's difference of losses, and what it costs to prevent that.

    python -m benchmarks.isolation [--turns N] [--out DIR]

A BERT of random weights in float32 reads texts of 5 to 64 tokens. There is a row for each way of keeping records apart
(`optim.losses.isolation`):

    probed              micro-batches of up to 64, padded to their longest record; what a run does by default
    probed, one by one  micro-batches of one record
    exact               micro-batches filled up to 64, 32, 16 or 8 records, all padded to 64 tokens
    exact, rows of 16   the same with micro-batches filled up to 16, 8, 4 or 2 records

The columns moved_... are for the smoothings lambda = 1e-3, 1e-6 and 2.6e-7. For each, 16 texts of at most 40 tokens are
evaluated without and with a text of 64 tokens beside them, along 20 directions; the column has the largest change of
one of the 16 texts' differences, as a share of the clip, which is 1. The column seconds is the processor time of a
private step with Poisson batches of about 64 of 1,024 records, where the ways of keeping records apart take turns. The
column ratio is that time over the time of `probed`: the median over turns, and beside it its standard error.
"""

import tempfile
import time
import warnings
from argparse import Namespace
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from transformers import BertConfig, BertForSequenceClassification

from benchmarks.kit.device import one_thread
from benchmarks.kit.experiment import Cell, Experiment, flag
from benchmarks.kit.tables import rounded_row
from benchmarks.kit.timing import median_ratio
from benchmarks.optim.optimizer_methods import SMALL
from dpzero_theory.cli import integer
from dpzero_theory.optim.private import make_private_with_epsilon
from dpzero_theory.optim.run import Run

RECORDS, LENGTH, SHORT, BESIDE, DIRECTIONS = 1024, 64, 40, 16, 20
SMOOTHINGS = (1e-3, 1e-6, 2.6e-7)
WAYS = {
    "probed": ("probed", 64),
    "probed, one by one": ("probed", 1),
    "exact": ("exact", 64),
    "exact, rows of 16": ("exact", 16),
}
MOVED = tuple(f"moved_{smoothing:g}" for smoothing in SMOOTHINGS)


def texts(lengths: Sequence[int]) -> list[Tensor]:
    draw = torch.Generator().manual_seed(0)
    return [torch.randint(5, 2000, (length,), generator=draw) for length in lengths]


def padded(records: Sequence[Tensor], to: int = 0) -> tuple[Tensor, Tensor]:
    """Return (ids, mask), both of shape (records, width): the tokens of the records, padded with the token 0 to the
    longest record and to at least `to` tokens, and a mask that is 1 at tokens and 0 at padding. No record has the token
    0."""
    longest = max(to, *(len(record) for record in records))
    ids = torch.stack([nn.functional.pad(record, (0, longest - len(record))) for record in records])
    return ids, (ids > 0).long()


def losses(module: nn.Module, batch: Any) -> Tensor:
    """Return the loss of each record of a batch (token ids, mask). If texts have the full LENGTH, the mask is given
    with four dimensions: of a mask with two, transformers reads the values, and chooses other kernels if all are 1."""
    ids, mask = batch
    if ids.shape[1] == LENGTH:
        mask = mask.bool()[:, None, None, :].expand(-1, 1, LENGTH, -1)
    logits = module(input_ids=ids, attention_mask=mask).logits
    return nn.functional.cross_entropy(logits, ids[:, 0] % 2, reduction="none")


def model() -> nn.Module:
    torch.manual_seed(0)
    same = ("vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size")
    config = BertConfig(**{name: getattr(SMALL["tiny"], name) for name in same})
    module: nn.Module = BertForSequenceClassification(config).eval()
    return module


def start(way: str, smoothing: float, folder: str) -> Run:
    """Return a private run with one `way` of keeping records apart, a key of WAYS. Its records 0 to 15 are short, and
    record 16 is the longest possible. The smoothing is lambda, and `folder` is the parent of the run's new folder."""
    isolation, micro_batch = WAYS[way]
    draw = np.random.default_rng(0)
    lengths = [*draw.integers(5, SHORT + 1, BESIDE), LENGTH, *draw.integers(5, LENGTH + 1, RECORDS - BESIDE - 1)]
    to = LENGTH if isolation == "exact" else 0
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "smoothing = .* makes rounding visible")
        return make_private_with_epsilon(
            model(), losses, texts(lengths), target_epsilon=2.0, target_delta=1e-5, steps=10_000, expected_batch=64,
            clip=1.0, step_size=1e-6, smoothing=smoothing, relation="add-remove", sampling="poisson",
            folder=Path(folder) / "run", micro_batch=micro_batch, collate=lambda records: padded(records, to),
            isolation=isolation,
        )  # fmt: skip


def moved(way: str, smoothing: float) -> float:
    """Return the largest change, in absolute value, of a short record's difference of losses, among 16 records and
    DIRECTIONS directions, when the longest record joins their batch. `way`, a key of WAYS, says how records are kept
    apart while the losses are computed, and `smoothing` is lambda. The clip is 1, so this is a share of it, too."""
    micro_batch, largest = WAYS[way][1], 0.0
    with tempfile.TemporaryDirectory() as folder:
        run = start(way, smoothing, folder)
        for release in range(DIRECTIONS):
            found = [
                np.concatenate(
                    [
                        run.sums.differences(release, batch[first:][:micro_batch])
                        for first in range(0, len(batch), micro_batch)
                    ]
                )[:BESIDE]
                for batch in (np.arange(BESIDE), np.arange(BESIDE + 1))
            ]
            largest = max(largest, float(np.abs(found[1] - found[0]).max()))
        run.close()
    return largest


def seconds(turns: int) -> dict[str, list[float]]:
    """Return for each way of keeping records apart the processor seconds of a step in each of `turns` turns. The ways
    alternate, and a turn before the first is made only to warm up."""
    times: dict[str, list[float]] = {way: [] for way in WAYS}
    with ExitStack() as stack:
        runs = {}
        for way in WAYS:
            runs[way] = start(way, 1e-3, stack.enter_context(tempfile.TemporaryDirectory()))
            stack.callback(runs[way].close)
        for turn in range(turns + 1):
            for way in list(WAYS)[:: 1 if turn % 2 else -1]:
                begun = time.process_time()
                runs[way].step()
                if turn:
                    times[way].append(time.process_time() - begun)
    return times


def _measure(options: Namespace, at: Cell) -> Iterator[dict[str, Any]]:
    times = seconds(options.turns)
    for way in WAYS:
        ratio, error = median_ratio(times[way], times["probed"])
        row: dict[str, Any] = {"way": way, "turns": options.turns}
        row |= {name: moved(way, value) for name, value in zip(MOVED, SMOOTHINGS, strict=True)}
        row |= {"seconds": float(np.median(times[way])), "ratio": ratio, "ratio_error": error}
        shown = rounded_row(row)
        print(", ".join(f"{name} {value}" for name, value in shown.items()), flush=True)
        yield shown


EXPERIMENT = Experiment(
    name="isolation",
    about=__doc__,
    flags=[flag("--turns", type=integer(2, 1000), default=30)],
    key=("way",),
    fields=(*MOVED, "turns", "seconds", "ratio", "ratio_error"),
    seeds=[0],
    dtype="float32",
    settings={"records": RECORDS, "length": LENGTH, "clip": 1.0, "directions": DIRECTIONS},
    check=one_thread,
    keys=lambda options, at: [{"way": way} for way in WAYS],
    measure=_measure,
)
