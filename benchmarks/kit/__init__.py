"""What experiments share: the runner, the store of rows, and tools for time, memory, faults and tables."""
