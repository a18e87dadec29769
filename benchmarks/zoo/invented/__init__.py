"""Private training loops for the audit, written from the tutorial alone by someone who had not seen the checks.

The checks were frozen before the loops were read. `first_try.csv` has what the audit said of them then.
"""
