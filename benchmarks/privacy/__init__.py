"""Experiments on the accountant: time, tightness, and comparison with others and with independent evaluations."""
