"""Old import paths of modules that have moved: they still work, with a DeprecationWarning that names the new path."""

import importlib
import sys
import warnings
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType

_OPTIM = {
    "step": "algorithm contributions distributed estimator sampler update",
    "files": "checkpoint folder page statement transcript",
    "weights": "directions groups module philox_triton precision shards shifted stacked untrained",
    "losses": "evaluation identity isolation records starting task_losses trace",
    "trainers": "overlap progress trainer",
}
"""For each subpackage of `dpzero_theory.optim`, the modules that moved into it and kept their names."""

MOVED = {
    **{
        f"dpzero_theory.optim.{m}": f"dpzero_theory.optim.{room}.{m}"
        for room, names in _OPTIM.items()
        for m in names.split()
    },
    "dpzero_theory.optim.moves": "dpzero_theory.optim.files.replay",
    "dpzero_theory.optim.schedule": "dpzero_theory.optim.step.step_sizes",
    "dpzero_theory.optim.trainer_arguments": "dpzero_theory.optim.trainers.arguments",
    "dpzero_theory.search": "dpzero_theory.bisection",
    "dpzero_theory.theory.sharp.search": "dpzero_theory.theory.sharp.smallest",
    "dpzero_theory.privacy.release": "dpzero_theory.privacy.step",
    "dpzero_theory.privacy.terms": "dpzero_theory.privacy.composition",
    "dpzero_theory.privacy.certified.allocation": "dpzero_theory.privacy.certified.allocations.allocation",
    "dpzero_theory.privacy.certified.cells": "dpzero_theory.privacy.certified.laws.cells",
    "dpzero_theory.privacy.certified.characteristic": "dpzero_theory.privacy.certified.analytic.characteristic",
    "dpzero_theory.privacy.certified.contour": "dpzero_theory.privacy.certified.analytic.contour",
    "dpzero_theory.privacy.certified.convolution": "dpzero_theory.privacy.certified.grids.convolution",
    "dpzero_theory.privacy.certified.decay": "dpzero_theory.privacy.certified.analytic.decay",
    "dpzero_theory.privacy.certified.direction": "dpzero_theory.privacy.certified.router",
    "dpzero_theory.privacy.certified.epoch": "dpzero_theory.privacy.certified.allocations.epoch",
    "dpzero_theory.privacy.certified.exponential": "dpzero_theory.privacy.certified.laws.exponential",
    "dpzero_theory.privacy.certified.finite": "dpzero_theory.privacy.certified.laws.finite",
    "dpzero_theory.privacy.certified.grid": "dpzero_theory.privacy.certified.grids.grid",
    "dpzero_theory.privacy.certified.integers": "dpzero_theory.privacy.certified.laws.integers",
    "dpzero_theory.privacy.certified.mixture": "dpzero_theory.privacy.certified.allocations.mixture",
    "dpzero_theory.privacy.certified.modulus": "dpzero_theory.privacy.certified.allocations.modulus",
    "dpzero_theory.privacy.certified.pairs": "dpzero_theory.privacy.certified.laws.pairs",
    "dpzero_theory.privacy.certified.quadrature": "dpzero_theory.privacy.certified.analytic.quadrature",
    "dpzero_theory.privacy.certified.rare": "dpzero_theory.privacy.certified.analytic.rare",
    "dpzero_theory.privacy.certified.signed": "dpzero_theory.privacy.certified.grids.signed",
    "dpzero_theory.privacy.certified.single": "dpzero_theory.privacy.certified.analytic.single",
    "dpzero_theory.privacy.certified.sketch": "dpzero_theory.privacy.certified.laws.sketch",
    "dpzero_theory.privacy.certified.subset": "dpzero_theory.privacy.certified.allocations.subset",
    "dpzero_theory.privacy.certified.tilting": "dpzero_theory.privacy.certified.analytic.tilting",
    "dpzero_theory.privacy.certified.variation": "dpzero_theory.privacy.certified.analytic.variation",
    "dpzero_theory.privacy.certified.zeroed": "dpzero_theory.privacy.certified.laws.zeroed",
    "dpzero_theory.synthetic.limit": "benchmarks.problems.small_steps",
    "dpzero_theory.synthetic.nonlinear": "benchmarks.problems.nonlinear",
    "dpzero_theory.synthetic.padded": "benchmarks.problems.padded",
    "dpzero_theory.synthetic.worst_case": "benchmarks.problems.worst_case",
}
"""For each module that has moved, by its old import path, its new import path."""

LEFT = {"dpzero_theory.optim.transcript": {"replay": "dpzero_theory.optim.files.replay"}}
"""The names that did not move with the rest of their module.

For each such module, by its old import path, a mapping from these names to the modules in which they are now.
"""


class _Finder(MetaPathFinder, Loader):
    """An import hook that finds a module of `MOVED` under its old path.

    It stands last in `sys.meta_path`, so that Python asks it only for modules that no other finder knows.
    """

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        return ModuleSpec(fullname, self) if fullname in MOVED else None

    def exec_module(self, module: ModuleType) -> None:
        """Import `module`, which has an old path, by its new path, and register the result under the old path too.

        A DeprecationWarning names the new path. ModuleNotFoundError is raised where the new path is outside this
        package, in a source checkout, and only the package is installed.
        """
        old, new = module.__name__, MOVED[module.__name__]
        warnings.warn(f"{old} is now {new}", DeprecationWarning, stacklevel=3)
        try:
            sys.modules[old] = importlib.import_module(new)
        except ModuleNotFoundError as error:
            if error.name != new.partition(".")[0]:
                raise
            raise ModuleNotFoundError(f"{old} is now {new}, which a checkout has and no wheel", name=new) from None
        for name, home in LEFT.get(old, {}).items():
            setattr(sys.modules[old], name, getattr(importlib.import_module(home), name))


def install() -> None:
    """Make the old import paths of moved modules importable in this process; a second call does nothing."""
    if not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        sys.meta_path.append(_Finder())
