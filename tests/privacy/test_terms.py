"""What every sampling says releases add: one of three forms."""

import pytest

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
    [(name, r) for name in NAMES for r in Relation if (name, r) != ("fixed-order", Relation.ADD_REMOVE)],
)
def test_pairs_or_plain_releases_and_what_sharpens_them(name, relation):
    rate = 1.0 if name == "full" else 0.2
    terms = sampling_of(name, rate).terms(1.5, 20, relation)
    assert (terms.gdp > 0) + bool(terms.pairs) + bool(terms.finite) == 1
    assert bool(terms.finite) == ((name, relation) == ("fixed-size", "zero-out"))
    assert bool(terms.attained) == bool(terms.pairs)
    assert (terms.run is not None) == name.startswith("random-allocation")
    assert terms.run is None or terms.gdp > 0
    assert 0 <= terms.releases < 20
    assert 0 <= terms.truncated < 1
    assert (terms.truncated > 0) == name.startswith("truncated")
    assert (terms.releases == 5) == name.startswith("cyclic")
