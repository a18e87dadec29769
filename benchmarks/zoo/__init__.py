"""Private training loops for the audit: sound ones, and the same loops with one fault each.

They were written here from descriptions of faults. Where public code is named, the statement is what was read there.
"""
