"""Computes how many runs an attack needs to refute a claim when there is too little noise.

The attack's scores are taken to be Gaussian, with means mu standard deviations apart on the two data sets. Those are
the scores of an attacker who knows the noise and the sensitivity.
"""

from functools import lru_cache

import numpy as np
from scipy import stats

from dpzero_theory import check
from dpzero_theory.audit.bounds import attack_gdp
from dpzero_theory.audit.sequential import decide

_THRESHOLDS = np.linspace(-3, 3, 61)
"""Thresholds that the attack may choose from, in standard deviations from the middle between the two means."""
_SHARES = (0.9, 0.75, 0.5, 0.25, 0.1, 0.03, 0.01)
"""The shares of the claimed noise for which `share_seen` simulates the attack."""
# If so many simulated attacks all refute the claim, they are said to see that only a share of the noise is there
_SIMULATED = 20
_PAIRS = [1 << k for k in range(4, 23)]
"""The numbers of pairs of runs that `runs_to_see` tries, which are the powers of two up to 2^22."""


def likely_bound(gdp: float, pairs: int, confidence: float, power: float = 0.95) -> float:
    """Returns the lower bound on mu that a threshold attack proves with probability `power`.

    The attack makes `pairs` runs on each of two data sets and bounds its error rates by Clopper and Pearson. Both error
    counts are taken at their quantiles of (1 + power)/2, at the best threshold.

    Args:
        gdp: the true mu >= 0.
        pairs: the number of runs on each data set.
        confidence: the probability with which the proved bound holds.
        power: the probability with which at least the returned bound is proved.
    """
    mu = check.real("gdp", gdp, at_least=0)
    count = check.integer("pairs", pairs)
    share = (1 + check.real("power", power, above=0, below=1)) / 2
    best = 0.0
    for cut in _THRESHOLDS:
        fp, fn = stats.norm.sf(cut + mu / 2), stats.norm.cdf(cut - mu / 2)
        wrong = [int(stats.binom.ppf(share, count, rate)) for rate in (fp, fn)]
        best = max(best, attack_gdp(wrong[0], count, wrong[1], count, confidence))
    return best


@lru_cache(maxsize=256)
def runs_to_see(claimed: float, fraction: float, confidence: float, power: float = 0.95) -> int | None:
    """Returns the fewest pairs of runs that refute a claim where only a fraction of the claimed noise is there.

    Args:
        claimed: the claimed mu > 0 of all steps together.
        fraction: the noise that is there, as a share of the claimed noise, in (0, 1).
        confidence: one minus the probability of refuting a claim that holds.
        power: the probability with which that many pairs refute the claim.

    Returns:
        A power of two, or None where more than about four million pairs are needed.

    Raises:
        ValueError: an argument outside its range.
    """
    mu = check.real("claimed", claimed, above=0)
    true = mu / check.real("fraction", fraction, above=0, below=1)
    return next((pairs for pairs in _PAIRS if likely_bound(true, pairs, confidence, power) > mu), None)


def curve(
    claimed: float, confidence: float, fractions: tuple[float, ...] = (0.9, 0.75, 0.5, 0.25)
) -> dict[str, int | None]:
    """Returns the fewest pairs of runs that refute a claim, for several fractions of the claimed noise.

    Args:
        claimed: the claimed mu > 0 of all steps together.
        confidence: of the refutation.
        fractions: the noise that is there, as shares of the claimed noise.

    Returns:
        The result of `runs_to_see` for each fraction, by the fraction as text, such as "0.75".
    """
    return {f"{fraction:g}": runs_to_see(claimed, fraction, confidence) for fraction in fractions}


@lru_cache(maxsize=64)
def share_seen(rounds: int, steps: int, std: float, gdps: tuple[float, float], level: float) -> float | None:
    """The largest share of the claimed noise with which the attack by betting would have refuted the claim.

    It is found by 20 simulated attacks for each of a few shares: in all of them the claim must be refuted.

    Args:
        rounds: how many pairs of runs the attack makes.
        steps: the number of scores of a run.
        std: the standard deviation of a score if the noise is as large as claimed. The means of the scores on the two
            data sets are 1 apart.
        gdps: the claimed mu of a step, and of a run.
        level: the probability with which a sound loop may be refuted.

    Returns:
        The share, or None if noise of a hundredth of what is claimed would not have been seen either.
    """
    draw = np.random.default_rng(0)

    def attacked(share: float) -> bool:
        scores = draw.normal(size=(rounds, steps, 2)) * std * share + np.array([0.5, -0.5])
        return decide(((pair, pair.mean(axis=0, keepdims=True)) for pair in scores), gdps, level).refuted

    return next((share for share in _SHARES if all(attacked(share) for _ in range(_SIMULATED))), None)
