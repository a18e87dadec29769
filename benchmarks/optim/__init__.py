"""Experiments on the private optimiser: the time of a step, kills, faults, forged folders, and attacks."""
