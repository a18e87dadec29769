"""Experiments on the private optimiser: the time of a step, and attacks."""
