"""Makes the page docs/explanation/checks.md, which has for each check of the sharpened theorem the statement that it
tests, its function and its command."""

import inspect
import re
from collections.abc import Callable, Mapping
from functools import partial

from paper_checks.outcome import Checked

_HEAD = """\
# Checks of the sharpened theorem

What tests each step of [the proof](sharpened-theorem.md), apart from the unit tests. A check compares the statement
with sampling, quadrature or enumeration; its seeds, sizes and thresholds are fixed beforehand.
`python -m paper_checks.sharp` runs them all, in a few minutes.

This page is written by `python -m paper_checks.sharp --page`, from the docstrings of the checks.
"""


def page(checks: Mapping[str, Callable[[], Checked]]) -> str:
    """Return the page for these checks, given by name, in Markdown."""
    return "\n".join([_HEAD, *(_entry(name, check) for name, check in checks.items())])


def _entry(name: str, check: Callable[[], Checked]) -> str:
    function, kinds = (check.func, check.args) if isinstance(check, partial) else (check, ())
    module = function.__module__.replace(".", "/") + ".py"
    law = "".join(f" Here for `{kind}` directions." for kind in kinds)
    return f"""\
## `{name}`

{_sentence(function)}{law}

`{function.__name__}` in [{module}](../../{module}), run by `python -m paper_checks --full --only sharp-{name}`.
"""


def _sentence(function: Callable[..., Checked]) -> str:
    """Return the first paragraph of a function's docstring on one line, with the signs escaped that Markdown would
    interpret."""
    first = inspect.cleandoc(function.__doc__ or "").split("\n\n")[0]
    return re.sub(r"([\\`*_\[\]<|$])", r"\\\1", " ".join(first.split()))
