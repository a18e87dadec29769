from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from benchmarks.llm.models import LanguageModel, random_model
from benchmarks.pretrain import text
from benchmarks.pretrain.models import FAMILIES, config
from benchmarks.training import adaptation
from benchmarks.training.adaptation import Case, Questions, chosen, grid, one_run

SENTENCES = [
    f"who {verb} the {thing} ?" for verb in ("made", "saw", "was") for thing in ("film", "war", "moon", "king")
]


@pytest.fixture(scope="module")
def parts() -> Any:
    return SENTENCES * 2, SENTENCES[:6], SENTENCES[6:]


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize(("method", "epsilon"), [method for method in adaptation.METHODS if method[1] != 2.0])
def test_every_method_adapts_every_family(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, parts: Any, family: str, method: str, epsilon: float
) -> None:
    monkeypatch.setattr(text, "questions", lambda data: parts)
    for name, value in {"STEPS": 2, "BATCH": 8, "EVERY": 1}.items():
        monkeypatch.setattr(adaptation, name, value)
    words = text.tokenizer(family, tmp_path / "pairs.json", SENTENCES)
    model = LanguageModel(random_model(config(family, 16), FAMILIES[family], seed=0), words, FAMILIES[family])
    before = {name: value.clone() for name, value in model.module.state_dict().items()}
    case = Case(family, 16, method, epsilon)
    largest = list(grid(case))[-1]
    rows = one_run(Questions(None, model, family), case, largest, tmp_path / "runs")
    assert [row["step"] for row in rows] == [0, 1, 2]
    # Two of the perplexities may have the same last bit by chance.
    assert len({row["dev_perplexity"] for row in rows}) > 1
    assert rows[2]["test_perplexity"] > 1
    assert ("noise_multiplier" in rows[2]) == (epsilon > 0)
    assert all(value.equal(before[name]) for name, value in model.module.state_dict().items())


def test_a_resumed_run_has_the_evaluations_that_it_made_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, parts: Any
) -> None:
    """A resumed run has the evaluations that it made before, and each evaluation is made once.

    It is interrupted before and after the evaluation that follows step 2, and must end as if it had not been.
    """
    monkeypatch.setattr(text, "questions", lambda data: parts)
    for name, value in {"STEPS": 4, "BATCH": 8, "EVERY": 1}.items():
        monkeypatch.setattr(adaptation, name, value)
    words = text.tokenizer("opt", tmp_path / "pairs.json", SENTENCES)
    work = Questions(None, LanguageModel(random_model(config("opt", 16), "causal", seed=0), words, "causal"), "opt")
    case = Case("opt", 16, "mezo", 0.0)
    settings, perplexity, calls = next(grid(case)), text.perplexity, []

    def interrupted(module: Any, scorer: Any, examples: Any) -> float:
        calls.append(len(calls))
        if len(calls) in (4, 6):  # Two evaluations are made at the start, and one after each step
            raise KeyboardInterrupt
        return perplexity(module, scorer, examples)

    monkeypatch.setattr(text, "perplexity", interrupted)
    for _ in range(2):
        with pytest.raises(KeyboardInterrupt):
            one_run(work, case, settings, tmp_path / "cut")
    cut = one_run(work, case, settings, tmp_path / "cut")
    monkeypatch.setattr(text, "perplexity", perplexity)
    whole = one_run(work, case, settings, tmp_path / "whole")
    assert [row["step"] for row in cut] == [0, 1, 2, 3, 4]
    early = [[{**row, "seconds": 0} for row in rows[:3]] for rows in (cut, whole)]
    assert early[0] == early[1]  # Later batches differ, as in every resumed run
    assert len(calls) == 7 + 2


def rows_of(case: Case, dev: list[float], test: list[float]) -> pd.DataFrame:
    """Returns rows of runs with each setting of a case, with the start included.

    `dev` has the perplexity on the development set after the last step for each setting, and `test` the test
    perplexities of further runs with the second setting.
    """
    rows = []
    for c, value in zip(grid(case), dev, strict=True):
        key = adaptation._key(case, c) | {"steps": 100}
        rows.append({**key, "step": 0, "dev_perplexity": 9.0, "test_perplexity": 10.0})
        rows.append({**key, "step": 100, "dev_perplexity": value, "test_perplexity": 1.0})
    key = adaptation._key(case, list(grid(case))[1]) | {"steps": 100}
    rows += [{**key, "seed": s + 1, "step": 100, "test_perplexity": value} for s, value in enumerate(test)]
    return pd.DataFrame(rows)


def test_settings_are_chosen_on_dev_and_reported_on_test_with_other_seeds() -> None:
    case = Case("opt", 16, "mezo", 0.0)
    rows = rows_of(case, [3.0, 2.0, 4.0], [5.0, 7.0])
    assert chosen(rows, case).step_size == list(grid(case))[1].step_size
    line = adaptation.summary(rows)
    assert "10.0 ->      6.0 +- 1.0 (2 seeds), step size 0.008" in line


def test_a_setting_that_is_chosen_no_longer_is_not_shown() -> None:
    """A setting that is no longer the chosen one is not shown.

    A smaller step size was tried later, and its runs are reported apart from those of the setting chosen before.
    """
    case = Case("opt", 16, "mezo", 0.0)
    rows = rows_of(case, [3.0, 2.0, 4.0], [5.0, 7.0])
    rows.loc[(rows["seed"] == 0) & (rows["step"] == 100) & (rows["step_size"] == 1.6e-2), "dev_perplexity"] = 1.5
    later = rows[rows["seed"] > 0].assign(step_size=1.6e-2, test_perplexity=[3.0, 3.5])
    both = pd.concat([rows, later], ignore_index=True)
    assert set(adaptation.reported(both)["step_size"]) == {1.6e-2}
    assert "(2 seeds), step size 0.016" in adaptation.summary(both)
    assert adaptation.reported(rows[rows["step_size"] != 4e-3]).empty


def test_nothing_is_chosen_among_settings_that_were_not_all_run() -> None:
    case = Case("opt", 64, "dpzero", 6.0)
    rows = rows_of(case, [3.0, 2.0, 4.0], [])
    with pytest.raises(ValueError, match="rows must hold every setting"):
        chosen(rows[rows["step_size"] != 8e-3], case)
