"""Tests of the proofs that come with the library.

Their links lead somewhere, and each check is linked where it belongs.
"""

import re
from pathlib import Path

import pytest

from paper_checks import sharpened as sharp
from paper_checks.sharp import promises

ROOT = Path(__file__).resolve().parents[1]
THEOREM = ROOT / "dpzero_theory/theory/sharp/proof.md"
DERIVATION = ROOT / "dpzero_theory/privacy/laws/derivation.md"
PROOFS = pytest.mark.parametrize("path", [THEOREM, DERIVATION], ids=lambda path: path.name)
REFERENCE = re.compile(r"^\[([^\]]+)\]: (\S+)$", re.M)
PAIR = re.compile(r"\]\[([^\]]+)\]")
SINGLE = re.compile(r"(?<!\])\[(`[^`\]]+`|(?:[Ss]ection|step) \w+)\](?![\[:(])")


def _anchors(text: str) -> set[str]:
    """Returns the anchors of the headings of a page, as GitHub and MyST make them."""
    return {re.sub(r"[^\w\- ]", "", head.lower()).replace(" ", "-") for head in re.findall(r"^#+ (.*)$", text, re.M)}


@PROOFS
def test_links_lead_somewhere_and_are_used(path: Path) -> None:
    text = path.read_text()
    links = dict(REFERENCE.findall(text))
    body = REFERENCE.sub("", text)
    used = {*PAIR.findall(body), *SINGLE.findall(body)}
    assert {label.casefold() for label in used} == {label.casefold() for label in links}
    for label, link in links.items():
        name, _, anchor = link.partition("#")
        target = path.parent / name if name else path
        assert target.is_file(), label
        assert not anchor or anchor in _anchors(target.read_text()), label


@PROOFS
def test_formulas_survive_markdown(path: Path) -> None:
    """Formulas have nothing that Markdown would change.

    Some renderers read Markdown's escapes and lists before formulas: \\{ is {, and a line's first + is a list.
    """
    for formula in re.findall(r"\$\$.*?\$\$|\$[^$]+\$", path.read_text(), re.S):
        assert not re.search(r"(?<!\\)\\[^a-zA-Z\\ ]|\n *[-+=#>]|\n\n", formula), formula


def test_the_code_cites_sections_that_exist_and_is_linked_from_the_derivation() -> None:
    linked = {(DERIVATION.parent / link).resolve() for _, link in REFERENCE.findall(DERIVATION.read_text())}
    cited = 0
    for module in (ROOT / "dpzero_theory").rglob("*.py"):
        text = " ".join(module.read_text().split())
        if "certified" in module.parts and "derivation.md" in text:
            assert module in linked
        for name, section, part in re.findall(r"(proof|derivation)\.md, section (\d+)(\w?)", text):
            proof = (THEOREM if name == "proof" else DERIVATION).read_text()
            whole = f"\n## {section}. " in proof and (not part or f"\n*({part}) " in proof)
            assert whole or f"\n## {section}{part}. " in proof, module
            cited += 1
    assert cited >= 8


def test_what_is_printed_of_signs_and_of_the_last_steps_is_what_the_checks_test() -> None:
    text = " ".join(THEOREM.read_text().replace("{,}", ",").split())
    for (_, _, price), where in zip(
        promises.SIGNS,
        ("for $K = 1$ and $T = 1000$", *(f"for $T = {t}$" for t in ("4672", "155,200", "1,552,000"))),
        strict=True,
    ):
        assert f"{price:.0%} {where}" in text
    for (_, evaluations, price), unit in zip(promises.SIGNS_BEST, (" evaluations of a record", "", ""), strict=True):
        assert f"{price:.0%} for {evaluations:,}{unit}" in text
    (many, first), (few, second) = promises.LAST_STEPS
    assert f"{first} in place of 50 at $T = {many:,}$ and {second} at $T = {few}$" in text
    assert "Nothing better follows" not in text


def test_every_check_is_named_in_the_proof() -> None:
    """Every check of the theorem is named in the proof.

    A check for another law of directions is named by the check that it repeats, or by its first law.
    """
    named = {
        label.strip("`") for label, link in REFERENCE.findall(THEOREM.read_text()) if "/paper_checks/sharp/" in link
    }
    assert {name for name in sharp.CHECKS if re.sub(r"^(gaussian|frame|sign)-", "", name) not in named} <= named
