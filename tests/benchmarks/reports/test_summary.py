"""Tests that the tables of the README and of docs/ are those of the committed rows."""

from pathlib import Path

import pytest

from benchmarks.kit.rows import RESULTS
from benchmarks.reports.summary import PAGES, TABLES, filled

WITH_TABLES = [page for page in PAGES if "<!-- /" in page.read_text()]


@pytest.mark.parametrize("page", WITH_TABLES, ids=lambda page: page.stem)
def test_pages_show_the_committed_rows(page: Path) -> None:
    assert page.read_text() == filled(page.read_text()), "run python -m benchmarks.summary --write"


def test_what_is_said_beside_the_table_of_language_models() -> None:
    """The results page says that DP-LoRA is below DPZero on TREC here, and above it in the paper."""
    said = TABLES["language_models"]()
    trec = said[said.index("other order than the paper's") :].split("SST-2")[0]
    page = " ".join((RESULTS.parents[1] / "docs/results/small-models.md").read_text().split())
    assert "on TREC DP-LoRA is below DPZero at both epsilon here, and above it there" in page
    assert all(f"DPZero ({epsilon}) over DP-LoRA ({epsilon})" in trec for epsilon in (2, 6))


@pytest.mark.parametrize("name", list(TABLES))
def test_every_table_is_on_a_page(name: str) -> None:
    assert [page for page in WITH_TABLES if f"<!-- {name} -->\n" in page.read_text()]
