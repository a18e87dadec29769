"""Quadratic losses with known constants, and functions that run an algorithm on them at thousands of settings at once.

The caller gives all random numbers.
"""
