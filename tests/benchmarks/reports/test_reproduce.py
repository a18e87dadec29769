"""Tests of the check that committed rows can be made again.

Rows that do not come back are found, and its list says what is behind each number of the documentation.
"""

import hashlib
import json
import random
import shutil
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from benchmarks.kit import sources
from benchmarks.kit.remake import Remake
from benchmarks.kit.rows import RESULTS
from benchmarks.privacy import five
from benchmarks.privacy.accounting import REMAKES
from benchmarks.reports import reproduce


@pytest.fixture(autouse=True)
def as_the_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Digits are compared as on the arithmetic on which the rows were made.

    The rows of these tests come from a formula that adds nothing up, so they do not depend on the arithmetic.
    """
    monkeypatch.setattr(reproduce, "others", list)


def copied(folder: Path, change: tuple[str, str] | None = None) -> Path:
    """Copies two committed rows that a formula makes into `folder`, with a manifest that fits them.

    `change`, a pair (old text, new text), changes the second row. Returns the folder of the rows.
    """
    place = folder / "accounting_lemma"
    shutil.copytree(RESULTS / "accounting_lemma", place)
    lines = (place / "rows.csv").read_text().splitlines(keepends=True)[:3]
    if change is not None:
        assert lines[2].count(change[0]) == 1
        lines[2] = lines[2].replace(*change)
    (place / "rows.csv").write_text("".join(lines))
    manifest = json.loads((place / "manifest.json").read_text())
    manifest["sha256"] = hashlib.sha256("".join(lines).encode()).hexdigest()
    (place / "manifest.json").write_text(json.dumps(manifest))
    return folder


def planted(folder: Path, digit: int) -> str:
    """Copies two committed rows into `folder` with one digit of a number changed, and a manifest that fits the change.

    `digit` is the index of the digit in the number's text. Returns what the report must say of it.
    """
    row = (RESULTS / "accounting_lemma" / "rows.csv").read_text().splitlines()[2].split(",")
    wrong = repr(float(row[4][:digit] + str((int(row[4][digit]) + 1) % 10) + row[4][digit + 1 :]))
    copied(folder, (row[4], wrong))
    return f"noise_ratio {wrong}, made again {row[4][:12]}"


def run(folder: Path) -> int:
    return reproduce.EXPERIMENT.main(["--results", str(folder), "--minutes", "5", "--seed", "1"])


def test_rows_come_back(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(copied(tmp_path)) == 0
    assert capsys.readouterr().out.splitlines()[-1].startswith("Passed: 2 rows of 1 results came back")


@pytest.mark.parametrize("elsewhere", [[], ["numpy", "torch"]])
def test_a_planted_wrong_row_is_found(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, elsewhere: list[str]
) -> None:
    """A row with a wrong eighth digit is found, on the arithmetic on which the rows were made and on another."""
    monkeypatch.setattr(reproduce, "others", lambda: elsewhere)
    wrong = planted(tmp_path, 9)
    assert run(tmp_path) == 1
    said = capsys.readouterr().out.splitlines()
    found = [line for line in said if line.startswith("DIFFERENT")]
    assert len(found) == 1
    assert wrong in found[0]
    key = found[0].removeprefix("DIFFERENT: ").partition(" delta=")[0]
    assert said[-1].startswith("Failed: 1 rows of 1 results came back")
    assert f"1 did not ({key}" in said[-1]


def table(rows: list[dict[str, Any]], remake: Remake) -> reproduce.Committed:
    one = reproduce.Committed(Path("table"), {"command": "python -m benchmarks.table"})
    # The object's cached properties keep their values under these names.
    vars(one).update(rows=rows, remake=remake)
    return one


def verdicts(remake: Remake, row: dict[str, Any], seconds: float = 60.0) -> set[str]:
    outcomes = reproduce.reproduce([table([row], remake)], seconds, random.Random(0))
    return {outcome.verdict for outcome in outcomes}


def test_what_counts_as_come_back() -> None:
    row = {"setting": 1, "value": 2.0, "note": None, "seconds": 3.0, "status": "ok"}
    same = Remake(["setting"], lambda given: [{**given, "seconds": 4.0}], varies=["seconds"])
    assert verdicts(same, row) == {"equal"}
    assert verdicts(replace(same, varies=[]), row) == {"DIFFERENT"}
    other = replace(same, make=lambda given: [{**given, "value": 2.0001}])
    assert verdicts(other, row) == {"DIFFERENT"}
    assert verdicts(replace(other, tolerance=1e-4, why="four digits"), row) == {"near"}
    assert verdicts(replace(other, errors=lambda given: {"value": 2e-5}), row) == {"near"}
    assert verdicts(replace(other, errors=lambda given: {"value": 1e-5}), row) == {"DIFFERENT"}
    assert verdicts(replace(same, make=lambda given: []), row) == {"DIFFERENT"}
    assert verdicts(replace(same, make=lambda given: [{**given, "note": 1.0}]), row) == {"DIFFERENT"}
    assert verdicts(replace(same, make=lambda given: [{**given, "note": ""}]), row) == {"equal"}
    assert verdicts(replace(same, make=lambda given: [{**given, "setting": 2}]), row) == {"DIFFERENT"}


def test_a_row_that_takes_too_long_is_left_and_one_that_fails_is_not() -> None:
    slow = Remake(["setting"], lambda given: time.sleep(5) or [given])  # type: ignore[func-returns-value]
    assert verdicts(slow, {"setting": 1}, seconds=0.5) == {"too long"}
    broken = Remake(["setting"], lambda given: [given["nothing"]])
    assert verdicts(broken, {"setting": 1}) == {"DIFFERENT"}


def test_on_another_arithmetic_upset_runs_are_passed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reproduce, "others", lambda: ["numpy"])
    near = Remake(["setting"], lambda given: [{**given, "value": 2.0001}], elsewhere=1e-4)
    row = {"setting": 1, "value": 2.0}
    assert verdicts(near, row) == {"near"}
    assert verdicts(replace(near, upset=lambda given: given["value"] > 1), row) == set()


def test_on_another_arithmetic_each_benchmark_says_how_near_a_row_comes_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows made again on another arithmetic may differ by as much as their benchmark allows.

    A tenth of that passes and ten times that does not. A benchmark that says nothing allows differences from the tenth
    digit on.
    """
    row = {"setting": 1, "value": 2.0}

    def off(relative: float, **said: Any) -> set[str]:
        return verdicts(Remake(["setting"], lambda given: [{**given, "value": 2 + 2 * relative}], **said), row)

    assert off(1e-10) == {"DIFFERENT"}
    monkeypatch.setattr(reproduce, "others", lambda: ["numpy"])
    assert (off(1e-10), off(1e-8)) == ({"near"}, {"DIFFERENT"})
    assert (off(1e-5, elsewhere=1e-4), off(1e-3, elsewhere=1e-4)) == ({"near"}, {"DIFFERENT"})
    assert off(1e-7, tolerance=1e-6, why="six digits") == {"near"}


def test_a_row_whose_package_is_missing_is_not_checked() -> None:
    def without(package: str) -> set[str]:
        def make(given: dict[str, Any]) -> list[dict[str, Any]]:
            raise ModuleNotFoundError(f"No module named {package!r}", name=package)

        return verdicts(Remake(["setting"], make), {"setting": 1})

    assert without("prv_accountant") == {"not checked"}
    assert without("benchmarks.gone") == {"DIFFERENT"}


def test_results_whose_benchmark_needs_a_missing_package_are_not_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    def gone(name: str) -> None:
        raise ModuleNotFoundError("No module named 'opacus'", name="opacus")

    monkeypatch.setattr(reproduce.importlib, "import_module", gone)
    one = reproduce.Committed(Path("table"), {"command": "python -m benchmarks.limit"})
    assert [outcome.verdict for outcome in reproduce.reproduce([one], 60.0, random.Random(0))] == ["not checked"]


@pytest.mark.parametrize("why", ["No module named 'PLD_accounting'", "cannot import name 'x' from 'jax'"])
def test_an_accountant_that_cannot_be_imported_is_a_missing_package(monkeypatch: pytest.MonkeyPatch, why: str) -> None:
    monkeypatch.setattr(five, "apart", lambda asked, modules, question: {"status": f"not installed: {why}"})
    row = {"n": 1_024, "batch": 64, "steps": 10, "epsilon": 2.0, "delta": 1e-5, "accountant": "PLD_accounting"}
    assert verdicts(replace(REMAKES["accounting_rows"], varies=()), row) == {"not checked"}


def test_one_sentence_says_whether_it_passes() -> None:
    def of(*verdicts: str) -> tuple[bool, str]:
        return reproduce.verdict([reproduce.Reproduced("table", {"setting": 1}, each, "", 0.0) for each in verdicts])

    assert of("equal", "near", "too long", "not checked") == (
        True,
        "Passed: 2 rows of 1 results came back, 1 of them to the last digit; 0 did not; "
        "1 took too long and were left, which fails nothing; 1 were not checked for want of a package, which fails "
        "nothing.",
    )
    assert of("equal", "DIFFERENT") == (
        False,
        "Failed: 1 rows of 1 results came back, 1 of them to the last digit; 1 did not (table, setting=1).",
    )
    assert of("too long") == (
        False,
        "Failed: 0 rows of 0 results came back, 0 of them to the last digit; 0 did not; "
        "1 took too long and were left, which fails nothing.",
    )


def test_blocks_name_what_they_rest_on() -> None:
    page = """# Title

Two of 3 (`python -m benchmarks.one`).

Then 4.5 and `x = 9`.

| a | 1e-5 |

## Other

There are 7 of them.

<!-- table -->

| 10,000 | b |

`python -m benchmarks.two --preset big`: 8%.
Also `benchmarks/results/two_small` with `benchmarks.two`: 9.
"""
    commands = {
        "one": "python -m benchmarks.one",
        "two": "python -m benchmarks.two --preset big",
        "two_small": "python -m benchmarks.two --preset small",
    }
    found = [(block.numbers, block.folders) for block in sources.blocks(page, commands, {"table": ("one", "two")})]
    assert found == [
        (("3",), ("one",)),
        (("4.5",), ("one",)),
        (("1e-5",), ("one",)),
        (("7",), ()),
        (("10,000",), ("one", "two")),
        (("8%", "9"), ("two_small", "two")),
    ]


def test_the_list_has_every_result_and_the_numbers_of_the_synthetic_experiment() -> None:
    tables, root = reproduce.committed(RESULTS), Path(__file__).parents[3]
    for one in tables:
        # The functions that make rows again are left out, since importing their modules takes seconds.
        vars(one).update(remake=None)
    pages = reproduce.measured_pages()
    said = "\n".join(reproduce.listing(tables, pages, root / "paper_checks" / "checks"))
    with_rows, without = said.split("no rows (")
    for folder in {path.parent.name for path in RESULTS.glob("*/rows.csv*")}:
        assert f"\n{folder}: " in f"\n{with_rows}"
    paper = "docs/results/paper.md"
    begin = pages[paper].splitlines().index("## The paper's synthetic experiment")
    assert not [line for line in without.splitlines() if paper in line and int(line.split(":")[1]) > begin]
    assert [line for line in with_rows.splitlines() if line.startswith("    claims: ") and "toy-low-rank-flat" in line]
