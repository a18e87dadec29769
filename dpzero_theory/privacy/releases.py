"""What a history of releases is: groups of releases with the same settings, and an accountant over them."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from dpzero_theory.check import choice, integer, precondition, real
from dpzero_theory.privacy.gaussian import RELATIONS, epsilon_from_gdp, sensitivity

__all__ = ["SAMPLING", "Accountant", "Group", "Settings", "full_batch_epsilon"]

SAMPLING = ("full", "poisson", "fixed-size", "random-allocation", "fixed-order")
"""How the records of each release are chosen; only `full` has sample_rate 1."""


@dataclass(frozen=True)
class Settings:
    """What each release of a plan does.

    n: number of records, n >= 1. sample_rate: q in (0, 1], 1 for full batches. noise_multiplier: standard
    deviation of the noise on the clipped sum, over clip, > 0 (sigma q n/C for noise sigma on the average over
    the expected batch q n). clip: C > 0. relation: one of `RELATIONS`. sampling: one of `SAMPLING`. Raises
    ValueError for anything else.
    """

    n: int
    sample_rate: float
    noise_multiplier: float
    clip: float
    relation: str
    sampling: str

    def __post_init__(self) -> None:
        checked = {
            "n": integer("n", self.n),
            "sample_rate": real("sample_rate", self.sample_rate, above=0.0, at_most=1.0),
            "noise_multiplier": real("noise_multiplier", self.noise_multiplier, above=0.0),
            "clip": real("clip", self.clip, above=0.0),
            "relation": choice("relation", self.relation, RELATIONS),
            "sampling": choice("sampling", self.sampling, SAMPLING),
        }
        for name, value in checked.items():
            object.__setattr__(self, name, value)
        if (self.sampling == "full") != (self.sample_rate == 1):
            raise ValueError(f"sample_rate must be 1 for sampling full and below 1 otherwise; got {self.sample_rate}")


class Group(NamedTuple):
    """A number of releases made with the same settings."""

    settings: Settings
    releases: int


Accountant = Callable[[Sequence[Group], float], float]
"""(groups, delta) -> an upper bound on the epsilon of all the groups together."""


def full_batch_epsilon(groups: Sequence[Group], delta: float) -> float:
    """Exact epsilon of full-batch Gaussian releases: mu^2 = sum_j T_j (Delta_j/sigma_j)^2 (see `gaussian.py`).

    groups: any number, each with sampling `full`. delta: 0 < delta < 1. Returns 0 for no releases. Raises
    ValueError for another delta, PreconditionError for another sampling: that needs its own accountant.
    """
    real("delta", delta, above=0.0, below=1.0)
    for settings, _ in groups:
        precondition(
            settings.sampling == "full",
            f"full_batch_epsilon needs sampling full; got {settings.sampling}: pass an accountant for it",
        )
    squared = math.fsum(
        releases * (sensitivity(1.0, 1, settings.relation) / settings.noise_multiplier) ** 2
        for settings, releases in groups
    )
    return float(epsilon_from_gdp(math.sqrt(squared), delta)) if squared > 0 else 0.0
