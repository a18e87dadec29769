"""The paper's claims, each with a check: `python -m paper_checks` in the root of a checkout. It is not in the wheel."""

import os

for library in ("OMP", "OPENBLAS", "MKL"):
    # read when numpy is imported; the checks' matrix products are small, and with more threads they would mostly wait
    os.environ.setdefault(f"{library}_NUM_THREADS", "1")
