"""Difference rules: how a record's change of loss along a direction u is found, for the theory and for the optimiser.

A step of DPZero needs one number for each record and each of its K directions u_k: how fast the record's loss f changes
along u_k at the weights x. A rule says at which points f is evaluated to find it, with smoothing lambda > 0:

    central   (f(x + lambda u_k) - f(x - lambda u_k))/(2 lambda)    2 K points a step, the rule of the paper
    forward   (f(x + lambda u_k) - f(x))/lambda                     K + 1 points: f(x) serves all directions
    exact     u_k^T grad f(x), by forward-mode differentiation      no lambda; f and K derivatives beside it

Where f is ell-smooth, central and forward differences differ from u^T grad f(x) by at most (ell lambda/2)||u||^2, and
the exact rule does not differ at all. So all rules have one theorem, in which the exact one is lambda = 0.
"""

from collections.abc import Callable
from dataclasses import dataclass

from dpzero_theory.registry import Registry


@dataclass(frozen=True, kw_only=True)
class Difference:
    """A difference rule: how a record's change of loss along a direction is found.

    Attributes:
        name: the name by which plans, commands and rows know it.
        points: K -> how many evaluations of a record's loss a step with K directions takes. A derivative along one
            direction counts as one evaluation, though it takes the time of one to two.
        smoothing: whether it shifts the weights by lambda u. The exact rule does not, and takes lambda = 0.
    """

    name: str
    points: Callable[[int], int]
    smoothing: bool = True


DIFFERENCES: Registry[Difference] = Registry("difference")
"""The difference rules by name. Whoever adds one also gives its points in `optim.step`."""
for _rule in (
    Difference(name="central", points=lambda k: 2 * k),
    Difference(name="forward", points=lambda k: k + 1),
    Difference(name="exact", points=lambda k: k + 1, smoothing=False),
):
    DIFFERENCES.register(_rule)
