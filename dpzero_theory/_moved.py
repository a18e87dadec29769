"""Old import paths of modules that have moved: they still work, with a DeprecationWarning that names the new path."""

import importlib
import sys
import warnings
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType

_OPTIM = {
    "step": "algorithm contributions distributed estimator reference sampler update",
    "files": "checkpoint folder page signature statement transcript",
    "weights": "directions groups layers module philox_triton precision shards shifted stacked streamed untrained",
    "losses": "evaluation identity isolation records starting task_losses trace",
    "trainers": "overlap progress trainer",
}
"""Room of `optim` -> the modules that moved into it under their own names."""

MOVED = {
    **{
        f"dpzero_theory.optim.{m}": f"dpzero_theory.optim.{room}.{m}"
        for room, names in _OPTIM.items()
        for m in names.split()
    },
    "dpzero_theory.optim.moves": "dpzero_theory.optim.files.replay",
    "dpzero_theory.optim.schedule": "dpzero_theory.optim.step.step_sizes",
    "dpzero_theory.optim.search": "dpzero_theory.optim.hyperparameter_search",
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
"""By the old import path of a module, its new one."""

LEFT = {"dpzero_theory.optim.transcript": {"replay": "dpzero_theory.optim.files.replay"}}
"""By the old import path of a module, the names that moved to another module than the rest, with that module's path."""


class _Finder(MetaPathFinder, Loader):
    """Finds a module of `MOVED` under its old path; asked only for what no other finder knows."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        return ModuleSpec(fullname, self) if fullname in MOVED else None

    def exec_module(self, module: ModuleType) -> None:
        """Import the module by its new path, with a DeprecationWarning, and register it under the old path too."""
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
    """Make the old paths importable in this process."""
    if not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        sys.meta_path.append(_Finder())
