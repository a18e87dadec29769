"""Makes the page docs/explanation/checks.md, which has for each check of the sharpened theorem the statement that it
tests, its function and its command."""

import inspect
import re
from collections.abc import Callable, Mapping
from functools import partial

from paper_checks.outcome import Checked

_HEAD = """\
# Checks of the sharpened theorem

Each step of [the proof](sharpened-theorem.md) is tested by a check, which compares the statement with sampling,
quadrature or enumeration. Seeds, sizes and thresholds are fixed beforehand. Sections and steps are those of the proof.

    # all of them, in a few minutes
    python -m paper_checks.sharp
    # the check NAME
    python -m paper_checks --full --only sharp-NAME
    # this page, from the docstrings of the checks
    python -m paper_checks.sharp --page
"""


def page(checks: Mapping[str, Callable[[], Checked]]) -> str:
    """Return the page for these checks, given by name, in Markdown: a section for each module with checks."""
    first: dict[str, str] = {}
    sections: dict[str, list[str]] = {}
    for name, check in checks.items():
        function, kinds = (check.func, check.args) if isinstance(check, partial) else (check, ())
        entries = sections.setdefault(function.__module__, [])
        entries.append(_entry(name, function, kinds, first))
    return "\n".join([_HEAD, *(part for module, entries in sections.items() for part in (_heading(module), *entries))])


def _heading(module: str) -> str:
    path = module.replace(".", "/") + ".py"
    return f"## Module {module.rpartition('.')[2]}\n\nThe code is [{path}](../../{path}).\n"


def _entry(name: str, function: Callable[..., Checked], kinds: tuple[str, ...], first: dict[str, str]) -> str:
    """Return a check's entry. One that repeats another for other directions refers to it; `first` is filled with the
    name under which each function was met first."""
    key = f"{function.__module__}.{function.__name__}"
    if key in first:
        (kind,) = kinds
        said = f"As [`{first[key]}`](#{first[key]}), for `{kind}` directions."
    else:
        first[key] = name
        said = f"{_sentence(function)} `{function.__name__}`"
    return f"### `{name}`\n\n{said}\n"


def _sentence(function: Callable[..., Checked]) -> str:
    """Return the first paragraph of a function's docstring on one line, without the words that say whose proof it is
    of, and with the signs escaped that Markdown would interpret."""
    first = " ".join(inspect.cleandoc(function.__doc__ or "").split("\n\n")[0].split())
    first = re.sub(r"(?<=\d) of the (sharpened theorem's )?proof\b", "", first)
    return re.sub(r"([\\`*_\[\]<|$])", r"\\\1", first)
