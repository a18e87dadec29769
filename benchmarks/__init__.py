"""Experiments, one file for each question: `python -m benchmarks NAME`; without a name, a list of them.

Experiments write their rows into benchmarks/results, or below out/. So they are not part of the wheel, and importing
this package outside a checkout raises ImportError.
"""

from pathlib import Path

_HERE = Path(__file__).resolve().parent
if not (_HERE.parent / "pyproject.toml").is_file():
    raise ImportError(f"they must be run in a checkout, where results are kept; {_HERE.parent} is none", name=__name__)
