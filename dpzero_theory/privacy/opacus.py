"""This package's accountant inside Opacus. Import this module, then use `PrivacyEngine(accountant="certified")`.

    import dpzero_theory.privacy.opacus
    engine = PrivacyEngine(accountant="certified")

`make_private_with_epsilon`, `get_noise_multiplier`, `state_dict` and checkpoints work as with Opacus's own accountants.
As in Opacus, a noise multiplier is the noise's standard deviation divided by the clip, batches are Poisson, and
neighbours differ by one additional record. Opacus draws such batches only with `poisson_sampling=True`, its default.
Importing this module needs Opacus.
"""

import math

from opacus.accountants import register_accountant
from opacus.accountants.accountant import IAccountant

from dpzero_theory import check
from dpzero_theory.privacy.accountant import epsilon_of_history
from dpzero_theory.privacy.step import Step, step_of

_Entry = tuple[float, float, int]  # of an Opacus accountant's history: noise multiplier, sample rate, number of steps


class CertifiedAccountant(IAccountant):  # type: ignore[misc]
    """An Opacus accountant whose epsilon is an upper bound with all errors of its computation included.

    Attributes:
        history: a list of tuples (noise multiplier, sample rate, number of steps), one for each run of equal steps.
    """

    def __init__(self) -> None:
        self.history: list[_Entry] = []

    @classmethod
    def mechanism(cls) -> str:
        """Returns "certified", the name of this accountant in Opacus."""
        return "certified"

    def __len__(self) -> int:
        return sum(steps for _, _, steps in self.history)

    def step(self, *, noise_multiplier: float, sample_rate: float) -> None:
        """Records one step.

        Args:
            noise_multiplier: the noise's standard deviation divided by the clip, >= 0, else ValueError.
            sample_rate: the probability with which each record is in the batch, in (0, 1], else ValueError.
        """
        noise = check.real("noise_multiplier", noise_multiplier, at_least=0)
        self._steps(noise or 1.0, sample_rate, 1)
        last = self.history[-1] if self.history else None
        if last is not None and last[:2] == (noise_multiplier, sample_rate):
            self.history[-1] = (noise_multiplier, sample_rate, last[2] + 1)
        else:
            self.history.append((noise_multiplier, sample_rate, 1))

    def get_epsilon(self, delta: float, alphas: object = None, *, poisson: bool = True, **accuracy: object) -> float:
        """Returns an upper bound on epsilon of all recorded steps at `delta`; infinite if a step had no noise.

        Args:
            delta: in (0, 1), else ValueError.
            poisson: must be True, else ValueError, because only Poisson batches are accounted.
            alphas, accuracy: ignored; they set the accuracy of Opacus's own accountants.
        """
        if poisson is not True:
            raise ValueError(f"poisson must be True, the batches that are accounted; got {check.shown(poisson)}")
        check.real("delta", delta, above=0, below=1)
        if any(noise == 0 for noise, _, _ in self.history):
            return math.inf
        return epsilon_of_history([self._steps(*entry) for entry in self.history], delta).value

    def _steps(self, noise: float, rate: float, steps: int) -> Step:
        return step_of(noise, steps, sampling="poisson", relation="add-remove", sample_rate=rate)


register_accountant(CertifiedAccountant.mechanism(), CertifiedAccountant)
