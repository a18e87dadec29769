"""Tests that the benchmark of a newcomer's first steps runs the commands of the README."""

from benchmarks.kit.rows import RESULTS, read_rows
from benchmarks.reports.newcomer import README, quickstarts


def test_sections_and_what_they_run() -> None:
    text = "## One\n\n```python\nprint(1)\n```\n\n```console\n$ python -m a \\\n    --b 'c d'\n```\n"
    text += "## Two\nwords\n## Three\n"
    text += "```text\n```\n```console\n$ python -m e\n```\n"
    assert list(quickstarts(text)) == [
        ("One", [["-c", "print(1)\n"], ["-m", "a", "--b", "c d"]]),
        ("Three", [["-m", "e"]]),
    ]


def test_the_committed_rows_are_of_todays_readme() -> None:
    rows = read_rows(RESULTS / "newcomer")
    found = {title: len(processes) for title, processes in quickstarts(README.read_text())}
    assert dict(zip(rows["section"], rows["processes"], strict=True)) == found
