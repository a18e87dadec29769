"""Tests of the HTML page of a run, which is read by a parser."""

import re
from html.parser import HTMLParser
from pathlib import Path

from dpzero_theory.optim.files.page import page

from dpzero_theory.optim.files.statement import spending_curve, statement_of_folder
from dpzero_theory.privacy.ledger import read
from tests.optim.small import private


class Words(HTMLParser):
    def __init__(self, text: str) -> None:
        super().__init__()
        self.words: list[str] = []
        self.feed(text)

    def handle_data(self, data: str) -> None:
        if data.strip():
            self.words.append(data.strip())


def test_the_page_has_the_claim_the_checks_the_statement_and_the_curve(tmp_path: Path) -> None:
    run = private(tmp_path / "run")
    for _ in range(5):
        run.step()
    run.close()
    claimed, account = statement_of_folder(tmp_path / "run"), read(tmp_path / "run" / "run.sqlite")
    curve = spending_curve(account)
    text = page(claimed, [("a <b>", "1 & 2", True), ("said", "only", None)], curve, 5, account.target_epsilon)
    words = Words(text).words
    assert {claimed.claim, "a <b>", "1 & 2", "holds", *claimed.facts.values(), *claimed.assumed} <= set(words)
    assert "said" not in words
    assert "epsilon at delta = 1e-05" in words
    assert any(word.endswith(" for 5") for word in words)
    assert not re.search(r"(src|href)=.?(http|//)", text)  # The page loads nothing from the network


def test_a_fault_is_shown(tmp_path: Path) -> None:
    text = page(None, [("files", "missing", False)], [], 0, 1.0)
    assert {"DOES NOT HOLD", "missing", "Nothing can be said of this run."} <= set(Words(text).words)
    assert "<svg" not in text
