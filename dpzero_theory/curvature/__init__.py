"""Measures the constants of Assumptions asp:smooth and asp:rank (L, ell, r, gap) of a torch model on public data."""
