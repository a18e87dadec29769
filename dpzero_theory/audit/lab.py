"""What a check of an audited loop may look at, in one place."""

from dpzero_theory.audit.influence import Influence
from dpzero_theory.audit.noise import NoiseSamples
from dpzero_theory.audit.runs import Changes, LoopRuns


class Lab:
    """Experiments on one loop, each made when a check first asks for it.

    Attributes:
        loop, claim, view: the loop, its claim, and what is not secret.
        runs: runs of the loop with changed settings.
        influence: what records do to the releases.
        noise: samples of the noise.
        most_runs: about how many runs a statistic may take.
    """

    def __init__(self, runs: LoopRuns, most_runs: int = 200, variations: tuple[tuple[str, Changes], ...] = ()) -> None:
        self.loop, self.claim, self.view = runs.loop, runs.claim, runs.loop.view
        self.runs, self.most_runs = runs, most_runs
        self.influence = Influence(runs, most_runs)
        self.noise = NoiseSamples(runs, self.influence, most_runs, variations)
