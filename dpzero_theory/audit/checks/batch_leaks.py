"""Searches what a loop shows for the members or the sizes of its batches.

Privacy amplification by sampling holds only while the batches are secret.
"""

from collections.abc import Iterator

import numpy as np
from scipy import stats

from dpzero_theory.audit.lab import Lab
from dpzero_theory.audit.runs import SEED
from dpzero_theory.audit.tokens import Token, contents
from dpzero_theory.check import Array
from dpzero_theory.privacy.relation import Relation

_Contents = list[tuple[str, list[Token]]]
"""What a run shows, which is each output as its name and the list of its numbers and words."""

_FEWEST_STEPS = 4
"""Batches with fewer members, and runs with fewer steps, are not looked for in outputs, as they match by chance."""

_SIZE_STRIDES = 64
"""Sizes of consecutive batches are looked for in an output at distances of 1 to this many of its numbers."""

_SIZE_STARTS = 1000  # At most this many numbers of an output are tried as the size of the first batch
_NEAR_SIZE = 0.05  # A number times a constant counts as the size of a batch if it is so near to it
_BATCH_SEEDS = range(SEED, SEED + 4)  # The loop's seeds in the runs whose outputs are searched for the batches
BY_CHANCE = 1e-6
"""An output is reported as showing the batches where it matches them by chance with probability below this."""


def of_batches(lab: Lab) -> str | None:
    """Returns a sentence on an output that shows the batches' sizes or members; None where no output does.

    `lab` makes experiments on the audited loop.
    """
    claim = lab.claim
    if claim.sample_rate == 1 or claim.sampling in ("full", "fixed-order", "shuffled"):
        return None
    runs = list(_with_batches(lab))
    if claim.relation == Relation.ADD_REMOVE and runs and (name := _with_sizes(runs, claim.n, claim.sample_rate)):
        return f"{name}: it has the sizes of the batches, which follow who is in the data"
    for shown, batches in runs[:1]:
        if len(members := _with_members(shown, batches, claim.n)) > 1:
            return f"{members[0]}: it says who is in the batches, on whose secrecy the claim rests"
    return None


def _with_batches(lab: Lab) -> Iterator[tuple[_Contents, list[list[int]]]]:
    """Yields, for each of several runs, what it shows and its batches as lists of record indices.

    The batches are those that the loop returns, or else those that `Influence.scan` of `lab` inferred.
    """
    scan = lab.influence.scan
    for seed in _BATCH_SEEDS if scan is None else scan.seeds:
        how = lab.runs.with_batches(seed)
        mine = seed == SEED and how["stream"] is None and lab.loop.clock is None
        run = lab.runs.base if mine else lab.loop.run(**how)
        batches = run.batches
        if batches is None and scan is not None:
            batches = [np.flatnonzero(row).tolist() for row in scan.included[scan.seeds.index(seed)]]
        if batches:
            yield [one for name, value in run.shown.items() for one in contents(name, value)], batches


def _with_sizes(runs: list[tuple[_Contents, list[list[int]]]], n: int, rate: float) -> str | None:
    """Returns the name of an output that lists the sizes of all batches, at the same place in every run; else None.

    The sizes must be equally spaced in the output, and the match must have probability below `BY_CHANCE` by chance.

    Args:
        runs: for each run, what it shows and its batches.
        n: the number of records.
        rate: the probability with which a record is in a batch.
    """
    steps = min(len(batches) for _, batches in runs)
    chance = float(stats.binom.pmf(np.arange(n + 1), n, rate).max()) ** ((steps - 1) * len(runs))
    for name, content in runs[0][0]:
        places = _sizes_at(content, runs[0][1])
        for shown, batches in runs[1:]:
            places &= _sizes_at(dict(shown).get(name, []), batches)
        if places and chance * len(content) * _SIZE_STRIDES < BY_CHANCE:
            return name
    return None


def _with_members(shown: _Contents, batches: list[list[int]], n: int) -> list[str]:
    """Returns, for each batch that some output of a run lists, the name of that output.

    A list of a batch is its members in ascending order, or n numbers that are 1 for members and 0 for others.

    Args:
        shown: what the run shows.
        batches: the members of each batch.
        n: the number of records.
    """
    numbers = {name: np.array([token for token in one if isinstance(token, float)]) for name, one in shown}
    outputs = []
    for batch in batches:
        rows = [np.array(sorted(batch), dtype=float), np.isin(np.arange(n), batch).astype(float)]
        if _FEWEST_STEPS <= len(batch) < n and max(batch) - min(batch) >= len(
            batch
        ):  # A batch of consecutive indices would also match any output that counts upwards.
            outputs += [name for name, each in numbers.items() if any(_is_in(row, each) for row in rows)][:1]
    return outputs


def _is_in(row: Array, numbers: Array) -> bool:
    if len(numbers) < len(row):
        return False
    windows = np.lib.stride_tricks.sliding_window_view(numbers, len(row))
    return bool(np.asarray(windows == row).all(axis=1).any())


def _sizes_at(content: list[Token], batches: list[list[int]]) -> set[tuple[int, int]]:
    """Returns every (start, stride) at which an output lists the sizes of all batches, or a multiple of them.

    Number start + stride * t of `content`, an output's numbers and words, is then the size of batch t times a constant,
    for every t. A rate of records per second is such a multiple where every step takes the same time.
    """
    sizes = np.array([len(batch) for batch in batches], dtype=np.float64)
    if len(sizes) < _FEWEST_STEPS or len(set(sizes)) < 2:
        return set()
    numbers = np.array([token if isinstance(token, float) else np.nan for token in content])
    last, scale, found = len(sizes) - 1, float(sizes @ sizes), set[tuple[int, int]]()
    for stride in range(1, min(_SIZE_STRIDES, (len(numbers) - 1) // last) + 1):
        windows = np.lib.stride_tricks.sliding_window_view(numbers, last * stride + 1)[:_SIZE_STARTS, ::stride]
        with np.errstate(all="ignore"):
            factors = windows @ sizes / scale
            apart = np.abs(windows / factors[:, None] - sizes).max(axis=1)
        found |= {(int(start), stride) for start in np.flatnonzero(apart < _NEAR_SIZE)}
    return found
