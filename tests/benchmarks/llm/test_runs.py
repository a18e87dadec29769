"""Every task and every method end to end on tiny models; what a run states about itself; resumption."""

import math
from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks.kit.rows import Results, read_rows
from benchmarks.llm import zeroth_order
from benchmarks.llm.__main__ import EXPERIMENT
from benchmarks.llm.configuration import FIRST_ORDER, METHODS, PRIVATE, Configuration
from benchmarks.llm.runs import FIELDS, KEY, evaluation_steps, execute
from benchmarks.llm.tasks import task
from tests.benchmarks.llm.files import write
from tests.benchmarks.llm.test_prompts import PAIRS
from tests.benchmarks.llm.tiny import tiny, tokenizer

SMALL: dict[str, Any] = {
    "steps": 2, "batch": 12, "sampling": "full", "per_class": None, "total": 12, "dev": 6, "test": 6,
    "step_size": 1e-3, "clip": 1.0,
}  # fmt: skip
"""Full batches: their accounting is a closed form and takes no time."""


def test_a_random_model_is_known_by_its_configuration(tmp_path: Path) -> None:
    """Rows and runs of two configurations are apart, and apart from those of pretrained weights."""
    data = write(task("sst2"), tmp_path)
    words = [f"--{name.replace('_', '-')}={value}" for name, value in SMALL.items() if value is not None]
    shared = [*words, "--task=sst2", "--method=mezo", "--weights=biases", "--device=cpu", f"--data={data}"]
    for name in ("one", "two"):
        folder = tmp_path / name
        config = tiny("encoder").module.config
        config.save_pretrained(folder)
        tokenizer("encoder").save_pretrained(folder)
        assert EXPERIMENT.main([*shared, "--init=random", f"--config={folder}", f"--out={tmp_path / 'out'}"]) == 0
    rows = read_rows(tmp_path / "out")
    assert set(rows["model"]) == {f"random:{tmp_path / name}" for name in ("one", "two")}
    assert len(rows) == 6  # before, and after each of two steps


def configuration(**changes: Any) -> Configuration:
    return Configuration(**{**SMALL, "model": "tiny", **changes})


@pytest.mark.parametrize(("name", "kind"), PAIRS)
def test_every_task_runs_with_every_kind_of_model(name: str, kind: str, tmp_path: Path) -> None:
    data = write(task(name), tmp_path)
    outcome = execute(
        configuration(task=name, kind=kind, epsilon=100.0), tiny(kind), folder=tmp_path / "runs", data=data
    )
    (row,) = outcome.rows
    assert 0 <= row["dev_metric"] <= 1
    assert 0 <= row["test_metric"] <= 1
    assert math.isfinite(row["dev_loss"] + row["test_loss"])
    assert row["n"] == 12
    assert outcome.metric == ("f1" if name in ("squad", "drop") else "accuracy")


@pytest.mark.parametrize("kind", ["masked", "causal", "encoder"])
@pytest.mark.parametrize("method", METHODS)
def test_every_method_makes_a_row_and_leaves_the_model_alone(method: str, kind: str, tmp_path: Path) -> None:
    data = write(task("sst2"), tmp_path)
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


@pytest.mark.parametrize("direction", ["gaussian", "sphere", "rademacher"])
def test_directions_and_their_number(direction: str, tmp_path: Path) -> None:
    data = write(task("sst2"), tmp_path)
    c = configuration(direction=direction, directions_per_step=3, epsilon=50.0)
    (row,) = execute(c, tiny("encoder"), folder=tmp_path / "runs", data=data).rows
    assert (row["direction"], row["directions"]) == (direction, 3)


def test_remembered_layers_change_no_run(tmp_path: Path) -> None:
    """A run with the frozen layers remembered and one without end at the same dev loss, up to rounding.

    Layers run on batches of other sizes in the two, so that some processors' kernels give other last bits, which a
    difference of losses enlarges. With a large step size they would be enlarged from step to step.
    """
    data = write(task("sst2"), tmp_path)
    model = tiny("encoder")
    c = configuration(weights="top-biases", method="mezo", step_size=1e-3, steps=5)
    (fast,) = execute(c, model, folder=tmp_path / "a", data=data).rows
    assert model.memory, "the frozen layers were remembered"
    plain = tiny("encoder")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("benchmarks.llm.runs.memoise", lambda *_: False)
        (slow,) = execute(c, plain, folder=tmp_path / "b", data=data).rows
    assert not plain.memory
    assert fast["dev_loss"] == pytest.approx(slow["dev_loss"], abs=1e-4)
    assert fast["d"] == slow["d"]


@pytest.mark.parametrize("method", ["dpzero", "dpgd-0th"])
def test_a_run_that_stops_resumes_and_spends_its_releases_once(
    method: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(zeroth_order, "EVERY", 2)
    data = write(task("sst2"), tmp_path)
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
    """DPZero learns a toy task at epsilon = 1e4; at 1e-3 steps short enough to survive the noise teach nothing."""
    data = write(task("sst2"), tmp_path)
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


def test_first_order_methods_learn_the_toy_task(tmp_path: Path) -> None:
    data = write(task("sst2"), tmp_path)
    (start,) = execute(configuration(method="zero-shot"), tiny("encoder", seed=1), folder=tmp_path, data=data).rows
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
