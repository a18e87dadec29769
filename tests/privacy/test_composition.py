"""Tests of what the releases of every sampling add to a composition.

They also test what a composition makes of such parts.
"""

import math
from dataclasses import replace

import pytest

from dpzero_theory.privacy.laws.gaussian import Pair
from dpzero_theory.privacy.laws.parts import OneOf
from dpzero_theory.privacy.laws.zeroed import zeroed_pairs
from dpzero_theory.privacy.composition import Composition, Epochs, FinitePairs, Pairs, PlainGaussian, by_chance
from dpzero_theory.privacy.relation import Relation
from dpzero_theory.privacy.sampling import SAMPLINGS, sampling_of

NAMES = (
    *(name for name, kind in SAMPLINGS.items() if not kind.arguments.startswith(":")),
    "truncated-poisson:3/40",
    "cyclic-poisson:4",
    "random-allocation:3",
)


@pytest.mark.parametrize(
    ("name", "relation"),
    [(n, r) for n in NAMES for r in Relation if r is not Relation.ADD_REMOVE or n not in ("fixed-order", "shuffled")],
)
def test_the_part_of_each_sampling(name: str, relation: Relation) -> None:
    rate = 1.0 if name == "full" else 0.2
    sampling = sampling_of(name, rate)
    part = sampling.part(1.5, 20, relation)
    match name.partition(":")[0]:
        case "full" | "fixed-order" | "shuffled":
            assert isinstance(part, PlainGaussian)
            assert part.mu == pytest.approx(math.sqrt(20 * rate) * relation.sensitivity / 1.5)
        case "random-allocation":
            assert isinstance(part, Epochs)
            # A record is in 6 steps of a whole epoch of 15 steps and 5 more, and in 4 steps of 4 epochs of 5.
            taken = 6 if name.endswith(":3") else 4
            assert part.mu == pytest.approx(math.sqrt(taken) * relation.sensitivity / 1.5)
        case "truncated-poisson":
            assert isinstance(part, Pairs)
            assert isinstance(part.above[0], OneOf)
            assert math.fsum(chance for chance, _ in part.above[0].kinds) == pytest.approx(1, abs=1e-8)
            assert part.below[0].sample_rate < rate
        case "fixed-size" if relation is Relation.ZERO_OUT:
            assert isinstance(part, FinitePairs)
        case _:
            assert isinstance(part, Pairs)
            assert part.count == (5 if name.startswith("cyclic") else 20)
            tight = name != "fixed-size" or relation is Relation.ADD_REMOVE
            assert (part.above == part.below) == tight
    assert sampling.at(min(rate, sampling.most_rate)) == sampling


def test_equal_pairs_are_counted_together_and_plain_releases_are_one() -> None:
    remove, add = Pair("remove", 0.1, 2.0), Pair("add", 0.1, 2.0)
    both = (remove, add)
    composition = Composition(
        (Pairs(both, both, 3), PlainGaussian(3.0), Pairs(both, both, 4), PlainGaussian(4.0)), replaced=False
    )
    assert composition.directions() == (((remove, 7),), ((add, 7),))
    assert composition.plain == composition.gdp == 5.0
    assert composition.mixture is None


def test_what_is_exact_for_a_single_release_counts_for_it_alone() -> None:
    """A pair of laws that is exact for a single release is used for that release alone.

    Beside another release the pair that dominates at every ratio counts, since the attained pairs do not dominate.
    """
    hybrid, attained = (Pair("fixed-size", 0.1, 1.0),), (Pair("remove", 0.1, 1.0), Pair("add", 0.1, 1.0))
    one = Pairs(hybrid, attained, 1, alone=attained)
    assert Composition((one,)).directions() == tuple(((pair, 1),) for pair in attained)
    assert Composition((replace(one, count=2),)).directions() == (((hybrid[0], 2),),)
    assert Composition((one, PlainGaussian(0.1))).directions() == (((hybrid[0], 1),),)


def test_chances_that_do_not_sum_to_1_are_refused() -> None:
    part = Pairs((Pair("remove", 0.1, 1.0),), (Pair("remove", 0.1, 1.0),), 1)
    for chances in ([0.5, 0.4], [math.nan, 1.0], [1.5, 0.1]):
        with pytest.raises(ValueError, match=r"^kinds must have chances of at most 1 that sum to at least 1; got \["):
            by_chance([(chance, part) for chance in chances], part, 3)
    (pair,) = by_chance([(1.0, part), (0.0, part)], part, 3).above
    assert pair.kinds == ((1.0, part.above[0]),)
    with pytest.raises(TypeError, match=r"^kinds must have a pair of Gaussian mixtures"):
        by_chance([(1.0, FinitePairs(zeroed_pairs(1.0, 0.1), 1))], part, 3)
