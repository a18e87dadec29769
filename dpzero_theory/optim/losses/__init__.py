"""From records to losses: how batches are read and evaluated, and tests that a record's loss depends on it alone."""
