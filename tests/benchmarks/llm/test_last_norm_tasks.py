"""All methods on a pretrained language model, task by task, on a tiny model in its place."""

from pathlib import Path

import pandas as pd
import pytest
import torch

pytest.importorskip("transformers", reason="the hf extra is not installed")

from benchmarks.kit.rows import read_rows
from benchmarks.llm import last_norm, last_norm_tasks, settings
from tests.benchmarks.llm.test_last_norm import model

TYPES = ("DESC", "ENTY", "ABBR", "HUM", "LOC", "NUM")


@pytest.fixture
def small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The experiment in small on TREC, and a folder of questions whose type is told by one letter."""
    found = model()
    monkeypatch.setattr(last_norm, "load", lambda name, **_: found)
    monkeypatch.setattr(settings, "pretrained_folder", lambda name: tmp_path)
    monkeypatch.setattr(last_norm_tasks, "cache", lambda: tmp_path / "cache")
    monkeypatch.setattr(last_norm, "DIRECTIONS", 4)
    monkeypatch.setattr(last_norm_tasks, "STEPS", 3)
    monkeypatch.setattr(last_norm_tasks, "RATES", (0.01,))
    monkeypatch.setattr(last_norm_tasks, "SCALES", {"dpzero": (0.0, 0.1), "mezo": (0.1,), "dpgd-0th": (0.01,)})
    monkeypatch.setattr(last_norm_tasks, "SIZES", {"trec": last_norm_tasks.Size(24, 10, 10, 30)})
    prompts = {"trec": {"paper": last_norm_tasks.PROMPTS["trec"]["paper"]}}
    monkeypatch.setattr(last_norm_tasks, "PROMPTS", prompts)
    lines = [f"{TYPES[i % 6]}:x {'abcdef'[i % 6]} it is {i} ?" for i in range(600)]
    (tmp_path / "trec_train.label").write_text("\n".join(lines) + "\n", encoding="latin-1")
    return tmp_path


def test_every_method_has_its_rows(small: Path, tmp_path: Path) -> None:
    out = tmp_path / "rows"
    assert (
        last_norm_tasks.EXPERIMENT.main(
            [f"--data={small}", "--tasks=trec", "--prompts=paper", "--seeds=1", f"--out={out}"]
        )
        == 0
    )
    rows = read_rows(out)
    chosen = rows[rows["setting"].astype(str) == last_norm.CHOSEN]
    assert sorted(zip(chosen["method"], chosen["epsilon"].astype(str), strict=True)) == sorted(last_norm_tasks.METHODS)
    private = chosen[chosen["epsilon"].astype(str) != "none"]
    assert set(private["method"]) == {"dpzero", "dp-adamw", "dpgd-0th"}
    assert (private["epsilon_upper"] <= private["epsilon"].astype(float)).all()
    assert (private["epsilon_upper"] > 0.9 * private["epsilon"].astype(float)).all()
    assert chosen[chosen["method"] != "few-shot"]["test_loss"].nunique() >= 6
    number = settings.best(rows, task="trec", prompt="paper", method="dpzero")
    assert (chosen[chosen["method"] == "dpzero"]["scale"] == (0.0, 0.1)[number]).all()


def test_the_examples_stand_before_every_prompt_with_their_answers(small: Path) -> None:
    """The loss of a test record is that of the whole model on the text with six answered questions before it."""
    work = last_norm_tasks.prepared("trec", "paper", small, examples=True)
    records, whole = last_norm_tasks.texts("trec", small), vars(last_norm)["load"]("smollm2")
    first = {record.label: record for record in reversed(records["train"])}
    ids: list[int] = []
    for label in range(6):
        question = whole.tokenizer(f"{first[label].texts['text']} Type:")["input_ids"]
        ids += [*question, work.options[label], *whole.tokenizer("\n\n", add_special_tokens=False)["input_ids"]]
    ids += whole.tokenizer(f"{records['test'][0].texts['text']} Type:")["input_ids"]
    with torch.no_grad():
        scores = whole.module(torch.tensor([ids])).logits[0, -1, list(work.options)]
    expected = torch.nn.functional.cross_entropy(scores[None], torch.tensor([records["test"][0].label]))
    states = work.parts["test"]
    found = torch.as_tensor(work.losses(work.tail, states[torch.arange(1)]))
    assert float(found.detach()) == pytest.approx(float(expected), rel=1e-5)


def test_each_records_gradient_is_its_own(small: Path) -> None:
    work = last_norm_tasks.prepared("trec", "paper", small)
    batch = work.parts["train"][torch.arange(5)]
    (gain,) = (p for p in work.tail.parameters() if p.requires_grad)
    losses = torch.as_tensor(work.losses(work.tail, batch)).unbind()
    rows = [torch.autograd.grad(loss, gain, retain_graph=True)[0] for loss in losses]
    torch.testing.assert_close(last_norm.gradients(work, batch), torch.stack(rows), rtol=1e-4, atol=1e-6)
    halved = {name: value.bfloat16() if value.is_floating_point() else value for name, value in batch.items()}
    assert last_norm.gradients(work, halved).dtype == torch.float32


def test_the_order_is_told_with_intervals() -> None:
    accuracies = {"zero-shot": (0.5,), "dpzero": (0.6, 0.62), "mezo": (0.4, 0.42), "adamw": (0.8, 0.8)}
    rows = pd.DataFrame([
        {"task": "trec", "prompt": "paper", "method": method, "epsilon": epsilon, "setting": "chosen", "seed": seed,
         "test_accuracy": accuracy}
        for method, values in accuracies.items() for epsilon in (("2", "6") if method == "dpzero" else ("none",))
        for seed, accuracy in enumerate(values)
    ])  # fmt: skip
    assert "| DPZero (2) | 61.0 +- 12.7 |" in last_norm_tasks.table(rows)
    told = last_norm_tasks.order(rows)
    assert "| +11.0 +- 12.7, open | +0.0 +- 18.0, open | -20.0 +- 18.0, fails | +39.0 +- 12.7, holds |" in told
    ends = rows.assign(n=last_norm.LARGE, step=600)
    early = ends.assign(step=0, test_accuracy=0.1)
    assert last_norm_tasks.order(last_norm_tasks.sst2(pd.concat([early, ends]))) == told.replace("TREC", "SST-2")
