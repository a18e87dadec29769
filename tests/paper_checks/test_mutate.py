"""The mutation script: what it changes, and that a change is noticed and an unchanged library is not blamed."""

import subprocess
import sys

from paper_checks import mutate


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
        "import multiprocessing\n"
        "with multiprocessing.get_context('fork').Pool(1, maxtasksperchild=1) as pool:\n"
        "    print(repr(pool.apply(m._caught, (None,))), repr(pool.apply(m._caught, (chosen,))))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stdout.split() == ["''", "'sphere-ii-tail'"], done.stderr
