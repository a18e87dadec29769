"""delta(epsilon) of random allocation, where each record is in a fixed number of random steps of every epoch."""
