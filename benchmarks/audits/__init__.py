"""Experiments on the audit of private loops: what it finds, what it misses, and how many runs it needs."""
