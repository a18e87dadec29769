"""From records to losses: how batches are read and evaluated, and how it is looked at that a record keeps to itself."""
