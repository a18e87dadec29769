"""A hyperparameter search by private runs on the private records, whose choice is paid for too.

    search = make_private_search(
        build, losses, data, [{"clip": 1.0, "step_size": 0.1}, {"clip": 3.0, "step_size": 0.03}], score=accuracy,
        runs=Runs(mean=4), folder="search", target_epsilon=2, target_delta=1e-5, steps=100, expected_batch=200,
        smoothing=1e-3, relation="add-remove", sampling="poisson",
    )
    best = search.run()

With `runs` given, a random number of runs is made, each with a setting drawn at random, and only the best is released.
That model and its score are (target_epsilon, target_delta)-DP under the runs' relation (`privacy.selection`). The
number of runs and the other runs must stay secret, and so must the folder: it is made for its owner alone, and refused
if others may read it. With runs=None each setting is run once, the costs of the runs are composed, and all of them may
be published.

It is assumed that `score` reads public data only (or what a run released), and that `build` makes the module from
public data.
"""

import json
import math
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple, TypedDict, Unpack

from torch import nn

from dpzero_theory import check
from dpzero_theory.optim.files.new_folder import clear_dead_starts, made_whole, require_secret, resolved, write_secret
from dpzero_theory.optim.losses.evaluation import Losses
from dpzero_theory.optim.losses.records import Data, require_data
from dpzero_theory.optim.plan import Plan, Target
from dpzero_theory.optim.private import Place, make_private
from dpzero_theory.privacy.accountant import epsilon_of_history
from dpzero_theory.privacy.calibration import calibrate_noise_multiplier
from dpzero_theory.privacy.selection import Runs, calibrate_selection, selection_epsilon
from dpzero_theory.privacy.step import Release

VARIED = ("clip", "step_size", "smoothing", "direction")
"""The arguments in which settings may differ, as none of them changes what a run costs."""
_FILE = "search.json"
_TRIES = 4
"""How often the plans are made at most, each time with more noise, until the search as a whole meets its target."""


class Setting(TypedDict, total=False):
    """One of the settings that a search compares: some of the arguments of `Plan.for_target` that do not change what a
    run costs. Those left out are common to all settings."""

    clip: float
    step_size: float
    smoothing: float
    direction: str


class Best(NamedTuple):
    """What is released: the module with its trained weights, its setting and its score."""

    module: nn.Module
    setting: Setting
    score: float


@dataclass(frozen=True)
class Search:
    """A search over settings that has begun; `run` makes its runs.

    settings, plans: the settings that are compared, and the plan of each. picks: for each run the index of its setting.
    folder: where the runs' folders are. epsilon, delta: what all that is released costs. The other fields are arguments
    of `make_private_search`.
    """

    build: Callable[[], nn.Module]
    losses: Losses
    data: Data
    settings: tuple[Setting, ...]
    plans: tuple[Plan, ...]
    picks: tuple[int, ...]
    score: Callable[[nn.Module], float]
    folder: Path
    epsilon: float
    delta: float
    micro_batch: int
    paid_at_once: int

    def run(self) -> Best | None:
        """Make the runs that are left, each in a folder of its own, and return the best; None if there was no run.

        After an interrupt at any moment it can be called again, or the search resumed: finished runs are read back. Of
        runs with equal scores the first wins, which is a random one because runs are exchangeable. A score that is not
        a number counts as the lowest.
        """
        best: Best | None = None
        for number, pick in enumerate(self.picks):
            module = self.build()
            place = self.folder / f"run-{number:04d}"
            run = make_private(
                module,
                self.losses,
                self.data,
                self.plans[pick],
                target_delta=self.delta,
                folder=place,
                resume=place.exists(),
                micro_batch=self.micro_batch,
                paid_at_once=self.paid_at_once,
            )
            try:
                run.run()
            finally:
                run.close()
            score = float(self.score(module))
            score = -math.inf if math.isnan(score) else score
            if best is None or score > best.score:
                best = Best(module, self.settings[pick], score)
        return best


def make_private_search(
    build: Callable[[], nn.Module],
    losses: Losses,
    data: Data,
    settings: Sequence[Setting],
    *,
    score: Callable[[nn.Module], float],
    runs: Runs | None,
    folder: Place,
    resume: bool = False,
    micro_batch: int = 64,
    paid_at_once: int = 1,
    **target: Unpack[Target],
) -> Search:
    """Begin or resume a search over settings whose runs cost (target_epsilon, target_delta) in all; return it.

    Args:
        build: a function that makes the module to train, with the same initial weights each time.
        losses: a function (module, batch) -> a tensor of shape (batch,), one loss for each record.
        data: the private records, a map-style data set.
        settings: at least one mapping, each with some of clip, step_size, smoothing and direction.
        score: a function from a trained module to a number, where higher is better; it must not read private records.
        runs: the law of the random number of runs; None runs each setting once and composes their costs.
        folder: a path that is new or empty, or with `resume` this search's folder.
        resume: whether to go on with the search in the folder, which must have been begun with the same settings.
        micro_batch: how many records are evaluated at a time, an integer >= 1.
        paid_at_once: how many releases one entry of a run's ledger pays for, an integer >= 1.
        target: settings of `make_private_with_epsilon`, where the budget is that of the whole search. A setting's own
            values replace these.

    Raises:
        ValueError: an argument outside its range, or a setting with any other entry.
        FileExistsError, FileNotFoundError: the folder is not empty, or holds no search to resume.
    """
    require_data(data)
    if not settings:
        raise ValueError("settings must hold at least one setting; got none")
    for setting in settings:
        for name in setting:
            check.choice("settings", name, VARIED)
        check.settings({**target, **setting}, Target.__annotations__, Target.__required_keys__)
    plans, epsilon = plans_of_search(len(data), settings, runs, target)
    place = resolved(Path(folder))
    kept = {
        "runs": None if runs is None else asdict(runs),
        "settings": [dict(setting) for setting in settings],
        "plans": [asdict(plan) for plan in plans],
    }
    picks = _resumed(place, kept) if resume else _begun(place, kept, len(settings), runs)
    delta = target["target_delta"]
    return Search(
        build, losses, data, tuple(settings), plans, picks, score, place, epsilon, delta, micro_batch, paid_at_once
    )


def plans_of_search(
    n: int, settings: Sequence[Setting], runs: Runs | None, target: Target
) -> tuple[tuple[Plan, ...], float]:
    """Return a plan for each setting, all with the same noise, and an upper bound on epsilon of the whole search.

    n: the number of private records. settings, runs, target: those of `make_private_search`, where `target` has the
    budget of the whole search. Raises ValueError for an argument outside its range, and PreconditionError where the
    budget cannot be met.
    """
    total, delta = target["target_epsilon"], target["target_delta"]
    first: Target = {**target, **settings[0]}
    known = Plan.for_target(n=n, **first)  # raises for settings of which no run can be made
    if known.noise != "gaussian":
        raise ValueError(f"noise must be gaussian in a search; got {known.noise!r}")
    times = 1 if runs is not None else len(settings)
    unit = known.settings.release(known.steps)
    drawn: dict[str, Any] = {
        "target_epsilon": total,
        "target_delta": delta,
        "steps": times * known.steps,
        "sampling": known.sampling,
        "relation": known.relation,
        "sample_rate": known.sample_rate,
        "coordinates": unit.coordinates,
    }
    if runs is None:
        noise = calibrate_noise_multiplier(**drawn, mechanism=unit.mechanism).value
    else:
        noise = calibrate_selection(runs, **drawn).value
    one = epsilon_of_history([unit.with_noise(noise)], delta).upper
    for _ in range(_TRIES):
        plans = []
        for setting in settings:
            arguments: Target = {**target, **setting, "target_epsilon": one}
            plans.append(Plan.for_target(n=n, **arguments))
        spent = max(_cost(plan.settings.release(times * plan.steps), delta, runs) for plan in plans)
        if spent <= total:
            break
        # Rounding to a lattice can leave the plans' noise a little too small for `total`. Then epsilon of one run is
        # lowered by twice the share that is missing, and the plans are made again.
        one *= (total / spent) ** 2
    check.precondition(
        spent <= total, f"target_epsilon must be met by the search; got {total!r}, which costs {spent!r}"
    )
    return tuple(plans), spent


def _cost(release: Release, delta: float, runs: Runs | None) -> float:
    history = [release]
    return (epsilon_of_history(history, delta) if runs is None else selection_epsilon(history, delta, runs)).upper


def _begun(place: Path, kept: Mapping[str, Any], count: int, runs: Runs | None) -> tuple[int, ...]:
    source = random.SystemRandom()
    picks = tuple(range(count)) if runs is None else tuple(source.randrange(count) for _ in range(runs.draw(source)))
    with made_whole(place, 0o700) as new:
        write_secret(new / _FILE, json.dumps({**kept, "picks": picks}).encode())
    return picks


def _resumed(place: Path, kept: Mapping[str, Any]) -> tuple[int, ...]:
    clear_dead_starts(place)
    path = place / _FILE
    if not path.exists():
        raise FileNotFoundError(f"{path} is not there: this is no folder of a search")
    for secret in (place, path):
        require_secret(secret)
    try:
        found = json.loads(path.read_text())
        picks = tuple(found.pop("picks"))
        # the file may be older than some of a plan's settings, which are then at their defaults
        found["plans"] = [json.loads(Plan.from_json(json.dumps(plan)).to_json()) for plan in found["plans"]]
    except (ValueError, KeyError, AttributeError, TypeError):
        raise ValueError(f"{path}: damaged") from None
    for name, value in json.loads(json.dumps(kept)).items():
        if found.get(name) != value:
            raise ValueError(f"{name} must be those of the search that is resumed; {path} has others")
    return picks
