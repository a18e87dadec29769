"""Figures of the committed rows: `python -m figures.NAME` in the root of a checkout. They are not in the wheel."""
