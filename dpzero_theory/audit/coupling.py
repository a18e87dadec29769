"""Runs on different data that draw the same, so that what differs between them depends on the records.

Drawn from the operating system is not the noise alone: a run may have a secret key, under which a digest of its data
says nothing. Such coins are `free`: releases do not depend on them, nothing shows them, and what they are mixed with
differs between the data. They are not the same in coupled runs, so that what they hide differs between all of these.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any
from weakref import WeakKeyDictionary

from dpzero_theory.audit import datasets
from dpzero_theory.audit.datasets import Records
from dpzero_theory.audit.lab import Lab, alike
from dpzero_theory.audit.loop import Outcome
from dpzero_theory.audit.sources import KEY, Entropy, known_entropy, stopped_clocks
from dpzero_theory.audit.tokens import Place, Shown, tokens

CLIPPED, LARGER = (8.0, -8.0), 1024.0
"""Scales at which a record is clipped, and how much larger it is then made without changing its contribution."""
_BARELY = 1e-9
"""Of the step size, so that weights hardly move, but do."""
_SEED = 11
_MOST, _COINS = 64, 20
"""Places of coins that are looked at, and how often coins are exchanged: what is hidden may stay in one way by chance.
"""
_known: WeakKeyDictionary[Lab, dict[str, list[str]]] = WeakKeyDictionary()
"""The free coins of each lab's loop, by the changes of settings: many runs show them, and each check asks."""


def coupled(
    lab: Lab, worlds: Sequence[Records], numbers: Sequence[int], **changes: Any
) -> Iterator[list[Outcome | None]]:
    """Runs on each of these data, with all noise, that draw the same but for free coins; once for each of the numbers.

    numbers: of draws, which are others for other numbers. changes: of settings.

    The operating system's entropy is a known stream for all of them, clocks stand, and weights hardly move, so that
    what is computed of a record hardly does. Nothing where runs on the same data differ even so.
    """
    if not lab.loop.step_size or lab.base.releases is None:
        return
    with _runs(lab, changes) as run:
        known, key = _known.setdefault(lab, {}), repr(sorted(changes.items()))
        if key not in known:
            known[key] = _free(run, lab.loop.records)
        free = known[key]
        for number in numbers:
            first, again = (run(worlds[0], number, free) for _ in (0, 1))
            if not alike(first, again):
                return
            yield [first, *(run(data, number, free) for data in worlds[1:])]


class _Runs:
    """Runs that draw the same."""

    def __init__(self, lab: Lab, entropy: Entropy, changes: Mapping[str, Any]) -> None:
        assert lab.loop.step_size
        self._lab, self._entropy, self._count = lab, entropy, 0
        step = lab.frozen.get("step_size") if lab.loop.from_weights else lab.loop.step_size * _BARELY
        self._changes = {**({"step_size": step} if step else {}), **lab.all_records, **changes}

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
    return [place for place in run.keys[:_MOST] if _is_free(run, worlds, before, place)]


def _is_free(run: _Runs, worlds: Sequence[Records], before: Sequence[tuple[Outcome | None, ...]], coins: str) -> bool:
    """Whether other coins change something shown but no release, and nothing in one way on both data.

    before: two runs on each, as some things always change. A digit of a digest may be the same on both data by chance:
    coins are exchanged until nothing is that has always been.
    """
    in_one_way: set[Place] | None = None
    for which in range(1, _COINS + 1):
        after = [run(data, 0, [coins], which) for data in worlds]
        if not all(alike(pair[0], other) for pair, other in zip(before, after, strict=True)):
            return False
        shown = [[tokens(one) for one in (*runs, other) if one] for runs, other in zip(before, after, strict=True)]
        if in_one_way is None:
            in_one_way = {place for runs in shown for place in runs[0].keys() | runs[-1].keys() if _moved(runs, place)}
            if not in_one_way:
                return False
        in_one_way = {
            place
            for place in in_one_way
            if all(one.get(place) == two.get(place) for one, two in zip(*shown, strict=True))
        }
        if not in_one_way:
            return True
    return False


def _moved(shown: Sequence[Shown], place: Place) -> bool:
    one, again, other = (run.get(place) for run in shown)
    return one == again != other
