"""Tests that what a page of the documentation imports is installed by the extras that the page names."""

import ast
import re
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
EXTRAS: dict[str, list[str]] = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
OTHER_NAMES = {"sklearn": "scikit-learn", "flint": "python-flint"}
"""Modules whose distribution has another name."""
AT_HAND = {"numpy", "scipy", "torch"}
"""What pages may import without naming an extra: the installation has the first two, and README names `torch`."""


def installed_by(extra: str) -> set[str]:
    found = set()
    for line in EXTRAS[extra]:
        if inner := re.match(r"dpzero-theory\[(.*)\]", line):
            found |= set().union(*map(installed_by, inner[1].split(",")))
        else:
            found.add(re.split(r"[^\w.-]", line)[0])
    return found


def imported(code: str, *, deep: bool = True) -> Iterator[str]:
    """Yield the packages that a program imports, and those that modules of ours import when it imports them."""
    for name in re.findall(r"^(?:from|import) +([\w.]+)", code, re.M):
        path = ROOT / f"{name.replace('.', '/')}.py"
        if deep and name.startswith("dpzero_theory.") and path.exists():
            tree = ast.parse(path.read_text())
            yield from imported("\n".join(ast.unparse(line) for line in tree.body), deep=False)
        yield name.split(".")[0]


def code_of(text: str) -> str:
    blocks = re.findall(r"^```(python|diff)\n(.*?)^```", text, re.M | re.S)
    after = [re.sub(r"^-.*\n", "", block, flags=re.M) if kind == "diff" else block for kind, block in blocks]
    return "\n".join(re.sub(r"^[+ ](?=\S)", "", block, flags=re.M) for block in after)


@pytest.mark.parametrize("page", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_a_page_runs_from_the_extras_that_it_names(page: Path) -> None:
    text = page.read_text()
    named = [extra for extra in EXTRAS if f"`{extra}`" in text or f"[{extra}]" in text]
    have = AT_HAND.union(*map(installed_by, named)) if named else AT_HAND
    needed = set(imported(code_of(text))) - set(sys.stdlib_module_names) - {"dpzero_theory", "benchmarks"}
    assert {OTHER_NAMES.get(name, name).replace("_", "-") for name in needed} <= have


def test_the_front_page_of_the_documentation_names_every_extra() -> None:
    text = (ROOT / "docs" / "index.md").read_text()
    assert [extra for extra in EXTRAS if f"`{extra}`" not in text and f"[{extra}]" not in text] == []
