"""Experiments that train models on real sentences and digits."""
