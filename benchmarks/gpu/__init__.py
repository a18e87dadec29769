"""Everything that a GPU should show, in the time that one is available. The modules are:

- cards.toml, cards: the speed and memory of GPUs by their data sheets, and which of them this machine has
- jobs: the list of jobs, the most valuable first, and the time and memory that each needs
- planning: which jobs fit into the time and the memory, and why the others do not
- execute: runs a job in a process of its own, which is ended at its time limit and whenever this command ends
- tests: runs the tests marked `gpu` and writes a row for each
- sentences: made-up data for the preset `smoke`, which runs every job at a small size
- plans: rows that say what would run on some GPUs
- __main__: the command `python -m benchmarks.gpu`
- kills: shows that a `smoke` run that is killed at random and resumed gives the rows of an undisturbed one
"""
