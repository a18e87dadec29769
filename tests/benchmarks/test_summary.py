"""The README's measured tables are those of the committed rows."""

from pathlib import Path

import pytest

from benchmarks.summary import TABLES

README = Path(__file__).parents[2] / "README.md"


@pytest.mark.parametrize("name", list(TABLES))
def test_readme_shows_the_committed_rows(name: str) -> None:
    _, marker, rest = README.read_text().partition(f"<!-- {name} -->\n\n")
    assert marker, f"the README has no table {name}"
    assert rest.startswith(TABLES[name]() + "\n"), f"run python -m benchmarks.summary and copy the table {name}"
