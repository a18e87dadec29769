"""A run's folder: its transcript and ledger, its checkpoints, and what they state."""
