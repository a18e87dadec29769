"""Private training loops for the audit: sound ones, and the same with one fault each.

Written here from descriptions of patterns; where a public code is named, the statement is what was read there.
"""
