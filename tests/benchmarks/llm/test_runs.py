"""Every task and every method end to end on tiny models; what a run states about itself; resumption."""

import math
from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks.kit.rows import Results, read_rows
from benchmarks.llm import __main__ as command
from benchmarks.llm import zeroth_order
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
    data = write(task(name), tmp_path)
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
    """DPZero learns a toy task at epsilon = 1e4; at 1e-3 steps short enough to survive the noise teach nothing. The
    first-order methods learn it too."""
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
    data = write(task("sst2"), tmp_path)
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
