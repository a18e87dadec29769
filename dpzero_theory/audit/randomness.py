"""Seeds the global random generators of Python, NumPy and torch for a run, and restores their states afterwards."""

import random
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

import numpy as np

_SEED: dict[str, Callable[[int], None]] = {"python": random.seed, "numpy": np.random.seed}
"""The functions that seed the global generators, where `sources.noted_seeds` does not replace them."""
_keeping = ContextVar("_keeping", default=False)
"""Whether a block of `generators_kept` is running, which will restore the random generators.

A block inside it then need not.
"""


@contextmanager
def generators_kept() -> Iterator[None]:
    """A context manager that restores the global random generators of Python, NumPy and torch after its block.

    torch's are restored where it is loaded. A block within such a block does nothing, because copying NumPy's state
    would cost more than a short run.
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
    """A context manager in whose block the global random generators start from the seed `world`.

    They are those of Python, NumPy and (where it is loaded) torch. Afterwards they are as they were.
    """
    with generators_kept():
        _SEED["python"](world)
        _SEED["numpy"](world % 2**32)
        if torch := sys.modules.get("torch"):
            torch.default_generator.manual_seed(world)
            if torch.cuda.is_initialized():
                torch.cuda.manual_seed_all(world)
        yield
