"""Tests of the README and docs/: their Python runs, in order, as a reader would paste it, and their commands exist."""

import re
import shlex
from contextlib import redirect_stdout
from functools import cache
from importlib import import_module
from io import StringIO
from pathlib import Path
from typing import Any

import pytest

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
    for kind, shown in re.findall(r"^```(python|console|diff)\n(.*?)^```$", page.read_text(), re.M | re.S):
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
