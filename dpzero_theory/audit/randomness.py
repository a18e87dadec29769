"""Seeds the global random generators of Python, NumPy and torch for a run, and restores their states afterwards."""

import random
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

import numpy as np

_keeping = ContextVar("_keeping", default=False)
"""Whether a surrounding `generators_kept` block will restore the generators, so that an inner one need not."""


@contextmanager
def generators_kept() -> Iterator[None]:
    """After the block the global generators of Python, NumPy and (where it is loaded) torch are as they were before.

    A block within such a block does nothing, because copying NumPy's state would cost more than a short run.
    """
    if _keeping.get():
        yield
        return
    torch = sys.modules.get("torch")
    python, legacy = random.getstate(), np.random.get_state()  # noqa: NPY002
    state = torch.get_rng_state() if torch else None
    outside = _keeping.set(True)
    try:
        yield
    finally:
        _keeping.reset(outside)
        random.setstate(python)
        np.random.set_state(legacy)  # noqa: NPY002
        if torch:
            torch.set_rng_state(state)


@contextmanager
def seeded(world: int) -> Iterator[None]:
    """While the block runs, the global generators start from this seed; afterwards they are as they were."""
    with generators_kept():
        random.seed(world)
        np.random.seed(world % 2**32)  # noqa: NPY002
        if torch := sys.modules.get("torch"):
            torch.default_generator.manual_seed(world)
            if torch.cuda.is_initialized():
                torch.cuda.manual_seed_all(world)
        yield
