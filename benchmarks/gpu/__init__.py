"""Everything that a GPU should show, in the time that one has.

- cards.toml, cards: what cards can do, by data sheet; the card that is there
- jobs: what is run, in order of value, and what it needs
- schedule: what fits into the time and the memory, and why the rest does not
- execute: a job in a process of its own, ended at its limit, and with the command whatever ends that
- tests: the tests marked `gpu`, a row for each
- sentences: data for the smoke run
- plans: what would run on some cards, as data
- __main__: the command
- kills: the smoke run, killed at random and resumed, gives the rows of one that was not
"""
