"""Private runs of torch modules.

`plan` says what a run releases, `private` starts or resumes a run, `run` makes its steps, `verify` checks its folder.
"""
