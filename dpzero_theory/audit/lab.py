"""`Lab` holds everything that a check may use of an audited loop: its claim, and experiments on it."""

from dpzero_theory.audit.influence import Influence
from dpzero_theory.audit.noise import NoiseSamples
from dpzero_theory.audit.runs import Changes, LoopRuns


class Lab:
    """Experiments on one training loop, each made when a check first asks for it.

    Attributes:
        loop, claim, view: the loop, its claim, and what an attacker sees.
        runs: runs of the loop with changed settings.
        influence: how much single records change the releases.
        noise: samples of the loop's noise.
        most_runs: about how many runs a check's statistic may use.

    The argument `variations` has further settings under which the claim must hold: pairs of a name and the changed
    settings.
    """

    def __init__(self, runs: LoopRuns, most_runs: int = 200, variations: tuple[tuple[str, Changes], ...] = ()) -> None:
        self.loop, self.claim, self.view = runs.loop, runs.claim, runs.loop.view
        self.runs, self.most_runs = runs, most_runs
        self.influence = Influence(runs, most_runs)
        self.noise = NoiseSamples(runs, self.influence, most_runs, variations)
