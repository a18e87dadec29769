"""The privacy accountant's functions under short names: what a private run costs, and what a privacy target allows.

    from dpzero_theory.privacy import Release, calibrate, epsilon
    noise = calibrate(target_epsilon=2, target_delta=1e-5, steps=10_000, sampling="poisson", relation="add-remove",
                      sample_rate=64 / 1024).value
    spent = epsilon([Release(noise, 5_000, sampling="poisson", relation="add-remove", sample_rate=64 / 1024)], 1e-5)

`calibrate` gives the least noise multiplier that meets a target (epsilon, delta). `epsilon` and `delta` give what a
history of steps costs: the least epsilon at a delta, and the least delta at an epsilon. `steps`, `batch` and `records`
give the most steps, the largest batch and the fewest records that meet a target. `epsilon_over_steps` and
`delta_over_epsilon` give whole curves. `group_delta`, `group_epsilon` and `group_noise` give the same for neighbouring
data sets that differ in k records (all of one user's), and `compare` gives another accountant's answer. The answers of
this package's accountant are certified brackets: two numbers between which the exact one lies. Each name is loaded when
it is first used, from the module that `_HOMES` names for it; the docstring there has the arguments.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dpzero_theory.privacy.accountant import delta_of_history as delta
    from dpzero_theory.privacy.accountant import epsilon_of_history as epsilon
    from dpzero_theory.privacy.bracket import Bracket
    from dpzero_theory.privacy.calibration import calibrate_noise_multiplier as calibrate
    from dpzero_theory.privacy.comparison import compare
    from dpzero_theory.privacy.curves import Curve, delta_over_epsilon, epsilon_over_steps
    from dpzero_theory.privacy.group import group_delta, group_epsilon, group_noise
    from dpzero_theory.privacy.relation import Relation
    from dpzero_theory.privacy.solve import fewest_records as records
    from dpzero_theory.privacy.solve import largest_batch as batch
    from dpzero_theory.privacy.solve import most_steps as steps
    from dpzero_theory.privacy.step import Release

__all__ = [
    "Bracket",
    "Curve",
    "Relation",
    "Release",
    "batch",
    "calibrate",
    "compare",
    "delta",
    "delta_over_epsilon",
    "epsilon",
    "epsilon_over_steps",
    "group_delta",
    "group_epsilon",
    "group_noise",
    "records",
    "steps",
]

_HOMES = {
    "Bracket": "bracket.Bracket",
    "Curve": "curves.Curve",
    "Relation": "relation.Relation",
    "Release": "step.Release",
    "batch": "solve.largest_batch",
    "calibrate": "calibration.calibrate_noise_multiplier",
    "compare": "comparison.compare",
    "delta": "accountant.delta_of_history",
    "delta_over_epsilon": "curves.delta_over_epsilon",
    "epsilon": "accountant.epsilon_of_history",
    "epsilon_over_steps": "curves.epsilon_over_steps",
    "group_delta": "group.group_delta",
    "group_epsilon": "group.group_epsilon",
    "group_noise": "group.group_noise",
    "records": "solve.fewest_records",
    "steps": "solve.most_steps",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module, _, function = _HOMES[name].partition(".")
    return getattr(import_module(f"{__name__}.{module}"), function)
