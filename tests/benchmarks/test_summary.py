"""The tables of the README and of docs/ are those of the committed rows."""

from pathlib import Path

import pytest

from benchmarks.summary import PAGES, TABLES, filled

WITH_TABLES = [page for page in PAGES if "<!-- /" in page.read_text()]


@pytest.mark.parametrize("page", WITH_TABLES, ids=lambda page: page.stem)
def test_pages_show_the_committed_rows(page: Path) -> None:
    assert page.read_text() == filled(page.read_text()), "run python -m benchmarks.summary --write"


@pytest.mark.parametrize("name", list(TABLES))
def test_every_table_is_on_a_page(name: str) -> None:
    assert [page for page in WITH_TABLES if f"<!-- {name} -->\n" in page.read_text()]
