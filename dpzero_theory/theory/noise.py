"""The noise of full-batch Gaussian releases: mu by the paper's composition lemma, and a standard deviation from mu."""

import math
from typing import cast

import numpy as np
from numpy.typing import ArrayLike

from dpzero_theory import check
from dpzero_theory.check import Array
from dpzero_theory.privacy.relation import Relation


def paper_gdp(epsilon: ArrayLike, delta: ArrayLike) -> Array:
    """Returns the mu that Lemma lm:composition of the DPZero paper prescribes for (epsilon, delta): epsilon / sqrt(8
    log(e + epsilon/delta)).

    The lemma's noise variance for T releases of sensitivity Delta is sigma^2 = (2 Delta sqrt(2 T log(e +
    epsilon/delta))/epsilon)^2, and mu = sqrt(T) Delta/sigma. The lemma claims (epsilon, delta)-DP for any epsilon > 0.
    That is true where this mu is at most `gdp_from_epsilon(epsilon, delta)`, and false from about epsilon = 91 on for
    delta = 0.1, and from 189 on for delta = 1e-6.

    Args:
        epsilon: > 0, an array of any shape; else ValueError.
        delta: in (0, 1), of a shape that broadcasts with `epsilon`; else ValueError.
    """
    eps = check.real_array("epsilon", epsilon, above=0)
    dlt = check.real_array("delta", delta, above=0, below=1)
    return cast(Array, eps / np.sqrt(8 * np.logaddexp(1.0, np.log(eps) - np.log(dlt))))


def noise_std(gdp: float, steps: float, clip: float, n: int, relation: str) -> float:
    """Returns the standard deviation of the noise on the released average of n clipped contributions with which T
    full-batch steps are together mu-GDP. For released vectors it is the standard deviation of each coordinate.

    It is sqrt(T) Delta / mu, with Delta the sensitivity of the average: 2 C/n under replace-one, which the DPZero paper
    uses, and C/n under add-remove and zero-out, where the denominator n is public and stays fixed. The paper's
    Algorithms 1 and 2 call it 'variance sigma', but Lemma lm:composition uses sigma as a standard deviation.

    Args:
        gdp: mu > 0 of the whole run.
        steps: T > 0; it need not be a whole number.
        clip: C > 0, the L2 bound on each record's contribution.
        n: the number of records, >= 1.
        relation: a `Relation` or its name, such as "replace-one".

    Raises:
        ValueError: an argument is outside its range.
    """
    gdp = check.real("gdp", gdp, above=0)
    t, c, count = check.real("steps", steps, above=0), check.real("clip", clip, above=0), check.integer("n", n)
    return math.sqrt(t) * (Relation(relation).sensitivity * c / count) / gdp
