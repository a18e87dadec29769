from dpzero_theory.audit.conformance import every
from dpzero_theory.audit.finding import HELD, UNTESTED, VIOLATED, held, untested, violated


def test_verdicts() -> None:
    assert held("fine", power="much", ratio=1.0).evidence == {"ratio": 1.0}
    assert violated("bad", "mend it", p_value=0.0).mend == "mend it"
    assert [held("a").status, violated("b", "c").status, untested("d").status] == [HELD, VIOLATED, UNTESTED]


def test_every_check_asks_a_question_of_its_own() -> None:
    checks = every()
    assert len({check.name for check in checks}) == len(checks) >= 17
    assert all(check.question.endswith("?") for check in checks)
