"""Private training loops for the audit: sound ones, and the same loops with one fault each (`table`, `loops.toml`)."""
