"""A matrix that bounds the Hessians at several points at once, as Assumption asp:rank of the DPZero paper needs it.

The assumption asks for one H with -H <= Hess F(x) <= H at every x. For Hessians A_k at m points and even p,

    H_p = (sum_k A_k^p)^(1/p)   satisfies   -H_p <= A_k <= H_p   for every k,

since sum_k A_k^p >= A_k^p = |A_k|^p and s -> s^(1/p) is operator monotone (Loewner and Heinz). trace(H_p) is at most
m^(1/p) times the smallest possible trace of such an H. Between the points nothing is claimed.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from dpzero_theory import check
from dpzero_theory.curvature.lanczos import Operator


def common(operators: Sequence[Operator], power: int) -> Operator:
    """Return the matrix S = sum_k A_k^p of symmetric matrices A_k. Its root H = S^(1/p) satisfies -H <= A_k <= H for
    every k.

    `measure_spectrum` with root=p measures H. One product of S with a vector takes p products with each A_k.

    Args:
        operators: the matrices A_k, at least one, all of the same shape.
        power: the even number p >= 2.

    Raises:
        ValueError: an argument is outside its range.
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
