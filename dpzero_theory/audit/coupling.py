"""Coupled runs: runs on different data that draw the same random numbers, so that only the records make them differ.

A loop may draw more than its noise from the operating system. A run may, for example, draw a secret key and show a
digest of its data under that key, which betrays nothing. Random bytes are called *free* here where releases do not
depend on them, nothing shows them, and what they are mixed with differs between data sets. Free bytes are drawn anew in
each of the coupled runs, so whatever they hide differs between all of these runs, also between two on the same data.
"""

from collections.abc import Iterator, Sequence
from typing import Any
from weakref import WeakKeyDictionary

from dpzero_theory.audit import datasets
from dpzero_theory.audit.datasets import Records
from dpzero_theory.audit.loop import LoopOutput
from dpzero_theory.audit.runs import SEED, LoopRuns, alike
from dpzero_theory.audit.sources import KEY_BYTES, Entropy, known_entropy, stopped_clocks
from dpzero_theory.audit.tokens import Position, Shown, tokens

CLIPPED, LARGER = (8.0, -8.0), 1024.0
"""Factors by which a record is scaled so that the loop clips it, and a larger factor.

Multiplying a clipped record further by that larger factor leaves its clipped contribution the same.
"""
_BARELY = 1e-9
"""Coupled runs use this share of the loop's step size.

Weights then hardly move, but do move, so that releases can be seen from them.
"""

_MOST_CALLERS = 64
"""The audit tests at most this many code lines that draw random bytes for whether releases depend on those bytes"""

_EXCHANGES = 20  # How often a code line's random bytes are exchanged before what they hide counts as never changing
_known: WeakKeyDictionary[LoopRuns, dict[str, list[str]]] = WeakKeyDictionary()
"""For each audited loop and each change of its settings, the code lines whose random bytes are free.

They are kept because several checks need them.
"""


def coupled(
    runs: LoopRuns, worlds: Sequence[Records], numbers: Sequence[int], **changes: Any
) -> Iterator[list[LoopOutput | None]]:
    """Yields coupled runs, which draw the same random numbers: for each of the numbers, one run on each data set.

    The noise has its full size. The operating system's random bytes come from a known stream, clocks stand still, and
    weights hardly move where the loop has a step size, so that gradients stay the same. Nothing is yielded where runs
    on the same data differ nevertheless.

    Args:
        runs: runs of the audited loop.
        worlds: the data sets.
        numbers: each number selects another stream of random bytes, and so other noise.
        changes: changes of the loop's settings.
    """
    if runs.base.releases is None:
        return
    with stopped_clocks(), known_entropy() as entropy:
        run = _CoupledRuns(runs, entropy, changes)
        known, key = _known.setdefault(runs, {}), repr(sorted(changes.items()))
        if key not in known:
            known[key] = _free(run, runs.loop.records)
        free = known[key]
        for number in numbers:
            first, again = (run(worlds[0], number, free) for _ in (0, 1))
            if not alike(first, again):
                return
            yield [first, *(run(data, number, free) for data in worlds[1:])]


class _CoupledRuns:
    """Makes runs of one loop whose noise and other random numbers are equal, by fixing the stream of random bytes.

    Args:
        runs: runs of the loop.
        entropy: the known streams that stand in for the operating system's random bytes.
        changes: changes of the loop's settings.
    """

    def __init__(self, runs: LoopRuns, entropy: Entropy, changes: dict[str, Any]) -> None:
        self._runs, self._entropy, self._count = runs, entropy, 0
        barely = (runs.loop.step_size or 0.0) * _BARELY
        step = runs.frozen.get("step_size") if runs.loop.from_weights else barely
        self._changes = {**({"step_size": step} if step else {}), **runs.all_records, **changes}

    def __call__(
        self, data: Records, number: int, others: Sequence[str] = (), which: int | None = None
    ) -> LoopOutput | None:
        """Makes a run on the records `data` with the random bytes of stream `number`.

        Returns None where the loop raises an error. The code lines in `others` draw from another stream, of the number
        `which`, or one that is new in each run if `which` is None.
        """
        self._count += 1
        self._entropy.start(number, others, self._count if which is None else which)
        return self._runs.attempt(data, seed=SEED + number, **self._changes)

    @property
    def keys(self) -> list[str]:
        """The code lines at which the last run drew at least as many random bytes as a key has, 8."""
        return [place for place, taken in self._entropy.places.items() if taken >= KEY_BYTES]


def _free(run: _CoupledRuns, records: Records) -> list[str]:
    """Returns the code lines that draw free bytes (see the module), by exchanging the bytes of one line at a time.

    `run` makes the runs. They are made on two data sets with equal releases, which are the `records` with the first one
    scaled by two factors, both so large that the loop clips it, so that only something like a digest of the data
    differs.
    """
    worlds = [
        datasets.replaced(records, 0, datasets.scaled(records[0], factor))
        for factor in (CLIPPED[0], CLIPPED[0] * LARGER)
    ]
    before = [(run(data, 0), run(data, 0)) for data in worlds]
    return [place for place in run.keys[:_MOST_CALLERS] if _is_free(run, worlds, before, place)]


def _is_free(
    run: _CoupledRuns, worlds: Sequence[Records], before: Sequence[tuple[LoopOutput | None, ...]], place: str
) -> bool:
    """Whether the random bytes drawn at one code line are free, as the module defines it.

    They are if other bytes change something that is shown, change no release, and change nothing to the same value on
    both data sets. A digit of a digest may be the same on both by chance, so bytes are exchanged until no position is
    left that was the same every time.

    Args:
        run: makes the runs.
        worlds: the two data sets.
        before: two runs on each data set; outputs that differ between these two are left out.
        place: the code line.
    """
    always_alike: set[Position] | None = None
    for which in range(1, _EXCHANGES + 1):
        after = [run(data, 0, [place], which) for data in worlds]
        if not all(alike(pair[0], other) for pair, other in zip(before, after, strict=True)):
            return False
        shown = [[tokens(one) for one in (*pair, other) if one] for pair, other in zip(before, after, strict=True)]
        if always_alike is None:
            always_alike = {at for three in shown for at in three[0].keys() | three[-1].keys() if _moved(three, at)}
            if not always_alike:
                return False
        always_alike = {
            at for at in always_alike if all(one.get(at) == two.get(at) for one, two in zip(*shown, strict=True))
        }
        if not always_alike:
            return True
    return False


def _moved(shown: Sequence[Shown], at: Position) -> bool:
    one, again, other = (run.get(at) for run in shown)
    return one == again != other
