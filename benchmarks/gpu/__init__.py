"""Everything that a GPU should show, in the time that one is available.

- cards.toml, cards: what GPUs can do, by their data sheets; the GPU at hand
- jobs: the jobs, the most valuable first, and what each needs
- planning: which jobs fit into the time and the memory, and why the others do not
- execute: a job in a process of its own, which ends at its limit, and whenever this command ends
- tests: the tests marked `gpu`, a row for each
- sentences: data for the smoke run
- plans: what would run on some GPUs, as rows
- __main__: the command
- kills: the smoke run, killed at random and resumed, gives the rows of an undisturbed one
"""
