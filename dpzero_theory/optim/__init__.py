"""Private runs of torch modules: `plan` says what is released, `private` makes a run, `run` steps, `verify` checks."""
