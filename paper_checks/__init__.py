"""The paper's claims, each with a check: `python -m paper_checks` in the root of a checkout. It is not in the wheel."""

import os

for library in ("OMP", "OPENBLAS", "MKL"):
    # numpy reads these variables when it is imported; on the checks' small matrices more threads would mostly wait
    os.environ.setdefault(f"{library}_NUM_THREADS", "1")
