"""Exact match of generated names as what is trained, on a tiny model in place of the pretrained one."""

from pathlib import Path

import pytest
import torch

pytest.importorskip("transformers", reason="the hf extra is not installed")

from benchmarks.kit.rows import read_rows
from benchmarks.llm import chat, exact_match
from benchmarks.llm.generation import exact, generate, token_f1
from tests.benchmarks.llm.test_last_norm import model


@pytest.fixture
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of descriptions, two of each restaurant, and the experiment in small."""
    monkeypatch.setattr(exact_match, "load", lambda name, **_: model())
    monkeypatch.setattr(chat, "pretrained_folder", lambda name: tmp_path)
    monkeypatch.setattr(exact_match, "cache", lambda: tmp_path / "cache")
    small = {"SIZES": {"train": 16, "dev": 8, "test": 8}, "ANSWERED": 8, "STEPS": 3, "BATCH": 8, "DIRECTIONS": 2,
             "LIKELIEST": 2, "STEP_SIZES": dict.fromkeys(exact_match.SETTINGS, (1.0, 0.0)),
             "SETTINGS": dict.fromkeys(exact_match.SETTINGS, ((1.0, 1.0), (1.0, 0.0)))}  # fmt: skip
    for name, value in small.items():
        monkeypatch.setattr(exact_match, name, value)
    lines = [f'"name[{"fine" if i % 2 else "bad film"}], area[{chr(97 + i)}]",a {"fine" if i % 2 else "bad"} film {j}'
             for i in range(24) for j in range(2)]  # fmt: skip
    (tmp_path / chat.FILE).write_text("\n".join(["mr,ref", *lines]) + "\n")
    return tmp_path


def test_a_name_is_matched_where_the_model_generates_it(data: Path) -> None:
    """The gain of the last normalisation is made such that some answers are right: what is found on kept hidden states
    is what the whole model writes."""
    work = exact_match.prepared(data)
    module, count = work.model.module, work.model.module.config.vocab_size
    top = exact_match.Top(module, torch.arange(count))
    batch = work.parts["test"][torch.arange(len(work.asked))]
    torch.manual_seed(0)
    optimizer, right = torch.optim.Adam(top.parameters(), lr=0.5), []
    for _ in range(60):
        optimizer.zero_grad()
        exact_match.losses("cross-entropy")(top, batch).mean().backward()
        optimizer.step()
        with torch.no_grad():
            right.append(1 - exact_match.losses("exact-match")(top, batch))
        if 0 < right[-1].sum() < len(batch):
            break
    with torch.no_grad():
        module.model.norm.weight.copy_(top.gain)
    answers = generate(module, work.model.tokenizer, [example for example, _ in work.asked], 3, 10)
    found = [float(answer == name) for answer, (_, name) in zip(answers, work.asked, strict=True)]
    assert found == right[-1].tolist()


def test_losses_are_those_of_the_whole_models_chances(data: Path) -> None:
    work, whole = exact_match.prepared(data), model()
    top = exact_match.Top(work.model.module, work.tokens)
    batch = work.parts["test"][torch.arange(len(work.asked))]
    with torch.no_grad():
        found = {name: exact_match.losses(name)(top, batch).tolist() for name in exact_match.SETTINGS}
        for row, (example, name) in enumerate(work.asked):
            answer = whole.tokenizer(f" {name}\n")["input_ids"][:10]
            logits = whole.module(input_ids=torch.tensor([[*example.ids, *answer]])).logits[
                0, len(example.ids) - 1 : -1
            ]
            chances = [
                float(scores.double().exp()[token] / scores.double()[work.tokens].exp().sum())
                for scores, token in zip(logits, answer, strict=True)
            ]
            likeliest = [int(work.tokens[scores[work.tokens].argmax()]) for scores in logits]
            product = float(torch.tensor(chances, dtype=torch.float64).prod())
            assert found["exact-match"][row] == float(likeliest != answer)
            assert found["expected-exact-match"][row] == pytest.approx(1 - product, rel=1e-4)
            mean = -float(torch.tensor(chances, dtype=torch.float64).log().mean())
            assert found["cross-entropy"][row] == pytest.approx(mean, rel=1e-4)


def test_words_are_compared_as_squad_does() -> None:
    assert exact("the eagle.", ["Eagle"]) == 1
    assert exact("Eagle bar", ["Eagle", "bar eagle"]) == 0
    assert token_f1("Eagle bar", ["Eagle"]) == pytest.approx(2 / 3)


def test_every_loss_is_reported_at_its_best_setting(data: Path) -> None:
    out = data / "rows"
    assert exact_match.EXPERIMENT.main([f"--data={data}", "--seeds=1", f"--out={out}"]) == 0
    rows = read_rows(out).astype({"setting": str, "epsilon": str})
    assert len(rows) == 1 + 3 * (2 + 2 + 2 + 1)
    private = rows[rows["epsilon"].isin(["2", "8"])]
    assert (private["epsilon_upper"] <= private["epsilon"].astype(float)).all()
    for name in exact_match.SETTINGS:
        for kinds in (["2", "8"], ["not-private"]):
            own = rows[(rows["loss"] == name) & rows["epsilon"].isin(kinds)]
            best = own[own["seed"] == 0].sort_values(["dev_match", "setting"], ascending=[False, True])
            assert (own[own["seed"] == 1]["step_size"] == best["step_size"].iloc[0]).all()
    assert (rows["answered_f1"].dropna() >= rows["answered_match"].dropna()).all()
    assert exact_match.table(out).count("\n") == 10
