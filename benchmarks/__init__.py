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
"""The folders of this package whose experiments are called by the file's name alone (`accounting`). A command in any
other folder is called by folder and file (`gpu.plans`)."""


def home(name: str) -> str:
    """Return the import path of the module of the experiment `name`: for `accounting` it is
    `benchmarks.privacy.accounting`.

    A name that is already a full import path, or for which there is no file, is returned unchanged.
    """
    short = name.removeprefix(f"{__name__}.")
    rooms = [room for room in ROOMS if "." not in short and (_HERE / room / f"{short}.py").exists()]
    return f"{__name__}.{rooms[0]}.{short}" if rooms else name


class _ByName(MetaPathFinder, Loader):
    """An import hook that makes `import benchmarks.NAME` load the module from the folder that it stands in. Python asks
    this hook only for modules that it has found nowhere else."""

    def find_spec(self, fullname: str, path: object, target: ModuleType | None = None) -> ModuleSpec | None:
        ours = fullname.startswith(f"{__name__}.") and home(fullname) != fullname
        return ModuleSpec(fullname, self, origin=home(fullname)) if ours else None

    def exec_module(self, module: ModuleType) -> None:
        """Import the module at its full path and put it into `sys.modules` in place of `module`, the empty one that
        Python made for the short name. A DeprecationWarning names the full path."""
        name = module.__name__
        warnings.warn(f"{name} is now {home(name)}", DeprecationWarning, stacklevel=3)
        sys.modules[name] = importlib.import_module(home(name))

    def get_code(self, fullname: str) -> CodeType:
        """Return the code that `python -m benchmarks.NAME` runs, where `fullname` is "benchmarks.NAME": it calls
        `python -m benchmarks NAME` with the same flags."""
        words = f"[{fullname.removeprefix(__name__ + '.')!r}, *sys.argv[1:]]"
        # a spawned worker process executes the compiled lines too; there __name__ is not "__main__", so that it does
        # not begin the run again
        begin = f"import sys, benchmarks.__main__ as b; sys.exit(b.main({words}))"
        return compile(f"if __name__ == '__main__':\n    {begin}", f"<{fullname}>", "exec")


if not any(type(finder).__name__ == _ByName.__name__ for finder in sys.meta_path):
    sys.meta_path.append(_ByName())
