"""Old import paths of modules that have moved: they still work, with a DeprecationWarning that names the new path."""

import importlib
import sys
import warnings
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType

MOVED = {
    "dpzero_theory.privacy.release": "dpzero_theory.privacy.step",
}
"""Old path -> new path."""


class _Finder(MetaPathFinder, Loader):
    """Finds a module of `MOVED` under its old path; asked only for what no other finder knows."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        return ModuleSpec(fullname, self) if fullname in MOVED else None

    def exec_module(self, module: ModuleType) -> None:
        """Put the module under its new path in the place of the empty one that was made for the old path."""
        old, new = module.__name__, MOVED[module.__name__]
        warnings.warn(f"{old} is now {new}", DeprecationWarning, stacklevel=3)
        sys.modules[old] = importlib.import_module(new)


def install() -> None:
    """Make the old paths importable in this process."""
    if not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        sys.meta_path.append(_Finder())
