"""Local layouts, label names, splits and counted n; the real files where they are."""

import json
import os
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from benchmarks.llm.records import Record, Selection, load, splits
from benchmarks.llm.tasks import names, task

DATA = Path(os.environ.get("LLM_DATA", "../shared/data"))
real = pytest.mark.skipif(not (DATA / "sst2_train.tsv").is_file(), reason="LLM_DATA does not name the data folder")


def write_sst2(folder: Path, count: int = 40) -> Path:
    lines = ["sentence\tlabel", *(f'film "{i}" is {"very " * (i % 5)}good \t{i % 2}' for i in range(count))]
    for split in ("train", "dev", "test"):
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
    parts = {entry.hub.test: 2, **({entry.hub.dev: 1} if entry.hub.dev else {}), "train": 3 + held_out}
    folder = tmp_path / "hub" / name
    files = []
    for part, count in parts.items():
        datasets.Dataset.from_list([row] * count).to_parquet(folder / "data" / f"{part}-00000-of-00001.parquet")
        files.append(f"  - split: {part}\n    path: data/{part}-*\n")
    card = f"---\nconfigs:\n- config_name: {entry.hub.config or 'default'}\n  data_files:\n{''.join(files)}---\n"
    (folder / "README.md").write_text(card)
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    here = replace(entry, hub=replace(entry.hub, id=str(folder)))
    found = {split: load(here, split) for split in ("train", "dev", "test")}
    assert {split: len(records) for split, records in found.items()} == {
        "train": 3,
        "dev": 1 if entry.hub.dev else 0,
        "test": held_out or 2,
    }
    record = found["train"][0]
    assert all(record.texts.values())
    expected = {"sst2": 1, "sst5": 3, "snli": 2, "mnli": 2, "rte": 1, "trec": 3, "pubmedqa": 2, "boolq": 1}
    assert record.label == expected[name]


def test_errors_name_what_is_wrong(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"data must be a folder that holds sst2_train.tsv"):
        load(task("sst2"), "train", tmp_path)
    (tmp_path / "sst5_test.txt").write_text("9 text\n")
    with pytest.raises(ValueError, match=r"label must be one of .* in sst5; got '9'"):
        load(task("sst5"), "test", tmp_path)
    with pytest.raises(ValueError, match="split must be one of"):
        load(task("sst2"), "all", tmp_path)


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
    everything = splits(task("sst2"), Selection(min_words=5), 0, tmp_path)
    assert len(everything.train) == 32
    assert all(len(r.texts["text"].split()) >= 5 for r in (*everything.train, *everything.dev))
    with pytest.raises(ValueError, match="min_words must leave"):
        splits(task("sst2"), Selection(min_words=99), 0, tmp_path)


def test_a_shortened_dev_set_has_all_classes_alike(tmp_path: Path) -> None:
    """400 and 100 records, 50 of each for dev, 40 of them kept: 10 to 30 of a class in each of ten shuffles."""
    (tmp_path / "sst5_train.txt").write_text("".join(f"{int(i % 5 == 0)} film {i}\n" for i in range(500)))
    (tmp_path / "sst5_test.txt").write_text("0 film\n")
    for seed in range(10):
        found = splits(task("sst5"), Selection(per_class=50, dev=40), seed, tmp_path)
        assert 10 <= Counter(r.label for r in found.dev)[1] <= 30


@real
def test_counts_of_the_real_files() -> None:
    assert len(splits(task("sst2"), Selection(min_words=6), 0, DATA).train) == 34_821
    few = {name: splits(task(name), Selection(per_class=512), 42, DATA) for name in ("sst2", "sst5", "rte", "trec")}
    assert {name: len(s.train) for name, s in few.items()} == {"sst2": 1024, "sst5": 2560, "rte": 1024, "trec": 2638}
    assert {name: len(s.test) for name, s in few.items()} == {"sst2": 872, "sst5": 1000, "rte": 277, "trec": 500}
