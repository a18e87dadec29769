"""How many runs an audit needs: to see a given lack of noise, or to come near the truth.

For Gaussian scores that are `gdp` apart, which is what an attack on noise and sensitivity as they are sees.
"""

from functools import lru_cache

import numpy as np
from scipy import stats

from dpzero_theory import check
from dpzero_theory.audit.bounds import attack_gdp

_CUTS = np.linspace(-3, 3, 61)
_PAIRS = [1 << k for k in range(4, 23)]


def likely_bound(gdp: float, pairs: int, confidence: float, power: float = 0.95) -> float:
    """What a Clopper-Pearson attack of `pairs` runs on each of two data sets proves of mu with probability `power`.

    Both error counts are taken at their quantiles of (1 + power)/2, at the best threshold. gdp: the true mu >= 0.
    """
    mu = check.real("gdp", gdp, at_least=0)
    count = check.integer("pairs", pairs)
    share = (1 + check.real("power", power, above=0, below=1)) / 2
    best = 0.0
    for cut in _CUTS:
        fp, fn = stats.norm.sf(cut + mu / 2), stats.norm.cdf(cut - mu / 2)
        wrong = [int(stats.binom.ppf(share, count, rate)) for rate in (fp, fn)]
        best = max(best, attack_gdp(wrong[0], count, wrong[1], count, confidence))
    return best


@lru_cache(maxsize=256)
def runs_to_see(claimed: float, fraction: float, confidence: float, power: float = 0.95) -> int | None:
    """The fewest pairs of runs by which noise of `fraction` of the claimed one is refuted with probability `power`.

    A power of two; None beyond four million. claimed: mu > 0 of all steps. fraction: in (0, 1). Raises ValueError.
    """
    mu = check.real("claimed", claimed, above=0)
    true = mu / check.real("fraction", fraction, above=0, below=1)
    return next((pairs for pairs in _PAIRS if likely_bound(true, pairs, confidence, power) > mu), None)


def curve(
    claimed: float, confidence: float, fractions: tuple[float, ...] = (0.9, 0.75, 0.5, 0.25)
) -> dict[str, int | None]:
    """`runs_to_see` for several fractions."""
    return {f"{fraction:g}": runs_to_see(claimed, fraction, confidence) for fraction in fractions}
