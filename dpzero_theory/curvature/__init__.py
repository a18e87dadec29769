"""Measures the constants L, ell, r and gap of Assumptions asp:smooth and asp:rank for a torch model, on public data."""
