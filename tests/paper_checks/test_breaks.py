"""Every check can fail: one wrong constant or operator, planted in what the check is about, turns its verdict.

`breaks.csv` has one break for each check: a place in the source of `paper_checks` or in its tables, and what is planted
there. A break of a check of a table is in the table, one of a part of a theorem in the paper's formula.
"""

import csv
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import CodeType

import pytest

import paper_checks
from paper_checks import __main__ as runner
from paper_checks import registry

THEOREMS = {f"{kind}{number}" for kind in ("thm", "cor") for number in (1, 2, 3)}
PARTS = ("utility", "alpha", "steps", "clip", "evaluations", "noise", "privacy", "smoothing")
HOME = Path(paper_checks.__file__).parent
with (Path(__file__).with_name("breaks.csv")).open(newline="") as file:
    BREAKS = {row["check"]: row for row in csv.DictReader(file)}


@pytest.fixture(scope="module")
def homes() -> dict[str, str]:
    """Return the module that each check is in."""
    runner.load_checks()
    return {id: check.__module__ for id, check in registry.registered().items()}


@pytest.fixture(scope="module")
def stated() -> dict[str, str]:
    """Return the status that each claim states."""
    return {claim.id: claim.status for claim in registry.load_claims()}


@contextmanager
def planted(row: dict[str, str], folder: Path, patch: pytest.MonkeyPatch) -> Iterator[None]:
    """Return a context in which modules of `paper_checks` are imported anew, with the break of this row."""
    path = HOME / row["file"]
    text = path.read_text()
    assert text.count(row["old"]) == 1, f"{row['check']}: its break must be in {row['file']} once"
    changed = text.replace(row["old"], row["new"])

    class Planted(SourceFileLoader):
        def get_code(self, fullname: str) -> CodeType:
            own = changed if Path(self.path) == path else Path(self.path).read_text()
            return compile(own, self.path, "exec", dont_inherit=True)

    loaded = {name: module for name, module in sys.modules.items() if name.startswith("paper_checks.")}
    with patch.context() as during:
        for name in loaded:
            during.delitem(sys.modules, name)
            package, _, own = name.rpartition(".")
            # `from paper_checks import formulas` would find the module as an attribute
            during.delattr(loaded.get(package, paper_checks), own)
        during.setattr(SourceFileLoader, "get_code", Planted.get_code)
        if path.suffix == ".toml":
            (folder / path.name).write_text(changed)
            during.setattr(import_module("paper_checks.tables"), "TABLES", folder / path.name)
        yield
        for name in [name for name in sys.modules if name.startswith("paper_checks.")]:
            del sys.modules[name]


def verdict(id: str, home: str) -> str:
    """Import the module `home`, run the check `id` in it, and return its verdict, 'failed' for a disagreement between
    the library and the paper."""
    import_module(home)
    fresh = sys.modules["paper_checks.registry"]
    try:
        return str(fresh.registered()[id](False).verdict)
    except fresh.Disagreement:
        return "failed"


def test_every_check_has_a_break_where_it_should_be(homes: dict[str, str]) -> None:
    claims = {claim.id: claim for claim in registry.load_claims() if claim.status != registry.NOT_TESTABLE}
    assert set(BREAKS) == set(claims)
    for id, row in BREAKS.items():
        assert claims[id].kind != "table arithmetic" or row["file"] == "tables.toml", id
        name, _, part = id.partition("-")
        if name in THEOREMS and part in PARTS:
            assert row["file"] == "formulas.py", id


@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # a broken formula may well give NaN
@pytest.mark.parametrize("id", BREAKS)
def test_a_planted_break_turns_the_verdict(
    id: str, homes: dict[str, str], stated: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with planted(BREAKS[id], tmp_path, monkeypatch):
        found = verdict(id, homes[id])
    assert found != stated[id]
    assert found in (*registry.STATUSES, "failed")
