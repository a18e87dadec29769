"""Tests that the tables of the README and of docs/ are those of the committed rows, and that what a page says of a
finished experiment stands in the note beside its rows."""

import re
from pathlib import Path

import pytest

from benchmarks.kit.rows import RESULTS, read_text
from benchmarks.summary import PAGES, ROOT, TABLES, filled

WITH_TABLES = [page for page in PAGES if "<!-- /" in page.read_text()]
NUMBER = re.compile(r"(?<![\w.^/-])-?\d[\d,]*(?:\.\d+)?(?:e-?\d+)?")


@pytest.mark.parametrize("page", WITH_TABLES, ids=lambda page: page.stem)
def test_pages_show_the_committed_rows(page: Path) -> None:
    assert page.read_text() == filled(page.read_text()), "run python -m benchmarks summary --write"


@pytest.mark.parametrize("name", list(TABLES))
def test_every_table_is_on_a_page(name: str) -> None:
    short = f"{name}_short" if f"{name}_short" in TABLES else name
    assert [page for page in WITH_TABLES if f"<!-- {short} -->\n" in page.read_text()]


def test_all_rows_can_be_read_and_every_folder_is_named_somewhere() -> None:
    pages = "".join(path.read_text() for path in (ROOT / "README.md", *(ROOT / "docs").rglob("*.md")))
    parts = ("benchmarks", "figures", "paper_checks")
    code = "".join(path.read_text() for part in parts for path in (ROOT / part).rglob("*.py"))
    for folder in sorted(path.parent for path in RESULTS.glob("*/rows.csv*")):
        read_text(folder)
        assert re.search(rf"\b{folder.name}\b", pages + code), folder


NOTES = dict(re.findall(r"^## (\w+)\n(.*?)(?=^## |\Z)", (RESULTS / "NOTES.md").read_text(), re.MULTILINE | re.DOTALL))
FINISHED = {name: text for name, text in NOTES.items() if "\nFinished. " in text}


def test_numbers_of_finished_experiments_are_those_of_their_notes() -> None:
    """In a paragraph that cites the note of a finished experiment, every number with a decimal point stands in one of
    the cited notes."""
    assert len(FINISHED) > 20
    compared = 0
    for page in sorted((ROOT / "docs").rglob("*.md")):
        for paragraph in re.split(r"\n\n|\n(?=- |\| )", page.read_text()):
            cited = [name for name in re.findall(r"results/(\w+)", paragraph) if name in FINISHED]
            numbers = [number for number in NUMBER.findall(paragraph) if "." in number] if cited else []
            known = {number for name in cited for number in NUMBER.findall(FINISHED[name])}
            assert set(numbers) <= known, (page.name, sorted(set(numbers) - known))
            compared += len(numbers)
    assert compared > 40
