"""Figures of the benchmarks' rows: `python -m figures.NAME` in the root of a checkout. Not in the wheel."""
