"""A private release of a moment of the records' gradient norms, paid in the ledger before its noise is drawn.

A certificate without a Lipschitz constant needs an upper bound on the mean over records of ||grad f_i||^m, for some
m >= 2 (`theory.problem.Problem.gradient_moment`). Every record contributes min(||grad f_i||, B)^m, where B > 0 is
public, so one record changes the sum by at most B^m. With noise of standard deviation sigma on the sum of n
contributions,

    upper = (noisy sum + z sigma)/n,   z the normal quantile of 1 - beta,

is, up to rounding that is added to it, at least the mean of min(||grad f_i||, B)^m with probability at least 1 - beta
over the noise. If no record's gradient is longer than B, that is the mean of ||grad f_i||^m. This assumption remains,
and no private release can do without one: see dpzero_theory/theory/sharp/proof.md, "A moment that is released". It
costs less than a Lipschitz constant, as B enters the noise of this release, and neither the clip nor the noise of the
run.

The bound is for the weights at which the norms were computed. A certificate needs it at every point of the run.
"""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import ndtri

from dpzero_theory import check
from dpzero_theory.privacy.discrete import FINE_GAUSSIAN
from dpzero_theory.privacy.lattice import Lattice
from dpzero_theory.privacy.ledger import Ledger, Settings
from dpzero_theory.privacy.mechanism import MECHANISMS
from dpzero_theory.privacy.noise import NoiseSource, SystemNoise
from dpzero_theory.privacy.relation import Relation

_LAW = MECHANISMS["discrete-gaussian"]


@dataclass(frozen=True, kw_only=True)
class ReleasedMoment:
    """What `release_moment` releases; all of it is public.

    Attributes:
        power: m >= 1, the power of the norm.
        bound: B > 0, the bound on gradient norms, in their unit.
        value: the noisy mean of min(||grad f_i||, B)^m. Its expectation is that mean, up to an absolute error of 2^-27
            B^m; it may be negative.
        upper: an upper bound on that mean, which fails with probability at most `failure`.
        failure: beta in (0, 1/2].
        release: the number of the release in the ledger, counted from 0.
    """

    power: float
    bound: float
    value: float
    upper: float
    failure: float
    release: int

    @property
    def gradient_moment(self) -> tuple[float, float]:
        """The pair (m, upper) that `Problem(gradient_moment=...)` and `params --gradient-moment` take."""
        return self.power, self.upper


def moment_settings(n: int, noise_multiplier: float, relation: str) -> Settings:
    """Return the settings with which a ledger for releases of moments is created.

    A contribution is min(||grad f_i||, B)^m, divided by B^m, so that it is in [0, 1]; B and m are `bound` and `power`
    of `release_moment`. Under replace-one 1/2 is subtracted from it and the clip is 1/2; under add-remove and zero-out
    the clip is 1. The standard deviation of the noise, in units of B^m on the sum, is the noise multiplier times this
    clip.

    Args:
        n: the number of records, >= 1, which is public.
        noise_multiplier: the noise over the clip, > 0.
        relation: neighbouring relation, a `privacy.relation.Relation` or its name.

    Raises ValueError for an argument outside its range.
    """
    between = Relation(relation)
    return Settings(
        n=n,
        noise_multiplier=noise_multiplier,
        clip=0.5 if between.replaces else 1.0,
        relation=between,
        sampling="full",
        mechanism=_LAW.name,
        coordinates=1,
    )


def release_moment(
    norms: ArrayLike,
    *,
    power: float,
    bound: float,
    ledger: Ledger,
    failure: float = 0.01,
    source: NoiseSource | None = None,
) -> ReleasedMoment:
    """Pay for one release in the ledger, and release an upper bound on the mean of min(||grad f_i||, B)^m.

    Args:
        norms: ||grad f_i|| of all records at public weights, shape (records,). A norm above B counts as B, and so does
            one that is infinite or NaN. With the relation replace-one there must be n of them.
        power: m >= 1.
        bound: B > 0, in the unit of the norms. It must be chosen without looking at the records.
        ledger: created with the settings of `moment_settings`, and `block=1`.
        failure: beta in (0, 1/2], the probability with which the bound may fail.
        source: where noise comes from, by default the operating system. Tests may give seeded noise, and then the
            release is not private.

    Raises:
        ValueError: an argument outside its range, or a ledger with other settings. Nothing is paid.
        LedgerError: the ledger refuses, as it does where all its releases are spent (BudgetSpentError).
    """
    m = check.real("power", power, at_least=1)
    b = check.real("bound", bound, above=0)
    beta = check.real("failure", failure, above=0, at_most=0.5)
    values = np.asarray(norms, dtype=np.float64)
    if values.ndim != 1:
        raise ValueError(f"norms must have shape (records,); got {values.shape}")
    settings = ledger.settings
    if settings != moment_settings(settings.n, settings.noise_multiplier, str(settings.release(1).relation)):
        raise ValueError(f"ledger must have the settings of moment_settings; got {settings.words}")
    replaces = settings.release(1).relation.replaces
    if replaces and len(values) != settings.n:
        raise ValueError(f"norms must be those of all n = {settings.n} records under replace-one; got {len(values)}")
    shares = np.power(np.clip(np.where(np.isnan(values), b, values), 0.0, b) / b, m)
    offset = 0.5 if replaces else 0.0
    lattice = Lattice(settings.clip, FINE_GAUSSIAN)
    # A record's share is its min(||grad f_i||, B)^m over B^m, in [0, 1]; less `offset` it is in [-C, C], with C the
    # clip of `moment_settings`. A lattice unit is added to each, so that rounding to the lattice lowers none.
    total = int(lattice.round(shares - offset + lattice.spacing).sum())
    scale = _LAW.scale(settings.noise_multiplier, lattice.levels)
    release = ledger.spend(settings)[0]
    noisy = total + (source or SystemNoise()).discrete_gaussian(scale)
    above = math.ceil(-float(ndtri(beta)) * scale) + 1  # P(noise >= k) is at most the normal tail from k - 1 on
    value, upper = (b**m * (lattice.spacing * found / settings.n + offset) for found in (noisy, noisy + above))
    return ReleasedMoment(power=m, bound=b, value=value, upper=upper, failure=beta, release=release)
