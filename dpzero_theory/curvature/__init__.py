"""Measures, for a torch model on public data, the constants that the paper's theorems assume.

They are the Lipschitz constant L and the smoothness ell of the samples' losses, the effective rank r of the Hessian,
and the gap F(x0) - F* between the mean loss F at the start and its infimum (the paper's Assumptions asp:smooth and
asp:rank).
"""
