"""What releases add to a composition."""

from dataclasses import dataclass

from dpzero_theory.privacy.certified.allocations.allocation import Run
from dpzero_theory.privacy.certified.laws.finite import FinitePair
from dpzero_theory.privacy.certified.laws.pairs import Pair


@dataclass(frozen=True)
class Terms:
    """In one of four forms.

    gdp: mu of plain Gaussian releases that cost at least as much, 0 where `pairs` is the answer. pairs: dominating
    pairs of one release, one for each direction (forward: the first data set is the larger one), or one for both.
    attained: pairs that some data set attains at every step; equal to `pairs` wherever these are tight. run: a random
    allocation, where that is the sharper answer than `gdp`. finite: finite pairs above and below one release, for each
    direction. releases: how many the pairs are of, where these are fewer
    than were made; else 0. truncated: the chance with which a release is, knowingly,
    one with fixed-size batches of the same rate instead of one with `pairs`.
    """

    gdp: float = 0.0
    pairs: tuple[Pair, ...] = ()
    attained: tuple[Pair, ...] = ()
    run: Run | None = None
    finite: tuple[FinitePair, FinitePair] | None = None
    truncated: float = 0.0
    releases: int = 0
