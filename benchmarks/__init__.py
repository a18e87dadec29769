"""Experiments, one script per question: `python -m benchmarks.NAME` in the root of a checkout; without a name, a list.

They write below it, into benchmarks/results and out, so they are not in the wheel and refuse to run elsewhere.
"""

from pathlib import Path

_ROOT = Path(__file__).resolve().parents[1]
if not (_ROOT / "pyproject.toml").is_file():
    raise ImportError(f"they must be run in a checkout, where results are kept; {_ROOT} is none", name=__name__)
