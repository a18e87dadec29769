"""The paper's claims, each with a check: `python -m paper_checks` in the root of a checkout. Not in the wheel."""
