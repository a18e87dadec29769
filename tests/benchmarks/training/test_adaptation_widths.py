import math
from pathlib import Path

import pandas as pd
import pytest
import torch

from benchmarks.kit.rows import RESULTS, read_rows
from benchmarks.llm.models import random_model
from benchmarks.pretrain import text
from benchmarks.pretrain.models import config, folder_of
from benchmarks.training import adaptation, adaptation_widths
from benchmarks.training.adaptation import Case, grid
from benchmarks.training.adaptation_widths import measured, steps_to_target, summary, table
from dpzero_theory.curvature.spectrum import Effort


def test_the_step_of_the_target_is_between_evaluations() -> None:
    assert steps_to_target([0, 10, 20], [5.0, 4.9, 4.7], drop=0.2) == pytest.approx(15)
    assert steps_to_target([0, 10], [5.0, 4.8], drop=0.2) == pytest.approx(10)
    assert math.isnan(steps_to_target([0, 10], [5.0, 4.9], drop=0.2))


def test_steps_that_grow_like_the_root_of_d_have_slope_one_half() -> None:
    """Where the number of steps to a given loss grows like sqrt(d), the fitted slope is one half.

    The losses fall linearly, at a rate like d^(-1/2), and those of settings that are not chosen fall more slowly.
    """
    rows = []
    for case in adaptation.PRESETS["widths"]:
        d = case.width**2
        for c, slower in zip(grid(case), (2, 1, 3, 4), strict=False):
            for seed in (0, 1, 2) if slower == 1 else (0,):
                for step in range(0, 101, 5):
                    value = math.exp(6 - 0.4 * step / math.sqrt(d) * (1 + 0.01 * seed) / slower)
                    key = {**adaptation._key(case, c), "seed": seed, "step": step, "steps": 100, "d": d}
                    rows.append({**key, "dev_perplexity": value})
    runs = table(pd.DataFrame(rows))
    assert len(runs) == 8
    for _, run in runs.iterrows():
        expected = adaptation_widths.DROP / 0.4 * math.sqrt(run["d"]) / (1 + 0.01 * run["seed"])
        assert run["steps"] == pytest.approx(expected, rel=1e-6)
    widths = sorted(set(runs["width"]))
    ranks = pd.DataFrame({"width": widths, "d": [w**2 for w in widths], "rank_estimate": [float(w) for w in widths]})
    ranks["rank_low"] = ranks["rank_high"] = ranks["rank_estimate"]
    lines = summary(runs, ranks).splitlines()
    assert lines[-3].startswith("slope of log steps against log d: 0.50 (0.50 to 0.50)")
    assert lines[-2].startswith("slope of log steps against log r: 1.00")
    assert lines[-1] == "slope of log r against log d: 0.50"


@pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated:DeprecationWarning")
def test_the_mean_loss_of_questions_of_one_length_is_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The loss whose curvature is measured is transformers' own mean loss of questions of one length.

    The spectrum is that of `curvature.spectrum`, which has its own tests.
    """
    monkeypatch.setattr(text, "VOCABULARY", 300)
    words = text.tokenizer("opt", tmp_path / "pairs.json", ["ab cd"])
    shape = config("opt", 16)
    shape.vocab_size, shape.num_hidden_layers, shape.ffn_dim, shape.max_position_embeddings = 300, 1, 4, 24
    module = random_model(shape, "causal", seed=0)
    module.save_pretrained(folder_of(tmp_path, "opt", 16))
    words.save_pretrained(folder_of(tmp_path, "opt", 16))
    questions = ["efg", *("efghijklmnopqrstuvwxyz"[k : k + 17] for k in range(5))]
    monkeypatch.setattr(adaptation_widths, "SAMPLES", 3)
    monkeypatch.setattr(adaptation_widths, "EFFORT", Effort(search=6, probes=2, steps=3))
    row = measured(tmp_path, "opt", 16, questions)
    ids = torch.tensor([example.ids for example in text.examples(questions[1:4], words, "opt")])
    assert ids.shape == (3, 18)
    with torch.no_grad():
        assert row["loss"] == pytest.approx(float(module(input_ids=ids, labels=ids).loss), rel=1e-5)
    assert row["d"] == sum(p.numel() for p in module.parameters())
    assert 1 <= row["rank_low"] <= row["rank_estimate"] <= row["rank_high"] <= row["d"]
    assert row["absolute_trace_estimate"] == pytest.approx(row["rank_estimate"] * row["norm_estimate"], rel=0.2)


def test_a_case_that_was_not_run_is_left_out() -> None:
    case = Case("opt", 999, "dpzero", 6.0)
    rows = pd.DataFrame([{**adaptation._key(case, next(grid(case))), "step": 0, "steps": 100, "d": 1}])
    assert table(rows.assign(dev_perplexity=9.0)).empty


def test_the_numbers_in_words_on_the_page_are_those_of_the_rows() -> None:
    page = " ".join((RESULTS.parents[1] / "docs" / "results" / "small-models.md").read_text().split())
    notes = " ".join((RESULTS / "adaptation" / "NOTES.md").read_text().split())
    ranks, rows, made = (read_rows(RESULTS / name) for name in ("adaptation_widths", "adaptation", "pretrain"))
    assert f"with {ranks['d'].max() / ranks['d'].min():.1f} times the weights" in page
    started = rows[(rows["family"] == "opt") & (rows["step"] == 0)].groupby("width")["test_perplexity"].first()
    reviews = made[made["family"] == "opt"].set_index("width").sort_index()["own_perplexity"]
    for values in (started, reviews):
        *most, last = (f"{value:.0f}" for value in values)
        assert f"{', '.join(most)} and {last}" in notes
    tried = rows[(rows["family"] == "roberta") & (rows["method"] == "dpzero") & (rows["epsilon"] == 6)]
    ends = tried[(tried["seed"] == 0) & (tried["step"] == tried["steps"])]["dev_perplexity"].sort_values()
    assert f"three were within {ends.iloc[2] / ends.iloc[0] - 1:.1%} of one another" in notes
