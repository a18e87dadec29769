"""The numbers of one step: differences, clipping, sums over processes, what is released, and how it moves weights."""
