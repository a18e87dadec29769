"""Runs on different data that draw the same, so that what differs between them depends on the records.

Drawn from the operating system is not the noise alone: a run may have a secret key, under which a digest of its data
says nothing. Such coins are `free`: releases do not depend on them, nothing shows them, and what they are mixed with
differs between the data. They are not the same in coupled runs, so that what they hide differs between all of these.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from dpzero_theory.audit import datasets
from dpzero_theory.audit.datasets import Records
from dpzero_theory.audit.lab import Lab, alike
from dpzero_theory.audit.loop import Outcome
from dpzero_theory.audit.sources import KEY, Entropy, known_entropy, stopped_clocks
from dpzero_theory.audit.tokens import Place, Shown, tokens

CLIPPED, LARGER = (8.0, -8.0), 1024.0
"""Scales at which a record is clipped, and how much larger it is then made without changing its contribution."""
_BARELY = 1e-6
"""Of the step size, so that weights hardly move, but do."""
_SEED = 11
_MOST = 64
"""Places of coins that are looked at."""


def coupled(lab: Lab, worlds: Sequence[Records], count: int, **changes: Any) -> Iterator[list[Outcome | None]]:
    """Runs on each of these data, with all noise, that draw the same but for free coins; so `count` times at most.

    changes: of settings.

    The operating system's entropy is a known stream for all of them, clocks stand, and weights hardly move, so that
    what is computed of a record hardly does. Nothing where runs on the same data differ even so.
    """
    if not lab.loop.step_size or lab.base.releases is None:
        return
    with _runs(lab, changes) as run:
        free = _free(run, lab.loop.records)
        for number in range(count):
            first, again = (run(worlds[0], number, free) for _ in (0, 1))
            if not alike(first, again):
                return
            yield [first, *(run(data, number, free) for data in worlds[1:])]


class _Runs:
    """Runs that draw the same."""

    def __init__(self, lab: Lab, entropy: Entropy, changes: Mapping[str, Any]) -> None:
        assert lab.loop.step_size
        self._lab, self._entropy, self._count = lab, entropy, 0
        self._changes = {"step_size": lab.loop.step_size * _BARELY, **lab.all_records, **changes}

    def __call__(
        self, data: Records, number: int, others: Sequence[str] = (), which: int | None = None
    ) -> Outcome | None:
        """A run whose coins at the places `others` are of a stream of their own; a new one in each run if None."""
        self._count += 1
        self._entropy.start(number, others, self._count if which is None else which)
        return self._lab.attempt(data, seed=_SEED + number, **self._changes)

    @property
    def keys(self) -> list[str]:
        """Where the last run took as many bytes as a key has, or more."""
        return [place for place, taken in self._entropy.places.items() if taken >= KEY]


@contextmanager
def _runs(lab: Lab, changes: Mapping[str, Any]) -> Iterator[_Runs]:
    with stopped_clocks(), known_entropy() as entropy:
        yield _Runs(lab, entropy, changes)


def _free(run: _Runs, records: Records) -> list[str]:
    """Places of free coins, found by exchanging those of one place at a time.

    Two data sets whose releases are the same are compared: what is not a digest of them is the same there.
    """
    worlds = [
        datasets.replaced(records, 0, datasets.scaled(records[0], factor))
        for factor in (CLIPPED[0], CLIPPED[0] * LARGER)
    ]
    before = [(run(data, 0), run(data, 0)) for data in worlds]
    found = []
    for place in run.keys[:_MOST]:
        after = [run(data, 0, [place], 1) for data in worlds]
        if all(alike(pair[0], other) for pair, other in zip(before, after, strict=True)) and _hidden(before, after):
            found.append(place)
    return found


def _hidden(before: Sequence[tuple[Outcome | None, ...]], after: Sequence[Outcome | None]) -> bool:
    """Whether other coins change something shown, and nothing in one way on both data.

    before: two runs on each, as some things always change.
    """
    shown = [[tokens(run) for run in (*runs, other) if run] for runs, other in zip(before, after, strict=True)]
    changed = [place for runs in shown for place in runs[0].keys() | runs[-1].keys() if _moved(runs, place)]
    in_one_way = (all(one.get(place) == two.get(place) for one, two in zip(*shown, strict=True)) for place in changed)
    return bool(changed) and not any(in_one_way)


def _moved(shown: Sequence[Shown], place: Place) -> bool:
    one, again, other = (run.get(place) for run in shown)
    return one == again != other
