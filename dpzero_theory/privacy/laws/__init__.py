"""Distributions of the privacy loss log dP/dQ of one release, for pairs (P, Q) whose delta is at least that of the
release at every epsilon, or at most that."""
