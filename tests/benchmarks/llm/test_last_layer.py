"""The last layer tuned by all methods, on a tiny model in place of the pretrained one."""

from pathlib import Path

import pytest
import torch

pytest.importorskip("transformers", reason="the hf extra is not installed")
pytest.importorskip("opacus", reason="the dev extra is not installed")

from benchmarks.kit.rows import read_rows
from benchmarks.llm import last_layer, only_d, settings
from benchmarks.llm.last_norm import Prepared
from tests.benchmarks.llm.test_last_norm import model

KINDS = (last_layer.NORM, last_layer.ADAPTERS, last_layer.LAYER)


@pytest.fixture
def small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The experiment in small, and a folder of data whose sign is told by one word."""
    found = model()
    monkeypatch.setattr(last_layer, "load", lambda name: found)
    monkeypatch.setattr(settings, "pretrained_folder", lambda name: tmp_path)
    monkeypatch.setattr(only_d, "cache", lambda: tmp_path / "cache")
    sizes = {
        "dpzero": last_layer.Size(3, 8),
        "adamw": last_layer.Size(2, 8),
        "dp-adamw": last_layer.Size(2, 8),
    }
    tasks = {"sst2": last_layer.Sizes(24, 8, 10, 20, 24)}
    for name, value in {"TASKS": tasks, "SIZES": sizes,
                        "DIRECTIONS": dict.fromkeys(KINDS, 2)}.items():  # fmt: skip
        monkeypatch.setattr(last_layer, name, value)
    for part in ("train", "test"):
        lines = [f"a {'fine' if i % 2 else 'bad'} film {chr(97 + i % 26)}{i} \t{i % 2}" for i in range(90)]
        (tmp_path / f"sst2_{part}.tsv").write_text("sentence\tlabel\n" + "\n".join(lines) + "\n")
    return tmp_path


@pytest.fixture
def work(small: Path) -> last_layer.Records:
    return last_layer.Records(small, "sst2")


def _moved(work: last_layer.Records, name: str) -> Prepared:
    """The model's last layers with other weights than at the start, so that the adapters' factor B is not 0."""
    run = last_layer.started(work, last_layer.TRAINED[name], "dp-adamw")
    torch.manual_seed(0)
    with torch.no_grad():
        for weight in run.tail.parameters():
            if weight.requires_grad:
                weight.add_(0.1 * torch.randn_like(weight))
    return run


@pytest.mark.parametrize("name", KINDS)
def test_the_clipped_sum_is_that_of_one_record_at_a_time(work: last_layer.Records, name: str) -> None:
    run = _moved(work, name)
    weights = [p for p in run.tail.parameters() if p.requires_grad]
    batch = run.parts["train"][torch.arange(7)]
    rows = []
    for index in range(7):
        loss = torch.as_tensor(run.losses(run.tail, {key: value[index : index + 1] for key, value in batch.items()}))
        rows.append(torch.cat([g.flatten() for g in torch.autograd.grad(loss.sum(), weights)]))
    norms = torch.stack([row.norm() for row in rows])
    clip = float(norms.median())
    assert norms.min() < clip < norms.max()
    expected = sum(row * min(1.0, clip / float(row.norm())) for row in rows)
    found = torch.cat([g.flatten() for g in last_layer.clipped(run, batch, clip)])
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)


def test_the_accuracy_is_the_whole_models(work: last_layer.Records, small: Path) -> None:
    run = last_layer.started(work, last_layer.TRAINED[last_layer.ADAPTERS], "dpzero")
    whole, right = model(), []
    for record in work._texts["test"]:
        count = int((record["labels"] >= 0).nonzero()[0])
        with torch.no_grad():
            scores = whole.module(record["input_ids"][None, :count]).logits[0, -1, list(work.options)]
        right.append(work.options[int(scores.argmax())] == int(record["labels"][count]))
    accuracy, _ = last_layer.evaluated(run, "test")
    assert accuracy == pytest.approx(sum(right) / len(right))
    assert len(right) == 10


@pytest.mark.filterwarnings("ignore")
def test_every_run_has_its_row_and_no_run_spends_more_than_its_epsilon(small: Path, tmp_path: Path) -> None:
    out = tmp_path / "rows"
    command = [f"--data={small}", "--seeds=2", f"--out={out}", "--epsilons", "2", "6", "--tasks", "sst2"]
    assert last_layer.EXPERIMENT.main(command) == 0
    rows = read_rows(out).astype({"setting": str, "epsilon": str})
    assert len(rows) == 1 + 3 * ((2 + 4) + (2 + 2) + (2 + 4))
    private = rows[rows["epsilon"] != "none"]
    assert (private["epsilon_upper"] <= private["epsilon"].astype(float)).all()
    assert (private["epsilon_upper"] > 0.9 * private["epsilon"].astype(float)).all()
    for name in KINDS:
        mine = rows[(rows["trained"] == name) & (rows["method"] == "dp-adamw")]
        number = settings.best(rows, trained=name, method="dp-adamw")
        chosen = mine[mine["setting"] == settings.CHOSEN]
        assert (chosen["scale"] == last_layer.RATES[name, "dp-adamw"][number]).all()
        assert mine["test_loss"].nunique() > 3
    told = last_layer.table(out)
    assert told.count("DP-AdamW") == 3
    assert "| zero-shot |" in told
