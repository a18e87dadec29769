"""Property tests draw the same examples on every machine and are not timed; without a GPU, kernels are interpreted.

TRITON_INTERPRET is read when Triton is first imported, which other packages do: too late for the tests that need it.
"""

import os
from pathlib import Path

from hypothesis import settings

settings.register_profile("reproducible", derandomize=True, deadline=None)
settings.load_profile("reproducible")

if not any(Path("/dev").glob("nvidia*")):
    os.environ.setdefault("TRITON_INTERPRET", "1")
