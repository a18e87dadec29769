"""Tests of parts of tables in Markdown."""

import pytest

from benchmarks.kit.tables import markdown, shortened

TABLE = markdown(["task", "K", "gain"], [["TREC", "1", "0.5"], ["digits", "1", ""], ["TREC", "16", "-0.2"]])
TEXT = f"What it shows.\n\n{TABLE}\n\nBelow it.\n\nMore."


def test_lines_and_columns_of_a_table_are_kept_in_the_order_asked_for() -> None:
    found = shortened(TEXT, {"K": "K", "task": "data"}, "^TREC")
    assert found == "| K | data |\n| --- | --- |\n| 1 | TREC |\n| 16 | TREC |"


def test_a_line_is_found_by_all_its_cells_and_an_empty_last_cell_stays() -> None:
    assert shortened(TEXT, lines=r"^digits \| 1 \| $") == "| task | K | gain |\n| --- | --- | --- |\n| digits | 1 |  |"


def test_the_text_below_is_kept_where_asked_for() -> None:
    assert shortened(TEXT, below=True) == f"{TABLE}\n\nBelow it.\n\nMore."
    assert shortened(TABLE, below=True) == TABLE


def test_a_column_that_is_not_there_or_no_line_is_refused() -> None:
    with pytest.raises(ValueError, match="columns must be names of columns of the table; got 'loss'"):
        shortened(TEXT, {"loss": "loss"})
    with pytest.raises(ValueError, match="lines must match a line of the table; got '\\^SST'"):
        shortened(TEXT, lines="^SST")
