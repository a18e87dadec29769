"""Random allocation, where a record is in a fixed number of steps of every epoch."""
