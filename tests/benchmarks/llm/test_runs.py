"""Records and splits; every task and method end to end on tiny models; what a run states about itself; resumption."""

import json
import math
import os
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks.kit.rows import Results, read_rows
from benchmarks.llm import __main__ as command
from benchmarks.llm import zeroth_order
from benchmarks.llm.configuration import FIRST_ORDER, METHODS, PRIVATE, Configuration
from benchmarks.llm.records import Record, Selection, load, splits
from benchmarks.llm.runs import FIELDS, KEY, evaluation_steps, execute
from benchmarks.llm.tasks import names, task
from tests.benchmarks.llm.test_scoring import PAIRS
from tests.benchmarks.llm.tiny import tiny, tokenizer, write_files

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


SMALL: dict[str, Any] = {
    "steps": 2, "batch": 12, "sampling": "full", "per_class": None, "total": 12, "dev": 6, "test": 6,
    "step_size": 1e-3, "clip": 1.0,
}  # fmt: skip
"""Full batches: their accounting is a closed form and takes no time."""


def test_a_random_model_is_known_by_its_configuration(tmp_path: Path) -> None:
    """Rows and runs of two configurations are apart, and apart from those of pretrained weights."""
    data = write_files(task("sst2"), tmp_path)
    words = [f"--{name.replace('_', '-')}={value}" for name, value in SMALL.items() if value is not None]
    shared = [*words, "--task=sst2", "--method=mezo", "--weights=biases", "--device=cpu", f"--data={data}"]
    for name in ("one", "two"):
        folder = tmp_path / name
        config = tiny("encoder").module.config
        config.save_pretrained(folder)
        tokenizer("encoder").save_pretrained(folder)
        assert (
            command.EXPERIMENT.main([*shared, "--init=random", f"--config={folder}", f"--out={tmp_path / 'out'}"]) == 0
        )
    rows = read_rows(tmp_path / "out")
    assert set(rows["model"]) == {f"random:{tmp_path / name}" for name in ("one", "two")}
    assert len(rows) == 6  # before, and after each of two steps


def configuration(**changes: Any) -> Configuration:
    return Configuration(**{**SMALL, "model": "tiny", **changes})


@pytest.mark.parametrize(("name", "kind"), PAIRS)
def test_every_task_runs_with_every_kind_of_model(name: str, kind: str, tmp_path: Path) -> None:
    data = write_files(task(name), tmp_path)
    outcome = execute(
        configuration(task=name, kind=kind, epsilon=100.0), tiny(kind), folder=tmp_path / "runs", data=data
    )
    (row,) = outcome.rows
    assert 0 <= row["dev_metric"] <= 1
    assert 0 <= row["test_metric"] <= 1
    assert math.isfinite(row["dev_loss"] + row["test_loss"])
    assert row["n"] == 12


@pytest.mark.parametrize("kind", ["masked", "causal", "encoder"])
@pytest.mark.parametrize("method", METHODS)
def test_every_method_makes_a_row_and_leaves_the_model_alone(method: str, kind: str, tmp_path: Path) -> None:
    data = write_files(task("sst2"), tmp_path)
    model = tiny(kind)
    before = {name: value.clone() for name, value in model.module.state_dict().items()}
    c = configuration(task="sst2", kind=kind, method=method, epsilon=50.0, weights="biases")
    outcome = execute(c, model, folder=tmp_path / "runs", data=data)
    assert all(torch.equal(value, before[name]) for name, value in model.module.state_dict().items())
    assert (outcome.privacy is not None) == (method in PRIVATE)
    if outcome.privacy is not None:
        p = outcome.privacy
        assert p.lower <= p.epsilon <= 50.0
        assert (p.n, p.batch, p.steps, p.relation, p.sampling) == (12, 12, 2, "add-remove", "full")
        text = "\n".join(p.lines())
        for stated in ("epsilon = ", "between", "delta = 1e-05", "add-remove", "n = 12", "full", "2 releases"):
            assert stated in text
    with Results(tmp_path / "out", key=KEY, fields=FIELDS, seeds=[0], device="cpu", dtype="float32") as results:
        results.add(outcome.rows)
        assert results.done(**{name: outcome.rows[0][name] for name in KEY})


@pytest.mark.parametrize("method", ["dpzero", "dpgd-0th"])
def test_a_run_that_stops_resumes_and_spends_its_releases_once(
    method: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(zeroth_order, "EVERY", 2)
    data = write_files(task("sst2"), tmp_path)
    c = configuration(method=method, steps=6, epsilon=50.0)

    def stop(line: str) -> None:
        raise KeyboardInterrupt

    common = {"folder": tmp_path / "runs", "data": data, "evaluations": 3}
    with pytest.raises(KeyboardInterrupt):
        execute(c, tiny("encoder"), announce=stop, **common)  # type: ignore[arg-type]
    outcome = execute(c, tiny("encoder"), **common)  # type: ignore[arg-type]
    assert [row["step"] for row in outcome.rows] == [2, 4, 6]  # step 2 was made and its evaluation interrupted
    assert outcome.privacy is not None
    assert outcome.privacy.steps == 6
    again = execute(c, tiny("encoder"), **common)  # type: ignore[arg-type]
    assert again.rows[-1]["dev_loss"] == outcome.rows[-1]["dev_loss"]
    assert again.privacy == outcome.privacy


def test_memorising_needs_privacy_budget(tmp_path: Path) -> None:
    """DPZero learns a toy task at epsilon = 1e4; at 1e-3 steps short enough to survive the noise teach nothing. The
    first-order methods learn it too."""
    data = write_files(task("sst2"), tmp_path)
    (start,) = execute(configuration(method="zero-shot"), tiny("encoder", seed=1), folder=tmp_path, data=data).rows
    change = {}
    for epsilon, step_size in ((1e4, 5e-3), (1e-3, 1e-9)):
        c = configuration(
            epsilon=epsilon, steps=100, directions_per_step=4, direction="rademacher", weights="head",
            step_size=step_size, clip=20.0,
        )  # fmt: skip
        (row,) = execute(c, tiny("encoder", seed=1), folder=tmp_path / str(epsilon), data=data).rows
        change[epsilon] = row["dev_loss"] / start["dev_loss"]
    assert change[1e4] < 0.85
    assert abs(change[1e-3] - 1) < 0.05
    for method in FIRST_ORDER:
        c = configuration(method=method, epsilon=1e4, steps=25, step_size=0.01, clip=10.0, weights="head")
        (row,) = execute(c, tiny("encoder", seed=1), folder=tmp_path, data=data).rows
        assert row["dev_loss"] < 0.9 * start["dev_loss"], method


def test_unused_settings_do_not_tell_rows_apart() -> None:
    assert configuration(method="mezo", epsilon=2.0).key() == configuration(method="mezo", epsilon=6.0).key()
    assert configuration(method="dpzero", epsilon=2.0).key() != configuration(method="dpzero", epsilon=6.0).key()
    assert configuration(method="adamw", smoothing=1.0).key() == configuration(method="adamw").key()
    assert configuration(method="dpgd-0th").directions_kind == "sphere"
    assert evaluation_steps(10, 3) == {3, 7, 10}
    assert evaluation_steps(7, 1) == {7}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"epsilon": 0}, "epsilon must be"),
        ({"method": "sgd"}, "method must be one of"),
        ({"task": "imdb"}, "task must be one of"),
        ({"per_class": 3}, "per_class must be absent"),
        ({"steps": 2.5}, "steps must be an integer"),
        ({"direction": "north"}, "direction must be one of"),
    ],
)
def test_a_configuration_is_checked(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        configuration(**changes)


def test_the_command_states_accuracy_and_privacy(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(command, "load", lambda *_, **__: tiny("encoder"))
    data = write_files(task("sst2"), tmp_path)
    numbers = {"total": 8, "batch": 8, "steps": 2, "dev": 4, "test": 4, "epsilon": 3}
    arguments = ["--sampling", "full", *(f"--{name}={value}" for name, value in numbers.items())]
    command.EXPERIMENT.main([*arguments, "--data", str(data), "--out", str(tmp_path / "runs")])
    printed = capsys.readouterr().out
    for part in ("test accuracy", "n = 8 training records", "epsilon = 3", "add-remove"):
        assert part in printed
    command.EXPERIMENT.main([*arguments, "--method", "adamw", "--data", str(data), "--out", str(tmp_path / "runs")])
    assert "not private" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--epsilon", "0"], "--epsilon must be"),
        (["--data", "nowhere"], "--data must be a folder that can be read"),
        (["--data", "."], "--data must be a folder that holds sst2_train.tsv"),
        (["--method", "sgd"], "--method"),
        (["--per-class", "2", "--total", "3"], "--total must not be given with --per-class"),
        (["--per-class", "2", "--steps", "0"], "--steps must be"),
    ],
)
def test_bad_input_is_one_line(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(command, "load", lambda *_, **__: tiny("encoder"))
    with pytest.raises(SystemExit) as stopped:
        command.EXPERIMENT.main(arguments)
    assert stopped.value.code == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1
