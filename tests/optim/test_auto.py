"""Tests of settings="auto": from public records and shapes alone, and repeated by the program that it prints."""

import re
import warnings
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from dpzero_theory.optim import auto
from dpzero_theory.optim import public as measured
from dpzero_theory.optim.plan import Plan
from dpzero_theory.optim.private import make_private_with_epsilon
from dpzero_theory.optim.weights.directions import Directions
from dpzero_theory.optim.weights.module import Weights

N, FEATURES = 400, 5
GOAL: dict[str, Any] = {"settings": "auto", "target_epsilon": 4.0, "target_delta": 1e-5}


def losses(module: nn.Module, batch: Any) -> Tensor:
    x, y = batch
    return nn.functional.cross_entropy(module(x), y, reduction="none")


def records(count: int, seed: int) -> TensorDataset:
    x = torch.randn(count, FEATURES, generator=torch.Generator().manual_seed(seed))
    return TensorDataset(x, (x[:, 0] > 0).long())


PRIVATE, PUBLIC = records(N, 0), records(60, 1)


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Short runs take 0.3 s, and the run that is chosen has 62 steps. Each look at the clock takes a millisecond, so
    that the machine decides nothing."""
    clock = count(0, 1e-3)
    for module in (auto, measured):
        monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=clock.__next__))
    monkeypatch.setattr(measured, "_PILOT", 0.3)
    monkeypatch.setattr(auto, "_LENGTHS", ((62, 4),))


def model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(FEATURES, 8), nn.Tanh(), nn.Linear(8, 2))


class Unread:
    """Private records of which each may be read `times`."""

    def __init__(self, times: int) -> None:
        self.left = times * N

    def __len__(self) -> int:
        return N

    def __getitem__(self, index: int) -> Any:
        self.left -= 1
        if self.left < 0:
            raise AssertionError("a private record was read")
        return PRIVATE[index]


@pytest.mark.parametrize("public", [PUBLIC, None])
def test_private_records_are_only_compared_before_the_choice_is_printed(
    public: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each is read once if there are public ones, and else none."""
    module = model()
    before = [weight.clone() for weight in module.parameters()]
    with pytest.raises(AssertionError, match="a private record was read"):
        make_private_with_epsilon(
            module, losses, Unread(public is not None), folder=tmp_path / "run", public_data=public, **GOAL
        )
    said = capsys.readouterr().err
    found, choosing = "without public records", ""
    if public:
        found = "from 60 public records"
        choosing = f"# choosing settings {found}\n"
    assert said.startswith(f"{choosing}# settings='auto', {found}")
    assert re.search(r" of 100 records, about [0-9.]+ s; ", said)
    assert re.search(r"GiB.*; the same again:\n", said)
    assert "step_size=lambda step: " in said
    assert not (tmp_path / "run").exists()
    assert all(torch.equal(old, new) for old, new in zip(before, module.parameters(), strict=True))


@pytest.mark.parametrize(("public", "steps"), [(PUBLIC, None), (None, None), (PUBLIC, 30)])
def test_the_printed_program_makes_the_same_run(
    public: Any, steps: int | None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    goal = GOAL if steps is None else {**GOAL, "steps": steps, "relation": "replace-one"}
    run = make_private_with_epsilon(model(), losses, PRIVATE, folder=tmp_path / "run", public_data=public, **goal)
    program = capsys.readouterr().err.replace(str(tmp_path / "run"), str(tmp_path / "again"))
    names = {"make_private_with_epsilon": make_private_with_epsilon, "losses": losses, "data": PRIVATE}
    given: dict[str, Any] = {**names, "model": model()}
    exec(program, given)
    again = given["run"]
    assert again.plan == run.plan
    assert again.plan.steps == (steps or 62)
    assert again.plan.relation == goal.get("relation", "add-remove")
    assert again._header.fingerprint == run._header.fingerprint
    first = run.plan.step_size(0)
    assert first > 0
    assert run.plan.step_size(run.plan.steps - 1) == pytest.approx(first / run.plan.steps)
    run.run(loss_at_start=0.7)
    run.close()
    again.close()
    if public is not None:
        correct = model()
        from dpzero_theory.optim.files.transcript import read

        read(tmp_path / "run").replayed(correct)
        x, y = records(500, 2).tensors
        assert float((correct(x).argmax(1) == y).float().mean()) > 0.85


def test_a_resumed_run_keeps_its_settings(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = make_private_with_epsilon(model(), losses, PRIVATE, folder=tmp_path / "run", public_data=PUBLIC, **GOAL)
    run.step()
    run.close()
    capsys.readouterr()
    for public in (None, PUBLIC):
        again = make_private_with_epsilon(
            model(), losses, PRIVATE, folder=tmp_path / "run", public_data=public, resume=True, **GOAL
        )
        assert again.plan == run.plan
        again.close()
    assert not capsys.readouterr().err


def test_it_is_said_where_short_runs_take_too_long(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for most, said in ((1e-9, True), (60.0, False)):
        monkeypatch.setattr(measured, "_CHOOSING", most)
        make_private_with_epsilon(model(), losses, PRIVATE, folder=tmp_path / str(most), public_data=PUBLIC, **GOAL)
        assert ("no time for short runs" in capsys.readouterr().err) is said


def test_a_run_says_whether_public_records_have_gained(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    wrong = TensorDataset(PRIVATE.tensors[0], 1 - PRIVATE.tensors[1])
    for data, worse in ((PRIVATE, False), (wrong, True)):
        run = make_private_with_epsilon(model(), losses, data, folder=tmp_path / str(worse), public_data=PUBLIC, **GOAL)
        assert run.public is not None
        assert run.public[1] == pytest.approx(run.public[0]())
        with warnings.catch_warnings(action="ignore"):
            run.run()
        run.close()
        told = capsys.readouterr().err
        assert ("so this run has made the model worse" in told) is worse
        assert "% of them" in told


def test_time_that_no_length_saves_does_not_shorten_a_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(auto, "_LENGTHS", ((1000, 16), (250, 4), (62, 4), (62, 16)))
    seen = SimpleNamespace(norm=1.0, seconds=1e-6, once=60.0)
    weights = Weights(model(), Directions(bytes(16), "low-rank"))
    settings = {"clip": 1.0, "smoothing": 0.01, "relation": "add-remove", "sampling": "poisson", **GOAL}
    settings = {**settings, "directions_per_step": 16, "difference": "forward", "direction": "low-rank"}
    given = {name: GOAL[name] for name in ("target_epsilon", "target_delta")}
    plan = auto._plan(400, {"expected_batch": 400, **settings}, steps=1000)
    found = auto._fitting(400, settings, given, plan, seen, auto._kind(weights))  # type: ignore[arg-type]
    assert found[0].steps == 1000


@pytest.mark.parametrize(
    ("each", "steps", "batch", "k", "long"),
    [(1e-5, 1000, 25, 16, False), (1e-2, 62, 25, 16, False), (5e-2, 62, 25, 4, False), (1.0, 62, 25, 4, True)],
)
def test_without_public_records_a_run_of_ten_minutes_is_chosen_if_there_is_one(
    each: float, steps: int, batch: int, k: int, long: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    """`each` is how many seconds an evaluation of a record takes."""
    monkeypatch.setattr(auto, "_LENGTHS", ((1000, 16), (250, 4), (62, 4), (62, 16)))
    weights = sum(weight.numel() for weight in model().parameters())
    monkeypatch.setattr(auto, "_forward", lambda device: each / weights)
    run = make_private_with_epsilon(model(), losses, PRIVATE, folder=tmp_path / "run", **GOAL)
    run.close()
    assert (run.plan.steps, run.plan.expected_batch, run.plan.directions_per_step) == (steps, batch, k)
    assert ("# this is long: expected_batch=" in capsys.readouterr().err) is long


def test_the_page_on_settings_has_what_is_chosen() -> None:
    page = (Path(__file__).resolve().parents[2] / "docs" / "howto" / "settings.md").read_text()
    assert "**A run of at most ten minutes** is chosen if there is one: 1,000 steps, else 250, 62, then" in page
    assert f"batches of n/64 or n/256 records where these are at least {auto._MANY}, then" in page
    assert f"then {auto._FEW_DIRECTIONS} directions" in page
    assert f"for records of {auto._TOKENS} tokens" in page
    assert (auto._RUN, measured._MOST) == (10, 256)
    assert "from 50 to 250 of them" in page


def test_shared_records_are_refused_before_any_search(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dpzero_theory.optim.private.choose", lambda *unused, **named: pytest.fail("it searched"))
    with pytest.raises(
        ValueError, match=r"^public_data must .*; got 400 that data holds too, at \[0, 1, 2, 3, 4\] of .*out$"
    ):
        make_private_with_epsilon(model(), losses, PRIVATE, folder=tmp_path / "run", public_data=PRIVATE, **GOAL)


@pytest.mark.parametrize(("added", "exact"), [(0.0, False), (300.0, False), (1e4, True)])
def test_the_start_does_not_warn_of_the_smoothing_that_is_chosen(added: float, exact: bool, tmp_path: Path) -> None:
    """Rounding of float32 is visible at a smoothing of 1e-2 if losses are large."""

    def large(module: nn.Module, batch: Any) -> Tensor:
        return losses(module, batch) + added

    run = make_private_with_epsilon(model(), large, PRIVATE, folder=tmp_path / "run", public_data=PUBLIC, **GOAL)
    assert (run._header.isolation == "exact") is exact
    assert (run.plan.smoothing > 1e-2) is (added == 300.0)
    run.close()


def test_without_short_runs_a_step_size_that_is_far_too_large_is_lowered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Guesses ten times apart end at step sizes within the factor of one try, sqrt(10)."""
    monkeypatch.setattr(measured, "_CHOOSING", 1e-9)
    first = []
    for factor in (1e2, 1e3):
        kind = auto._Kind("a net", 1.0, 1e-2, factor, 1000)
        monkeypatch.setattr(auto, "_kind", lambda weights, kind=kind: kind)
        folder = tmp_path / str(factor)
        run = make_private_with_epsilon(model(), losses, PRIVATE, folder=folder, public_data=PUBLIC, **GOAL)
        first.append(run.plan.step_size(0))
        run.close()
    assert 1 / 3.2 < first[0] / first[1] < 3.2


def test_the_smoothing_is_not_rounded_below_the_least(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measured, "visibility", lambda _, plan: 0.0122 / plan.smoothing)
    run = make_private_with_epsilon(model(), losses, PRIVATE, folder=tmp_path / "run", public_data=PUBLIC, **GOAL)
    assert run.plan.smoothing >= 1.22e-2
    run.close()


def test_a_step_size_that_was_not_tried_is_not_above_the_one_that_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    chosen, factor = [], measured.Public.factor

    def tried(*unused: Any) -> tuple[float, float]:
        monkeypatch.setattr(measured, "_CHOOSING", 0.0)  # There is no time for a second run
        return 0.5, suggested

    monkeypatch.setattr(measured.Public, "_tried", tried)
    monkeypatch.setattr(
        measured.Public, "factor", lambda *given: chosen.append(factor(*given) / given[1]) or chosen[-1]
    )
    for suggested in (100.0, 0.01):
        monkeypatch.setattr(measured, "_CHOOSING", 60.0)
        folder = tmp_path / str(suggested)
        make_private_with_epsilon(model(), losses, PRIVATE, public_data=PUBLIC, folder=folder, **GOAL).close()
    assert chosen == pytest.approx([1, 0.01])


def test_without_short_runs_slopes_must_outweigh_curvature(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    chosen, gentle = [], measured.Public.gentle

    def with_slope(seen: measured.Public, guess: float, plan: Plan) -> float:
        seen._squared_slope = seen._squared_slope if slope is None else slope
        chosen.append(gentle(seen, guess, plan) / guess)
        return chosen[-1] * guess

    monkeypatch.setattr(measured, "_CHOOSING", 1e-9)
    monkeypatch.setattr(measured.Public, "gentle", with_slope)
    for slope in (0.0, None):
        folder = tmp_path / str(slope)
        make_private_with_epsilon(model(), losses, PRIVATE, public_data=PUBLIC, folder=folder, **GOAL).close()
    assert chosen[0] == pytest.approx(1e-3)
    assert chosen[1] > 1e-2


def test_no_step_size_is_chosen_that_makes_losses_far_larger(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Such a run may still be right more often."""
    for worst, said in ((3.0, False), (1e-9, True)):
        monkeypatch.setattr(measured, "_WORST", worst)
        folder = tmp_path / str(worst)
        make_private_with_epsilon(model(), losses, PRIVATE, public_data=PUBLIC, folder=folder, **GOAL).close()
        assert ("no short run lowers the loss" in capsys.readouterr().err) is said


def test_no_verdict_judges_short_runs_of_losses_below_zero(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The negative of a reward may fall by more than its value at the start."""
    tried, kept = measured.Public._tried, []
    monkeypatch.setattr(measured.Public, "_tried", lambda *given: kept.append(tried(*given)) or kept[-1])

    def below(module: nn.Module, batch: Any) -> Tensor:
        return losses(module, batch) - 5

    make_private_with_epsilon(model(), below, PRIVATE, public_data=PUBLIC, folder=tmp_path / "run", **GOAL).close()
    assert all(-5 < loss < 0 and factor == 1 for loss, factor in kept)


def test_what_is_refused(tmp_path: Path) -> None:
    mixed = TensorDataset(
        *(torch.cat([mine, yours[:3]]) for mine, yours in zip(PUBLIC.tensors, PRIVATE.tensors, strict=True))
    )
    flat = {"losses": lambda module, batch: losses(module, batch).detach() * 0 + 1}
    for changes, said in (
        ({"settings": "best"}, r"settings must be one of auto; got 'best'"),
        (
            {"public_data": mixed},
            r"public_data must hold no private records; got 3 that data holds too, at \[60, 61, 62\] of .*",
        ),
        ({"public_data": 3}, r"public_data must be a map-style data set.*"),
        ({"settings": None, "public_data": PUBLIC}, r"public_data must be left out without settings='auto'.*"),
        ({"settings": None}, r"sampling, relation, .* must be given: there is no default"),
        ({"public_data": PUBLIC, **flat}, r"public_data must show a slope.*"),
        ({"steps": "ten"}, r"steps must be an integer with .*; got 'ten'"),
        ({"target_epsilon": "two"}, r"target_epsilon must be a finite number .*; got 'two'"),
        ({"difference": "none"}, r"difference must be one of .*; got 'none'"),
        ({"clip": -1.0}, r"clip must be a finite number with 0 < clip < inf; got -1.0"),
    ):
        given = {"losses": losses, **GOAL, **changes}
        with pytest.raises(ValueError, match=f"^{said}$"):
            make_private_with_epsilon(model(), given.pop("losses"), PRIVATE, folder=tmp_path / "run", **given)
    assert not list(tmp_path.iterdir())


def test_what_is_trained_of_a_model_of_transformers() -> None:
    transformers = pytest.importorskip("transformers", reason="needs the extra hf")
    sizes = {"hidden_size": 8, "intermediate_size": 8, "num_attention_heads": 2, "num_hidden_layers": 2}
    sizes["vocab_size"] = 20
    llama, bert = transformers.LlamaConfig(**sizes), transformers.BertConfig(**sizes)
    norm = [f"bert.encoder.layer.1.output.LayerNorm.{name}" for name in ("weight", "bias")]
    last = [f"cls.predictions.transform.LayerNorm.{name}" for name in ("weight", "bias")]
    dense = [f"cls.predictions.transform.dense.{name}" for name in ("weight", "bias")]
    known = transformers.BertForMaskedLM(bert)
    known.cls.predictions.transform.dense.bias.data.normal_()
    for made, trained in (
        (transformers.BertForMaskedLM(bert), ["cls.predictions.bias", *dense, *last]),
        (known, last),
        (transformers.LlamaForCausalLM(llama), ["model.norm.weight"]),
        (transformers.LlamaForSequenceClassification(llama), ["model.norm.weight", "score.weight"]),
        (transformers.BertForSequenceClassification(bert), [*norm, "classifier.weight", "classifier.bias"]),
    ):
        assert auto.narrow(made)
        assert [name for name, weight in made.named_parameters() if weight.requires_grad] == trained
        assert not auto.narrow(made)
    assert not auto.narrow(model())


def test_a_refusal_leaves_the_model_as_it_was(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers", reason="needs the extra hf")
    config = transformers.LlamaConfig(
        vocab_size=20, hidden_size=8, intermediate_size=8, num_attention_heads=2, num_hidden_layers=2
    )
    llama = transformers.LlamaForCausalLM(config)
    with pytest.raises(ValueError, match="steps must be an integer"):
        make_private_with_epsilon(llama, losses, PRIVATE, folder=tmp_path / "run", **GOAL, steps=0)
    assert all(weight.requires_grad for weight in llama.parameters())
