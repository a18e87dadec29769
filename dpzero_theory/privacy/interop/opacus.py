"""The certified accountant inside Opacus: import this module, then `PrivacyEngine(accountant="certified")`.

    import dpzero_theory.privacy.interop.opacus
    engine = PrivacyEngine(accountant="certified")

`make_private_with_epsilon`, `get_noise_multiplier`, `state_dict` and checkpoints work as with Opacus's own. Its
convention is Opacus's: the noise's standard deviation over the clip, Poisson batches, one record more or less. That
is what Opacus runs with `poisson_sampling=True` (its default) only. Importing this module needs Opacus.
"""

import math
from collections.abc import Iterable

from opacus.accountants import register_accountant
from opacus.accountants.accountant import IAccountant

from dpzero_theory import check
from dpzero_theory.privacy.accountant import epsilon_of_history
from dpzero_theory.privacy.bracket import Bracket
from dpzero_theory.privacy.interop.events import merged
from dpzero_theory.privacy.relation import Relation
from dpzero_theory.privacy.step import Release

Entry = tuple[float, float, int]
"""Of Opacus's histories: noise multiplier, sample rate, number of steps."""


class CertifiedAccountant(IAccountant):  # type: ignore[misc]
    """Opacus's `IAccountant` with certified answers. A subclass may name another `relation`, and is then registered."""

    relation = Relation.ADD_REMOVE

    def __init__(self) -> None:
        self.history: list[Entry] = []

    @classmethod
    def mechanism(cls) -> str:
        """Opacus's name of it."""
        return "certified"

    def __len__(self) -> int:
        """Number of steps taken."""
        return sum(steps for _, _, steps in self.history)

    def step(self, *, noise_multiplier: float, sample_rate: float) -> None:
        """One step. noise_multiplier: >= 0, where 0 protects nothing. sample_rate: q in (0, 1]. Raises ValueError."""
        noise = check.real("noise_multiplier", noise_multiplier, at_least=0)
        _release((noise or 1.0, sample_rate, 1), self.relation)
        last = self.history[-1] if self.history else None
        if last is not None and last[:2] == (noise_multiplier, sample_rate):
            self.history[-1] = (noise_multiplier, sample_rate, last[2] + 1)
        else:
            self.history.append((noise_multiplier, sample_rate, 1))

    def get_epsilon(
        self,
        delta: float,
        alphas: object = None,
        *,
        eps_error: float | None = None,
        delta_error: float | None = None,
        poisson: bool = True,
    ) -> float:
        """The certified epsilon at delta in (0, 1); infinite where a step had no noise.

        alphas, eps_error, delta_error: how exact Opacus's own accountants are; what is certified needs none, and they
        change nothing. poisson: True, the batches that are accounted. Raises ValueError.
        """
        if poisson is not True:
            raise ValueError(f"poisson must be True, the batches that are accounted; got {check.shown(poisson)}")
        return self.bracket(delta).value

    def bracket(self, delta: float) -> Bracket:
        """`get_epsilon` with its certified lower end."""
        check.real("delta", delta, above=0, below=1)
        if any(noise == 0 for noise, _, _ in self.history):
            return Bracket(math.inf, math.inf, math.inf, "a step without noise")
        return epsilon_of_history(history_from_opacus(self.history, self.relation), delta)


def history_from_opacus(history: Iterable[Entry], relation: str = Relation.ADD_REMOVE) -> tuple[Release, ...]:
    """The `history` of any Opacus accountant (rdp, gdp, prv, certified) as `accountant.epsilon_of_history` takes it.

    Raises ValueError for an entry that is not (noise multiplier > 0, sample rate in (0, 1], steps >= 1).
    """
    return merged([_release(entry, relation) for entry in history])


def _release(entry: Entry, relation: str) -> Release:
    noise_multiplier, sample_rate, steps = entry
    return Release(noise_multiplier, steps, sampling="poisson", relation=relation, sample_rate=sample_rate)


register_accountant(CertifiedAccountant.mechanism(), CertifiedAccountant)
