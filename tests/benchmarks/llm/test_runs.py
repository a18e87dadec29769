"""Records and splits; every task end to end on tiny models; what a run states about itself; resumption."""

import json
import os
import re
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from benchmarks.kit.rows import read_rows
from benchmarks.llm import __main__ as command
from benchmarks.llm.records import Record, Selection, load, splits
from benchmarks.llm.tasks import names, task
from dpzero_theory.optim.files.statement import statement
from dpzero_theory.optim.files.transcript import read
from tests.benchmarks.llm.test_scoring import PAIRS
from tests.benchmarks.llm.tiny import tiny, write_files

pytestmark = pytest.mark.filterwarnings("ignore:epsilon .* protects hardly anything")  # so that tiny runs learn

DATA = Path(os.environ.get("LLM_DATA", "../shared/data"))
real = pytest.mark.skipif(not (DATA / "sst2_train.tsv").is_file(), reason="LLM_DATA does not name the data folder")


def write_sst2(folder: Path, count: int = 40) -> Path:
    lines = ["sentence\tlabel", *(f'film "{i}" is {"very " * (i % 5)}good \t{i % 2}' for i in range(count))]
    for split in ("train", "test"):
        (folder / f"sst2_{split}.tsv").write_text("\n".join(lines) + "\n")
    return folder


def test_layouts(tmp_path: Path) -> None:
    write_sst2(tmp_path, 3)
    assert load(task("sst2"), "train", tmp_path)[1] == Record({"text": 'film "1" is very good'}, 1)
    (tmp_path / "sst5_test.txt").write_text("3 a fine film .\n0 no\n")
    assert load(task("sst5"), "test", tmp_path)[0] == Record({"text": "a fine film ."}, 3)
    (tmp_path / "rte_dev.tsv").write_text("index\tsentence1\tsentence2\tlabel\n0\tA.\tB.\tnot_entailment\n")
    assert load(task("rte"), "test", tmp_path) == [Record({"premise": "A.", "hypothesis": "B."}, 1)]
    (tmp_path / "trec_train.label").write_bytes(
        b"".join(b"HUM:ind Who is Beyonc\xe9\x85 ?\n" if i % 2 else b"ABBR:exp What is %d ?\n" % i for i in range(600))
    )
    train, test = (load(task("trec"), split, tmp_path) for split in ("train", "test"))
    assert (len(train), len(test)) == (100, 500)
    assert Counter(r.label for r in [*train, *test]) == {2: 300, 3: 300}
    row = {"premise": "A.", "hypothesis": "B.", "label": -1}
    (tmp_path / "snli_train.jsonl").write_text(json.dumps(row) + "\n" + json.dumps({**row, "label": 2}) + "\n")
    assert [r.label for r in load(task("snli"), "train", tmp_path)] == [2]
    article = {"QUESTION": "Q?", "CONTEXTS": ["A.", "B."], "final_decision": "no"}
    (tmp_path / "pubmedqa_l.json").write_text(json.dumps({str(number): article for number in range(301)}))
    assert load(task("pubmedqa"), "train", tmp_path) == [Record({"context": "A. B.", "question": "Q?"}, 1)]
    (tmp_path / "boolq_test.jsonl").write_text(json.dumps({"passage": "P", "question": "q", "answer": False}) + "\n")
    assert load(task("boolq"), "test", tmp_path)[0].label == 1


ON_THE_HUB: dict[str, dict[str, Any]] = {
    "sst2": {"idx": 0, "sentence": "good ", "label": 1},
    "sst5": {"text": "good", "label": 3, "label_text": "positive"},
    "snli": {"premise": "A.", "hypothesis": "B.", "label": 2},
    "mnli": {"idx": 0, "premise": "A.", "hypothesis": "B.", "label": 2},
    "rte": {"idx": 0, "sentence1": "A.", "sentence2": "B.", "label": 1},
    "trec": {
        "text": "Who ?",
        "label": 4,
        "label_original": "HUM:ind",
        "label_coarse": 3,
        "label_coarse_original": "HUM",
    },
    "pubmedqa": {
        **{"pubid": 0, "question": "Q?", "long_answer": "L.", "final_decision": "maybe"},
        "context": {"contexts": ["A.", "B."], "labels": ["AIMS", "RESULTS"], "meshes": ["M"]},
    },
    "boolq": {"question": "is it", "answer": False, "passage": "P"},
}
"""A record of each data set with the columns of its card."""


@pytest.mark.parametrize("name", names())
def test_data_sets_of_the_hub_are_read_by_the_library_that_reads_them(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A folder laid out as a repository of the hub: Parquet files, configurations in the card's header."""
    datasets = pytest.importorskip("datasets")
    entry, row = task(name), ON_THE_HUB[name]
    held_out = entry.hub.held_out
    parts = {entry.hub.test: 2, "train": 3 + held_out}
    folder = tmp_path / "hub" / name
    files = []
    for part, count in parts.items():
        datasets.Dataset.from_list([row] * count).to_parquet(folder / "data" / f"{part}-00000-of-00001.parquet")
        files.append(f"  - split: {part}\n    path: data/{part}-*\n")
    card = f"---\nconfigs:\n- config_name: {entry.hub.config or 'default'}\n  data_files:\n{''.join(files)}---\n"
    (folder / "README.md").write_text(card)
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    here = replace(entry, hub=replace(entry.hub, id=str(folder)))
    found = {split: load(here, split) for split in ("train", "test")}
    assert {split: len(records) for split, records in found.items()} == {"train": 3, "test": held_out or 2}
    record = found["train"][0]
    assert all(record.texts.values())
    expected = {"sst2": 1, "sst5": 3, "snli": 2, "mnli": 2, "rte": 1, "trec": 3, "pubmedqa": 2, "boolq": 1}
    assert record.label == expected[name]


def test_splits_are_disjoint_seeded_and_counted(tmp_path: Path) -> None:
    write_sst2(tmp_path)
    selection = Selection(per_class=5)
    first, again, other = (splits(task("sst2"), selection, seed, tmp_path) for seed in (1, 1, 2))
    assert first == again
    assert first.train != other.train
    assert first.test == other.test
    assert Counter(r.label for r in first.train) == Counter(r.label for r in first.dev) == {0: 5, 1: 5}
    assert not {r.texts["text"] for r in first.train} & {r.texts["text"] for r in first.dev}
    few = splits(task("sst2"), Selection(per_class=18), 0, tmp_path)
    assert (len(few.train), len(few.dev)) == (36, 4), "what is there is counted, not what was asked for"
    total = splits(task("sst2"), Selection(total=30, dev=7, test=9), 0, tmp_path)
    assert (len(total.train), len(total.dev), len(total.test)) == (30, 7, 9)


def test_a_shortened_dev_set_has_all_classes_alike(tmp_path: Path) -> None:
    """400 and 100 records, 50 of each for dev, 40 of them kept: 10 to 30 of a class in each of ten shuffles."""
    (tmp_path / "sst5_train.txt").write_text("".join(f"{int(i % 5 == 0)} film {i}\n" for i in range(500)))
    (tmp_path / "sst5_test.txt").write_text("0 film\n")
    for seed in range(10):
        found = splits(task("sst5"), Selection(per_class=50, dev=40), seed, tmp_path)
        assert 10 <= Counter(r.label for r in found.dev)[1] <= 30


@real
def test_counts_of_the_real_files() -> None:
    few = {name: splits(task(name), Selection(per_class=512), 42, DATA) for name in ("sst2", "sst5", "rte", "trec")}
    assert {name: len(s.train) for name, s in few.items()} == {"sst2": 1024, "sst5": 2560, "rte": 1024, "trec": 2638}
    assert {name: len(s.test) for name, s in few.items()} == {"sst2": 872, "sst5": 1000, "rte": 277, "trec": 500}


def small(folder: Path, *more: str) -> list[str]:
    numbers = {"total": 12, "batch": 6, "steps": 4, "dev": 6, "test": 6, "epsilon": 30, "clip": 1, "step-size": 1e-3}
    words = [f"--{name}={value}" for name, value in numbers.items()]
    return [*words, "--device=cpu", f"--data={folder / 'data'}", f"--out={folder / 'runs'}", *more]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with the files of every task below `data`, and tiny models in the place of pretrained ones."""
    (tmp_path / "data").mkdir()
    for name in names("masked") + names("causal"):
        write_files(task(name), tmp_path / "data")
    monkeypatch.setattr(command, "load", lambda name, **_: tiny(name))
    return tmp_path


@pytest.mark.parametrize(("name", "kind"), PAIRS)
def test_every_task_runs_with_every_kind_of_model(
    name: str, kind: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert command.EXPERIMENT.main(small(folder, f"--task={name}", f"--model={kind}")) == 0
    printed = " ".join(capsys.readouterr().out.split())
    assert re.search(r"What was released is \(29\.\d+|30(\.0*)?, 1e-05\)-differentially private", printed)
    rows = read_rows(folder / "runs").sort_values("step")
    assert rows["step"].tolist() == [0, 1, 2, 3, 4]
    assert set(rows["n"]) == {12}
    assert rows["dev_accuracy"].between(0, 1).all()
    assert rows["test_loss"].notna().tolist() == [True, False, False, False, True]
    assert 29 < rows["epsilon_upper"].iloc[-1] <= 30
    assert rows["d"].iloc[-1] == sum(p.numel() for p in tiny(kind).module.parameters())


def test_a_run_that_stops_resumes_and_spends_its_releases_once(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def stop(*values: object, **how: object) -> None:
        if "step 2" in str(values):
            raise KeyboardInterrupt

    monkeypatch.setattr(command, "print", stop, raising=False)
    words = small(folder, "--model=masked")
    with pytest.raises(KeyboardInterrupt):
        command.EXPERIMENT.main(words)
    monkeypatch.undo()
    monkeypatch.setattr(command, "load", lambda name, **_: tiny(name))
    assert command.EXPERIMENT.main(words) == 0
    (place,) = (path.parent for path in (folder / "runs").glob("*/run.sqlite"))
    assert statement(read(place)).facts["steps paid for"].startswith("4,")
    rows = read_rows(folder / "runs")
    assert rows["step"].tolist() == [0, 3, 4]
    assert command.EXPERIMENT.main(words) == 0
    assert read_rows(folder / "runs").equals(rows), "what is measured is not run again"


def test_memorising_needs_privacy_budget(folder: Path) -> None:
    """DPZero learns a toy task at epsilon = 1e4, and so does MeZO; at 1e-3 steps short enough to survive the noise
    teach nothing."""
    change = []
    for method, epsilon, step_size in (("dpzero", 1e4, 1e-2), ("mezo", 2, 1e-2), ("dpzero", 1e-3, 1e-9)):
        words = [f"--method={method}", f"--epsilon={epsilon}", f"--step-size={step_size}", "--clip=20", "--batch=12"]
        words += ["--steps=40", "--directions-per-step=2", "--direction=rademacher", "--evaluations=1"]
        assert command.EXPERIMENT.main(small(folder, "--model=masked", *words, f"--out={folder / str(epsilon)}")) == 0
        rows = read_rows(folder / str(epsilon)).sort_values("step")
        change.append(rows["test_loss"].iloc[-1] / rows["test_loss"].iloc[0])
    assert max(change[:2]) < 0.9
    assert abs(change[2] - 1) < 0.05


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--epsilon", "0"], "--epsilon must be"),
        (["--data", "nowhere"], "--data must be a folder that can be read"),
        (["--data", "."], "--data must be a folder that holds sst2_train.tsv"),
        (["--method", "sgd"], "--method"),
        (["--per-class", "2", "--total", "3"], "--total must not be given with --per-class"),
        (["--steps", "0"], "--steps must be"),
        (["--batch", "13"], "--batch must be an integer with 1 <= batch <= 12"),
        (["--task", "trec", "--model", "causal"], "--task must be one of sst2, boolq"),
        (["--model", "encoder"], "--model must be one of masked, causal"),
    ],
)
def test_bad_input_is_one_line(
    arguments: list[str], message: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as stopped:
        command.EXPERIMENT.main(small(folder, "--model=masked", *arguments))
    assert stopped.value.code == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1
    assert not (folder / "runs").exists()
