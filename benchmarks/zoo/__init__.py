"""Private training loops for the audit: sound ones, and the same loops with one fault each.

The faults were written for this project after published descriptions. Where a docstring names a public repository or an
issue of it, the fault is described there.
"""
