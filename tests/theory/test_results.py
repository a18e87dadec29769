"""Tests of the list of results: what each says of itself agrees with what it prescribes."""

import pytest

from dpzero_theory.check import PreconditionError
from dpzero_theory.privacy.relation import Relation
from dpzero_theory.sphere import DIRECTIONS
from dpzero_theory.theory.problem import Guarantee, Problem
from dpzero_theory.theory.results import RESULTS
from tests import paper_oracle as paper

CLOSED = list(paper.STATEMENTS)
EASY = Problem(n=10**6, d=5, r=2, lipschitz=1.5, pl=0.3)


def test_results_are_the_contracts_ids() -> None:
    assert set(RESULTS) >= {*paper.STATEMENTS, "theorem-3-sharp"}
    assert [id for id, result in RESULTS.items() if result.closed_form is not None] == CLOSED


@pytest.mark.parametrize("id", RESULTS)
def test_a_prescription_says_what_it_is_for(id: str) -> None:
    result = RESULTS[id]
    p = result.prescribe(EASY, 2.0, max_steps=100)
    assert (p.id, p.guarantee, p.n) == (id, result.guarantee, EASY.n)
    assert (p.relation, p.sampling, p.sample_rate) == (Relation.REPLACE_ONE, "full", 1.0)
    assert (p.direction, p.directions_per_step) == ("sphere", 1)
    assert result.needs_pl == (p.guarantee is Guarantee.SUBOPTIMALITY)
    assert result.minimised == (id not in CLOSED)
    trivial = EASY.lipschitz**2 if p.guarantee is Guarantee.GRADIENT else EASY.lipschitz**2 / (2 * 0.3)
    assert p.trivial_bound == pytest.approx(trivial, rel=1e-15)
    best = result.best(p, EASY, max_steps=100)
    assert (best is None) == result.minimised
    if best is not None:
        assert (best.guarantee, best.relation, best.direction) == (p.guarantee, p.relation, p.direction)


@pytest.mark.parametrize("id", RESULTS)
@pytest.mark.parametrize("direction", ["gaussian", "rademacher"])
def test_only_the_sharpened_results_hold_for_other_directions(id: str, direction: str) -> None:
    if id in CLOSED or (RESULTS[id].id == "theorem-2-sharp" and not DIRECTIONS[direction].fixed_norm):
        with pytest.raises(PreconditionError, match=direction):
            RESULTS[id].prescribe(EASY, 2.0, max_steps=100, direction=direction)
    else:
        assert RESULTS[id].prescribe(EASY, 2.0, max_steps=100, direction=direction).direction == direction


@pytest.mark.parametrize("id", CLOSED)
def test_the_papers_results_are_about_central_differences(id: str) -> None:
    with pytest.raises(PreconditionError, match=f"^{id} is proved for central differences, not for forward"):
        RESULTS[id].prescribe(EASY, 2.0, difference="forward")
