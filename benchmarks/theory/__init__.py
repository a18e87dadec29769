"""Experiments on the theorems: certificates beside runs, how sharp they can be, and constants that are measured."""
