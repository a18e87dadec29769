"""What each release of a run does, and the default accountant over a history of releases."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from dpzero_theory.check import choice, integer, real
from dpzero_theory.privacy.accountant import epsilon_of_history
from dpzero_theory.privacy.certified.pairs import SAMPLINGS, Group, group
from dpzero_theory.privacy.gaussian import RELATIONS

__all__ = ["MECHANISMS", "Accountant", "Settings", "certified_epsilon"]

MECHANISMS = ("gaussian", "laplace")
"""The noise of a release, which says which accountants its history is for."""

Accountant = Callable[[Sequence[Group], float], float]
"""(groups of releases, delta) -> an upper bound on the epsilon of all of them together."""


@dataclass(frozen=True)
class Settings:
    """The settings of a release, which a ledger compares with the plan.

    n: number of records, n >= 1. sample_rate: q in (0, 1], 1 for full batches. noise_multiplier: standard
    deviation of the noise on the clipped sum over clip, > 0: sigma q n/C for noise sigma on the average over the
    expected batch q n (laplace: as `laplace.release_epsilon`). clip: C > 0. relation: one of `RELATIONS`. sampling: one
    of `pairs.SAMPLINGS`. mechanism: one of `MECHANISMS`. Raises ValueError for anything else.
    """

    n: int
    sample_rate: float
    noise_multiplier: float
    clip: float
    relation: str
    sampling: str
    mechanism: str = "gaussian"

    def __post_init__(self) -> None:
        checked = {
            "n": integer("n", self.n),
            "sample_rate": real("sample_rate", self.sample_rate, above=0.0, at_most=1.0),
            "noise_multiplier": real("noise_multiplier", self.noise_multiplier, above=0.0),
            "clip": real("clip", self.clip, above=0.0),
            "relation": choice("relation", self.relation, RELATIONS),
            "sampling": choice("sampling", self.sampling, SAMPLINGS),
            "mechanism": choice("mechanism", self.mechanism, MECHANISMS),
        }
        for name, value in checked.items():
            object.__setattr__(self, name, value)
        self.releases(1)

    def releases(self, steps: int) -> Group:
        """`steps` >= 1 releases with these settings, for an accountant. Raises ValueError."""
        return group(
            self.noise_multiplier,
            steps,
            sampling=self.sampling,
            relation=self.relation,
            sample_rate=self.sample_rate,
        )


def certified_epsilon(history: Sequence[Group], delta: float) -> float:
    """The upper end of `accountant.epsilon_of_history`, and 0 for no releases. 0 < delta < 1, else ValueError."""
    real("delta", delta, above=0.0, below=1.0)
    return epsilon_of_history(history, delta).upper if history else 0.0
