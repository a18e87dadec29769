"""Measures, for a torch model on public data, the constants that the paper's theorems assume.

They are the Lipschitz constant L and the smoothness ell of the samples' losses, the effective rank r of the Hessian
(the paper's Assumptions asp:smooth and asp:rank), and the gap F(x0) - F* between the mean loss F at the start x0 and
its infimum. All random numbers come from a generator that the caller gives, the model's weights stay as they are, and
only the command writes a file.
"""
