"""Experiments, one file per question: `python -m benchmarks NAME`; without a name, a list of them.

The files stand in rooms by subject (`privacy`, `theory`, `sweeps`, `training`, ...). An experiment is known by the name
of its file alone: `python -m benchmarks.NAME` runs it and `import benchmarks.NAME` imports it, whichever room it is in.

Experiments write their rows into benchmarks/results, or below out/. So they are not part of the wheel, and importing
this package outside a checkout raises ImportError.
"""

import importlib
import sys
import warnings
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import CodeType, ModuleType

_HERE = Path(__file__).resolve().parent
if not (_HERE.parent / "pyproject.toml").is_file():
    raise ImportError(f"they must be run in a checkout, where results are kept; {_HERE.parent} is none", name=__name__)

ROOMS = ("audits", "optim", "privacy", "reports", "sweeps", "theory", "training")
"""The folders whose files are known by their names alone; a command in another folder is `gpu.plans`, say."""


def home(name: str) -> str:
    """The import path of an experiment's module: `benchmarks.accounting` is in `benchmarks.privacy.accounting`.

    A name that is an import path already, or that no file has, is returned as it is.
    """
    short = name.removeprefix(f"{__name__}.")
    rooms = [room for room in ROOMS if "." not in short and (_HERE / room / f"{short}.py").exists()]
    return f"{__name__}.{rooms[0]}.{short}" if rooms else name


class _ByName(MetaPathFinder, Loader):
    """Finds `benchmarks.NAME` in its room; Python asks it only for what it has found nowhere else."""

    def find_spec(self, fullname: str, path: object, target: ModuleType | None = None) -> ModuleSpec | None:
        ours = fullname.startswith(f"{__name__}.") and home(fullname) != fullname
        return ModuleSpec(fullname, self, origin=home(fullname)) if ours else None

    def exec_module(self, module: ModuleType) -> None:
        """Put the module of the room in the place of the empty one that was made for its short name."""
        name = module.__name__
        warnings.warn(f"{name} is now {home(name)}", DeprecationWarning, stacklevel=3)
        sys.modules[name] = importlib.import_module(home(name))

    def get_code(self, fullname: str) -> CodeType:
        """What `python -m benchmarks.NAME` runs: `python -m benchmarks NAME`."""
        words = f"[{fullname.removeprefix(__name__ + '.')!r}, *sys.argv[1:]]"
        return compile(f"import sys, benchmarks.__main__ as b; sys.exit(b.main({words}))", f"<{fullname}>", "exec")


if not any(type(finder).__name__ == _ByName.__name__ for finder in sys.meta_path):
    sys.meta_path.append(_ByName())
