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


def common(operators: Sequence[Operator], power: int) -> Operator:
    """Return the matrix S = sum_k A_k^p of symmetric matrices A_k; its p-th root H has -H <= A_k <= H for every k.

    So H bounds all A_k in the order of symmetric matrices. `measure_spectrum` measures H if it gets S and root=p. One
    product of S with a vector costs p products with each A_k.

    Args:
        operators: the matrices A_k, at least one, of one shape.
        power: the even number p >= 2.

    Raises:
        ValueError: an argument outside its range.
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
