"""The privacy of a run, stated completely; the library does the accounting."""

from dataclasses import dataclass

from benchmarks.llm.configuration import Configuration
from dpzero_theory.privacy.accountant import epsilon_of_history
from dpzero_theory.privacy.calibration import calibrate_noise_multiplier
from dpzero_theory.privacy.step import step_of


@dataclass(frozen=True)
class Privacy:
    """The (epsilon, delta) of one run, and what it rests on. The true epsilon is between `lower` and `epsilon`, and
    `epsilon` is the one to rely on.

    batch: the expected number of records in a batch, of n. noise_multiplier: the noise on a sum over the clip. how:
    which mechanism makes the releases, in words.
    """

    lower: float
    epsilon: float
    delta: float
    relation: str
    sampling: str
    n: int
    batch: int
    steps: int
    noise_multiplier: float
    clip: float
    how: str

    def lines(self) -> list[str]:
        rate = self.batch / self.n
        return [
            f"epsilon = {self.epsilon:.6g} (between {self.lower:.6g} and {self.epsilon:.6g}) at delta = {self.delta:g}",
            f"{self.relation} neighbours; one record is one training example, of which n = {self.n:,} were counted",
            f"{self.sampling} batches, rate {self.batch}/{self.n:,} = {rate:.4g}; {self.steps:,} releases;"
            f" noise multiplier {self.noise_multiplier:.6g} at clip {self.clip:g}",
            self.how,
        ]


def first_order_noise(configuration: Configuration, n: int) -> float:
    """Return the smallest noise multiplier that certainly meets the configuration's target (epsilon, delta) with n
    training records: the upper end of its bracket."""
    c = configuration
    return calibrate_noise_multiplier(
        target_epsilon=c.epsilon,
        target_delta=c.delta,
        steps=c.steps,
        sampling=c.sampling,
        relation=c.relation,
        sample_rate=c.batch / n,
    ).upper


def first_order_privacy(configuration: Configuration, n: int, noise_multiplier: float) -> Privacy:
    """Return the privacy of a whole run of DP-AdamW, which releases a noisy sum of clipped gradients in each step.

    configuration: its steps, batch, sampling, relation and delta count. n: the number of training records.
    noise_multiplier: the standard deviation of the noise on a sum over the clip.
    """
    c = configuration
    unit = step_of(noise_multiplier, c.steps, sampling=c.sampling, relation=c.relation, sample_rate=c.batch / n)
    found = epsilon_of_history([unit], c.delta)
    how = "Gaussian noise on clipped gradients (float32, a generator seeded by the operating system)"
    return Privacy(
        found.lower, found.upper, c.delta, c.relation, c.sampling, n, c.batch, c.steps, noise_multiplier, c.clip, how
    )
