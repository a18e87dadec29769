"""Private training by forward passes alone: accounting, theory, training and audit from one import.

    import dpzero_theory as dz

    step = dz.Step(noise=12.5, sampling=dz.Poisson(1 / 16), relation="add-remove")
    dz.epsilon(step * 10_000, delta=1e-5)                     # a certified bracket; histories add: a * 100 + b * 50
    dz.calibrate(epsilon=2, delta=1e-5, steps=10_000, sampling=dz.Poisson(1 / 16), relation="add-remove")

    problem = dz.Problem(n=10_000, d=2000, r=8.178)
    plan = dz.prescribe(problem, epsilon=2, delta=1e-6).plan()
    run = dz.make_private(model, losses, data, plan, target_delta=1e-6, folder="run")
    run.run()
    dz.verify("run")

    report = dz.audit(train, records, dz.Claim(...), dz.View(...))

The names in `__all__` are stable; every other module may move at any time. Names are imported when they are first used.
PyTorch is imported only by the functions whose name begins with "make_", and by `verify` when it is called.
"""

from typing import TYPE_CHECKING

from dpzero_theory._lazy import lazily

if TYPE_CHECKING:
    from dpzero_theory._front import certify, delta, epsilon, prescribe, verify
    from dpzero_theory.audit.claim import Claim, View
    from dpzero_theory.optim.plan import Plan
    from dpzero_theory.optim.private import make_from_seed_not_private, make_private, make_private_with_epsilon
    from dpzero_theory.optim.step.algorithm import ALGORITHMS
    from dpzero_theory.privacy.bracket import Bracket
    from dpzero_theory.privacy.calibration import calibrate
    from dpzero_theory.privacy.conversions import trade_off
    from dpzero_theory.privacy.mechanism import MECHANISMS
    from dpzero_theory.privacy.relation import Relation
    from dpzero_theory.privacy.sampling import (
        SAMPLINGS,
        CyclicPoisson,
        FixedOrder,
        FixedSize,
        FullBatch,
        Poisson,
        RandomAllocation,
        TruncatedPoisson,
    )
    from dpzero_theory.privacy.step import Step
    from dpzero_theory.sphere import DIRECTIONS
    from dpzero_theory.theory.problem import Problem

__version__ = "0.1.0"

_NAMES = {
    "privacy.step": ("Step",),
    "privacy.sampling": (
        "Poisson",
        "FixedSize",
        "FullBatch",
        "RandomAllocation",
        "CyclicPoisson",
        "TruncatedPoisson",
        "FixedOrder",
        "SAMPLINGS",
    ),
    "privacy.relation": ("Relation",),
    "privacy.bracket": ("Bracket",),
    "privacy.mechanism": ("MECHANISMS",),
    "privacy.conversions": ("trade_off",),
    "sphere": ("DIRECTIONS",),
    "theory.problem": ("Problem",),
    "privacy.calibration": ("calibrate",),
    "_front": ("epsilon", "delta", "prescribe", "certify", "verify"),
    "optim.step.algorithm": ("ALGORITHMS",),
    "optim.plan": ("Plan",),
    "optim.private": ("make_private", "make_private_with_epsilon", "make_from_seed_not_private"),
    "audit": ("audit",),
    "audit.claim": ("Claim", "View"),
}
"""For each module of this package, by its dotted name below the package, the names that the package offers from it."""

__all__ = [  # noqa: RUF022  # The names are in the order in which a user meets them
    "Step", "Poisson", "FixedSize", "FullBatch", "RandomAllocation", "CyclicPoisson", "TruncatedPoisson", "FixedOrder",
    "Relation", "Bracket", "epsilon", "delta", "calibrate", "trade_off", "Problem", "prescribe", "certify", "Plan",
    "make_private", "make_private_with_epsilon", "make_from_seed_not_private", "verify", "audit", "Claim", "View",
    "SAMPLINGS", "MECHANISMS", "DIRECTIONS", "ALGORITHMS",
]  # fmt: skip


__getattr__ = lazily(__name__, _NAMES)


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
