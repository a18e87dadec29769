import sys
from pathlib import Path

import numpy as np
import pytest

from benchmarks.zoo.table import records
from dpzero_theory.audit.spec import Spec, load

TEXT = """
train = "zoo_loop:run"
records = "records.npy"
[claim]
epsilon = 2.2
delta = 1e-5
relation = "add-remove"
sampling = "poisson"
n = 48
batch = 12
steps = 12
noise_multiplier = 2.0
clip = 1.0
[view]
seed = "secret"
hidden = ["weights"]
[settings]
step_size = 0.1
[variations.four]
micro_batches = 4
"""
MODULE = """
from benchmarks.zoo.table import LOOPS, claim, records
from dpzero_theory.audit.spec import Spec
run = LOOPS["sound-first-order"].train()
def spec():
    return Spec(run, records(), claim(), settings={"step_size": 0.1})
def wrong():
    return 3
def fails():
    raise RuntimeError("no")
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "zoo_loop.py").write_text(MODULE)
    (tmp_path / "spec.toml").write_text(TEXT)
    np.save(tmp_path / "records.npy", records())
    monkeypatch.delitem(sys.modules, "zoo_loop", raising=False)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_a_file(folder: Path) -> None:
    spec = load(str(folder / "spec.toml"))
    assert spec.claim.batch == 12
    assert spec.view.hidden == ("weights",)
    assert spec.variations == {"four": {"micro_batches": 4}}
    report = spec.audit(checks=("accounting", "steps"), runs=24)
    assert report.violations == []
    assert str(folder) not in sys.path


def test_a_function(folder: Path) -> None:
    assert isinstance(load("zoo_loop:spec"), Spec)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('train = "zoo_loop:run"', "", "train must be MODULE:FUNCTION"),
        ('train = "zoo_loop:run"', "command = []", "spec must be one of"),
        ("zoo_loop:run", "zoo_loop:walk", "train must be MODULE:FUNCTION"),
        ("zoo_loop:run", "zoo loop:run", "train must be MODULE:FUNCTION"),
        ('records = "records.npy"', "", "records must be"),
        ("records.npy", "none.npy", "records must be a file of numpy.save"),
        ("records.npy", "zoo_loop:fails", "records must be a function without arguments"),
        ("epsilon = 2.2", "epsilon = nan", "epsilon must be"),
        ("epsilon = 2.2", "eps = 2.2", "claim must have the fields"),
        ("clip = 1.0", "", "claim must have the fields"),
        ('seed = "secret"', 'seed = "none"', "seed must be one of"),
        ("[settings]", "[setting]", "spec must be one of"),
        ("[settings]\nstep_size = 0.1", "", "n = 47"),
    ],
)
def test_bad_files(folder: Path, old: str, new: str, message: str) -> None:
    text = TEXT.replace(old, new)
    if message == "n = 47":
        text, message = text.replace("n = 48", "n = 47"), "records must be the claim's n = 47"
    (folder / "spec.toml").write_text(text)
    with pytest.raises(ValueError, match=message) as raised:
        load("spec.toml").audit(runs=24)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize("text", ["", "zoo_loop", "zoo_loop:wrong", "zoo_loop:fails", "none.toml", "no.such:thing"])
def test_bad_words(folder: Path, text: str) -> None:
    with pytest.raises(ValueError, match="spec must be"):
        load(text)
