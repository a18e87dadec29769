"""A matrix that bounds the Hessian at several points at once, as Assumption asp:rank asks for at all points.

The assumption asks for one H with -H <= Hess F(x) <= H everywhere. At a point with Hessian A every such H has tr(H) >=
tr|A|: in the eigenbasis of A, H_jj >= |lambda_j|. So the largest tr|A_k| over points is a lower bound on tr(H). From
above, for even p,

    H_p = (sum_k A_k^p)^(1/p)   satisfies   -H_p <= A_k <= H_p   for every k,

since sum_k A_k^p >= A_k^p = |A_k|^p and s -> s^(1/p) is operator monotone (Loewner and Heinz). For m points tr(H_p) is
at most m^(1/p) times the smallest possible. Between the points nothing is claimed.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from dpzero_theory import check
from dpzero_theory.curvature.lanczos import Operator
from dpzero_theory.curvature.objective import Objective


def common(operators: Sequence[Operator], power: int) -> Operator:
    """Return the operator sum_k A_k^p for the operators A_k and p = power.

    `measure_spectrum(..., root=p)` measures with it H_p = (sum_k A_k^p)^(1/p), which bounds every A_k. One product with
    it costs p products with each operator. ValueError is raised unless the power is even and at least 2, for no
    operators, and for operators that differ in shape.
    """
    p = check.integer("power", power, at_least=2)
    if p % 2:
        raise ValueError(f"power must be even; got {p}")
    if len({operator.d for operator in operators}) != 1:
        raise ValueError(f"operators must be at least one, of one dimension; got {len(operators)}")

    def product(v: Tensor) -> Tensor:
        total = torch.zeros_like(v)
        for operator in operators:
            w = v
            for _ in range(p):
                w = operator.apply(w)
            total += w
        return total

    first = operators[0]
    return Operator(first.d, product, first.dtype, first.device)


def descend(objective: Objective, x: Tensor, steps: int, step_size: float) -> Tensor:
    """Return the weights, shape (d,), after at most `steps` steps of full-batch gradient descent from the weights x.

    `objective` has the mean loss F. Where F would rise `step_size` is halved, for all further steps, so F never rises;
    the descent ends early where it was halved to 1e-12 of itself and F would still rise. Raises ValueError for
    step_size <= 0 or steps < 0.
    """
    alpha = check.real("step_size", step_size, above=0)
    value = objective.value(x)
    for _ in range(check.integer("steps", steps, at_least=0)):
        gradient = objective.gradient(x)
        trial = x - alpha * gradient
        after = objective.value(trial)
        while not after <= value and alpha > 1e-12 * step_size:
            alpha /= 2
            trial = x - alpha * gradient
            after = objective.value(trial)
        if not after <= value:
            break
        x, value = trial, after
    return x
