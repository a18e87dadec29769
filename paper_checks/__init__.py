"""The paper's claims, each with a check: `python -m paper_checks` in the root of a checkout. Not in the wheel."""

import os

for library in ("OMP", "OPENBLAS", "MKL"):
    # read when numpy is imported; the checks' products are small, and threads that wait for each other spin
    os.environ.setdefault(f"{library}_NUM_THREADS", "1")
