"""Measures, for a torch model on public data, the constants that the paper's theorems assume.

They are the Lipschitz constant L, the smoothness ell, the effective rank r and the gap F(x0) - F*, of the paper's
Assumptions asp:smooth and asp:rank.
"""
