"""What a run may claim that is stopped before its plan is complete, perhaps because of what it has released.

Epsilon of the releases made is what a run costs if their number was fixed without looking at them. If the run may stop
because of what it shows, that number is too small: stopping where the releases happen to tell much about a record makes
telling outcomes more likely than delta allows. So a run claims the epsilon of its whole plan, which holds however it is
stopped, since what was not released could have been released and ignored. Two settings change that:

    any       the default: the epsilon of the whole plan
    fixed     whoever runs it promises that the number of steps does not depend on anything that it has released;
              then the epsilon of the releases that are paid for
"""

from dpzero_theory.check import choice
from dpzero_theory.privacy.accountant import epsilon_of_history
from dpzero_theory.privacy.bracket import Bracket
from dpzero_theory.privacy.step import Step

ANY, FIXED = "any", "fixed"
_MEANINGS = {
    ANY: "any: it may stop at any time, also because of what it released; so epsilon of the whole plan is claimed",
    FIXED: "fixed: the number of steps was chosen without looking at what was released; epsilon of those paid for is"
    " claimed",
}


def require_stopping(stopping: str) -> str:
    """Return `stopping` if it is the word for a way to stop, "any" or "fixed"; else raise ValueError."""
    return choice("stopping", stopping, tuple(_MEANINGS))


def meaning(stopping: str) -> str:
    """Return in words what a run with this setting may do, and what it claims."""
    return _MEANINGS[require_stopping(stopping)]


def counted(spent: int, steps: int, delta: float, stopping: str = ANY) -> int:
    """Return the number of releases whose epsilon a run claims at `delta`. The arguments are those of `claimed`."""
    # At delta = 0 no loss ever exceeds the epsilon of the releases made, wherever the run stops.
    return spent if require_stopping(stopping) == FIXED or not spent or delta == 0 else steps


def claimed(step: Step, spent: int, steps: int, delta: float, stopping: str = ANY) -> Bracket:
    """Return a bracket of the epsilon that a run may claim at `delta`; `upper` is the number to state.

    Args:
        step: one release of the run.
        spent: the releases that are paid for, >= 0. Before the first one nothing is claimed, epsilon 0.
        steps: the releases of the whole plan, >= `spent`.
        delta: 0 < delta < 1; 0 is allowed where no noise is Gaussian.
        stopping: how the run may be stopped.

    Raises:
        ValueError: an argument outside its range.
    """
    count = counted(spent, steps, delta, stopping)
    return epsilon_of_history(step * count if count else [], delta)
