"""Tests of the README, docs/ and the proofs: their Python runs, commands and extras exist, links lead somewhere."""

import ast
import re
import shlex
import sys
import tomllib
from collections.abc import Iterator
from contextlib import redirect_stdout
from functools import cache
from importlib import import_module
from io import StringIO
from pathlib import Path
from typing import Any

import pytest

from paper_checks import sharpened as sharp
from paper_checks.sharp import promises

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")
"""The warnings come from libraries that the commands import."""

ROOT = Path(__file__).resolve().parents[1]
DOCS = ROOT / "docs"
README = ROOT / "README.md"
PAGES = sorted(path for path in DOCS.rglob("*.md") if "modules" not in path.parts)
RUN = [path for path in [README, *PAGES] if re.search(r"^```(python|console|diff)$", path.read_text(), re.M)]
COMMAND = re.compile(r"python -m ([a-z_][\w.]*)((?: +[^\s`|#&\\]+)*)")


def _name(path: Path) -> str:
    return str(path.relative_to(ROOT))


def _main(module: str, arguments: list[str]) -> None:
    if module.startswith("benchmarks."):
        module, arguments = "benchmarks", [module.removeprefix("benchmarks."), *arguments]
    try:
        found = import_module(f"{module}.__main__")
    except ModuleNotFoundError:
        found = import_module(module)
    try:
        status = found.main(arguments)
    except SystemExit as ended:
        status = ended.code
    assert not status, (module, arguments)


MODEL = "HuggingFaceTB/SmolLM2-135M"
"""The causal language model of the pages. A tiny one of random weights, made here, takes its place in the tests."""


@pytest.fixture(scope="module")
def small_model(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The folder of a tiny causal language model with its tokenizer."""
    made = import_module("tests.benchmarks.llm.tiny")
    folder = tmp_path_factory.mktemp("causal")
    made.tiny("causal").module.save_pretrained(folder)
    made.tokenizer("causal").save_pretrained(folder)
    return str(folder)


def _side(block: str, sign: str) -> str:
    """Returns the text before ("-") or after ("+") the changes of a block in the form of a diff."""
    return "".join(line[1:] + "\n" for line in block.splitlines() if line[:1] in ("", " ", sign))


# Both come from how a page's Hugging Face Trainer reads its batches on a processor.
@pytest.mark.filterwarnings("ignore:'pin_memory' argument")
@pytest.mark.filterwarnings("ignore::FutureWarning")
@pytest.mark.parametrize("page", RUN, ids=_name)
def test_what_a_page_shows_runs(
    page: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    request: pytest.FixtureRequest,
) -> None:
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {"__name__": "page"}
    for kind, shown in re.findall(r"^```(python|console|diff|output)\n(.*?)^```$", page.read_text(), re.M | re.S):
        if kind == "output":  # what the block above printed
            assert capsys.readouterr().out == shown
            continue
        capsys.readouterr()
        block = shown.replace(MODEL, request.getfixturevalue("small_model")) if MODEL in shown else shown
        if kind != "console":
            for text in [block] if kind == "python" else [_side(block, "-"), _side(block, "+")]:
                exec(compile(text, _name(page), "exec"), names)
            continue
        for line in block.replace("\\\n", "").splitlines():
            prompt, python, dash, module, *arguments = shlex.split(line)
            assert (prompt, python, dash) == ("$", "python", "-m")
            before = set(tmp_path.iterdir())
            _main(module, arguments)
            assert capsys.readouterr().out or set(tmp_path.iterdir()) > before


def _command(found: tuple[str, str]) -> tuple[str, str]:
    """Returns the module and the arguments of a command; of `benchmarks NAME`, the experiment's own."""
    module, arguments = found
    name, _, rest = arguments.strip().partition(" ")
    return (f"benchmarks.{name}", rest) if module == "benchmarks" and name and name[0] != "-" else found


@cache
def _flags(module: str) -> str:
    """Returns what the command of this module says for --help."""
    with redirect_stdout(StringIO()) as words:
        _main(module, ["--help"])
    return words.getvalue()


def test_commands_named_anywhere_exist_with_their_flags() -> None:
    named = {
        (module.rstrip("."), flag)
        for page in [*PAGES, README, ROOT / "CONTRIBUTING.md"]
        for module, arguments in map(_command, COMMAND.findall(page.read_text().replace("\\\n", " ")))
        if module.startswith(("dpzero_theory", "benchmarks", "figures", "paper_checks"))
        for flag in ["", *re.findall(r"--[a-z][\w-]*", arguments)]
    }
    assert len(named) > 50
    missing = [f"{module} {flag}" for module, flag in sorted(named) if flag not in _flags(module)]
    assert not missing


@pytest.mark.parametrize("page", [README, ROOT / "CONTRIBUTING.md", ROOT / "examples" / "README.md"], ids=_name)
def test_links_outside_the_site_lead_somewhere(page: Path) -> None:
    """Links of pages outside the documentation site lead to files that exist; Sphinx checks the links of docs/."""
    text = page.read_text()
    for link in re.findall(r"\]\((?!https?:)([^)#]+)", text):
        assert (page.parent / link).exists(), link


def _with_included(page: Path) -> str:
    """Returns the text of a page with the Markdown files that it includes."""
    text = page.read_text()
    included = re.findall(r"^```\{include\} (\S+\.md)$", text, re.M)
    return "\n".join([text, *((page.parent / name).read_text() for name in included)])


@pytest.mark.parametrize("page", PAGES, ids=_name)
def test_a_link_to_a_section_leads_to_a_heading(page: Path) -> None:
    for name, anchor in re.findall(r"\]\(([\w./-]*\.md)?#([\w-]+)\)", page.read_text()):
        target = (page.parent / name).resolve() if name else page
        assert anchor.startswith("glossary-") or anchor in _anchors(_with_included(target)), (name, anchor)


def test_every_figure_is_on_a_page_of_results() -> None:
    pages = "".join(path.read_text() for path in (DOCS / "results").glob("*.md"))
    assert [path.name for path in (ROOT / "figures").glob("*.png") if f"../../figures/{path.name})" not in pages] == []


def test_pages_are_in_a_table_of_contents_and_include_what_exists() -> None:
    text = "\n".join(path.read_text() for path in PAGES)
    for path in PAGES:
        name = path.relative_to(DOCS).with_suffix("")
        assert str(name) == "index" or re.search(rf"^({name}|{name.name})$", text, re.M), path
    for path in PAGES:
        for included in re.findall(r"^```\{(?:literalinclude|include|image)\} (\S+)$", path.read_text(), re.M):
            assert (path.parent / included).exists() or included.endswith("_static/house.png"), (path, included)


EXTRAS: dict[str, list[str]] = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
EXTRAS_PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
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


@pytest.mark.parametrize("page", EXTRAS_PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_a_page_runs_from_the_extras_that_it_names(page: Path) -> None:
    text = page.read_text()
    named = [extra for extra in EXTRAS if f"`{extra}`" in text or f"[{extra}]" in text]
    have = AT_HAND.union(*map(installed_by, named)) if named else AT_HAND
    needed = set(imported(code_of(text))) - set(sys.stdlib_module_names) - {"dpzero_theory", "benchmarks"}
    assert {OTHER_NAMES.get(name, name).replace("_", "-") for name in needed} <= have


def test_the_front_page_of_the_documentation_names_every_extra() -> None:
    text = (ROOT / "docs" / "index.md").read_text()
    assert [extra for extra in EXTRAS if f"`{extra}`" not in text and f"[{extra}]" not in text] == []


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
        if "laws" in module.parts and "derivation.md" in text:
            assert module in linked
        for name, section, part in re.findall(r"(proof|derivation)\.md, section (\d+)(\w?)", text):
            proof = (THEOREM if name == "proof" else DERIVATION).read_text()
            whole = f"\n## {section}. " in proof and (not part or f"\n*({part}) " in proof)
            assert whole or f"\n## {section}{part}. " in proof, module
            cited += 1
    assert cited >= 8


def test_what_is_printed_of_signs_and_of_the_last_steps_is_what_the_checks_test() -> None:
    text = " ".join(THEOREM.read_text().replace("{,}", ",").split())
    signs = [row for row in promises.PRICES if row[:2] == ("rademacher", "sphere")]
    assert len(signs) == 7
    for _, _, k, evaluations, price, _ in signs:
        unit = r"(\$K = 1\$ and )?\$T = " if k == 1 else ""
        assert re.search(rf"\b{price - 1:.0%} for {unit}{evaluations}\b", text.replace(",", "")), (k, evaluations)
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
