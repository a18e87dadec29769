"""A run's folder: its file and checkpoints, and what they state."""
