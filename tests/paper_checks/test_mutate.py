"""Tests of the script that changes numbers and formulas to see whether the checks notice.

They test what it changes, that a change is noticed, and that an unchanged library passes.
"""

import gc
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from paper_checks import __main__ as runner
from paper_checks import changes, mutate, registry, turned
from paper_checks.changes import FORMULAS, Change, changed, verdict
from paper_checks.registry import NOT_TESTABLE, Claim


@pytest.fixture(scope="module")
def claims() -> dict[str, Claim]:
    runner.load_checks()
    return {claim.id: claim for claim in registry.load_claims() if claim.status != NOT_TESTABLE}


def test_the_reported_changes_are_of_what_the_check_is_about(claims: dict[str, Claim]) -> None:
    """Every check has a committed row with a change that turns its verdict, and the change is about what is checked.

    For checks of tables it is in a table's number, for parts of a theorem in the formula. `python -m
    paper_checks.mutate --turned missing` adds rows that are missing.
    """
    report = turned.read()
    assert set(report) == set(claims)
    for id, row in report.items():
        assert row.verdict != claims[id].status, id
        assert claims[id].kind != "table arithmetic" or row.change.kind == "table", id
        own = changes.own_formula(id)
        assert not own or row.change.place == own, id


def test_the_page_says_how_coarse_the_changes_are() -> None:
    """The results page says how large the changes must be.

    Most checks turn by a small change; those that need a fivefold one are counted there.
    """
    page = " ".join((Path(__file__).parents[2] / "docs/results/paper.md").read_text().split())
    assert turned.coarse(turned.read()) in page


def test_changes_are_counted_by_their_size() -> None:
    changes = ((0, "1", "1.1"), (0, "2", "0.2"), (0, "1", "0"), (-2, "x * y", "x / y"))
    found = {
        f"{place} {old} {new}": turned.Turned("", "contradicted", Change("check", "m:f", place, old, new))
        for place, old, new in changes
    }
    said = turned.coarse(found)
    assert "Of 4 checks" in said
    assert "less than fivefold in 1, a number changed fivefold or more in 1, another operator" in said
    assert said.endswith("in 1, and a 1 set to 0 in 1.")


SAMPLE = (
    *("thm1-privacy", "thm2-privacy", "thm3-privacy", "cor2-alpha", "thm3-smoothing", "thm1-clip"),
    *("table-training-samples", "table-test-samples", "table-memory-saving", "extension-any-u"),
)


@pytest.mark.parametrize("id", SAMPLE)
def test_a_reported_change_turns_the_verdict_and_is_undone(claims: dict[str, Claim], id: str) -> None:
    row = turned.read()[id]
    assert turned.after(row.change, id) == row.verdict
    assert verdict(id) == claims[id].status


def test_the_search_finds_the_smallest_change_of_a_place(claims: dict[str, Claim]) -> None:
    gc.collect()  # Objects that other tests left must not be collected during the time that a check is given
    claim = claims["thm1-alpha"]
    row = turned._first(claim, 60)
    assert row is not None
    assert row.verdict == turned.after(row.change, claim.id) != claim.status
    largest = replace(row.change, new="1e9")
    less = changes.smaller(claim, largest)
    assert row.change in less
    assert all(turned.after(c, claim.id) in (claim.status, "crashed") for c in less[: less.index(row.change)])


def test_thresholds_seeds_and_what_is_shown_are_not_changed() -> None:
    import ast

    code = (
        "def f():\n rng = default_rng(7)\n x = 3 * y\n return Finding(x < 5 / 4, numbers={'a': 2 * x}, plot=Plot(9))\n"
    )
    tree = ast.parse(code)
    assert [constant.value for constant in changes.constants_in(tree)] == [3]
    assert [ast.unparse(operator) for operator in changes.operators_in(tree)] == ["3 * y", "2 * x"]


def test_a_change_that_no_longer_fits_the_source_is_refused(claims: dict[str, Claim]) -> None:
    change = Change("statement", f"{FORMULAS}:thm1.alpha", 0, "17", "18")
    with pytest.raises(ValueError, match="expects 17"), changed(change, "thm1-alpha"):
        pass
    assert verdict("thm1-alpha") == "verified"


def test_the_constants_of_every_statement_are_listed() -> None:
    found = mutate.mutants()
    functions = {mutant.function for mutant in found}
    assert {f"theorem_{k}" for k in (1, 2, 3)} | {f"corollary_{k}" for k in (1, 2, 3)} <= functions
    assert {"paper_tail", "_sphere_fourth", "paper_gdp"} <= functions
    assert len(found) >= 100
    assert any(m.function == "theorem_3" and m.value == 64 for m in found)
    assert all(m.value != 0 for m in found)


def test_a_changed_constant_is_caught_and_the_library_itself_passes() -> None:
    code = (
        "from paper_checks import mutate as m\n"
        "chosen = [x for x in m.mutants() if x.function == 'paper_tail'][0]\n"
        "m.CHECKS = ('sphere_tails',)\n"
        "import multiprocessing, mpmath, scipy.stats, sympy\n"  # The script's function `main` makes the same imports
        "with multiprocessing.get_context('fork').Pool(1, maxtasksperchild=1) as pool:\n"
        "    print(repr(pool.apply(m._caught, (None,))), repr(pool.apply(m._caught, (chosen,))))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stdout.split() == ["''", "'sphere-ii-tail'"], done.stderr
