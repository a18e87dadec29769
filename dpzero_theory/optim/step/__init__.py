"""The computations of one training step: clipping of the records' numbers, and sums over several processes."""
