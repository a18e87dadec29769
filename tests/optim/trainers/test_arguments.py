"""Tests that every field of transformers' TrainingArguments is honoured, which a table shows, or refused."""

import re
import runpy
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

transformers = pytest.importorskip("transformers", reason="the hf extra is not installed")

from huggingface_hub.utils import filter_repo_objects  # noqa: E402

from dpzero_theory.optim.files.transcript import Checkpoint, read  # noqa: E402
from dpzero_theory.optim.trainers.arguments import HONOURED, INSTEAD, require_honoured  # noqa: E402
from tests.optim.trainers.test_trainer import PRIVATE, ROWS, StopAt, made  # noqa: E402

OTHERS = [{**row, "input_ids": [8, *row["input_ids"][1:]]} for row in ROWS[:5]]
"""Records that are not training records."""
FIELDS = {field.name for field in fields(transformers.TrainingArguments)}


class Told(transformers.TrainerCallback):  # type: ignore[misc, name-defined]
    """A Trainer callback that notes the events of a run and the steps at which they came."""

    def __init__(self) -> None:
        self.events: list[tuple[str, int]] = []
        self.logs: list[dict[str, float]] = []

    def on_log(self, args: Any, state: Any, control: Any, logs: dict[str, float], **unused: Any) -> None:
        self.events.append(("log", state.global_step))
        self.logs.append(logs)

    def on_evaluate(self, args: Any, state: Any, control: Any, **unused: Any) -> None:
        self.events.append(("evaluate", state.global_step))

    def on_save(self, args: Any, state: Any, control: Any, **unused: Any) -> None:
        self.events.append(("save", state.global_step))

    def steps(self, event: str) -> list[int]:
        return [step for name, step in self.events if name == event]


def trained(folder: Path, **changes: Any) -> tuple[Any, Told]:
    told = Told()
    trainer = made(folder, callbacks=[*changes.pop("callbacks", ()), told], **changes)
    trainer.train()
    return trainer, told


def names(trainer: Any) -> list[str]:
    return sorted(path.name for path in Path(trainer.args.output_dir).iterdir())


def test_every_field_is_honoured_or_refused() -> None:
    assert set(HONOURED) <= FIELDS
    assert not set(HONOURED) & set(INSTEAD)
    shown = {name for changes, _, _ in ACTS for name in changes}
    assert set(HONOURED) <= shown | set(HUB) | set(INHERITED.split())


def test_the_page_of_the_fields_is_of_today() -> None:
    """The documentation's page of all fields is what docs/fields.py writes today."""
    docs = Path(__file__).resolve().parents[3] / "docs"
    page = (docs / "reference" / "training-arguments.md").read_text()
    assert page == runpy.run_path(str(docs / "fields.py"))["page"]()
    assert set(re.findall(r"^\| `(\w+)` ", page, re.M)) == FIELDS


def other(value: Any) -> Any:
    match value:
        case bool():
            return not value
        case int() | float():
            return value + 1
        case str():
            return f"{value}x"
        case _:
            return {"other": 1}


def test_all_other_fields_are_refused_at_once_before_anything_is_made(tmp_path: Path) -> None:
    arguments = transformers.TrainingArguments(str(tmp_path / "out"), use_cpu=True, report_to="none")
    require_honoured(arguments)
    refused = FIELDS - set(HONOURED)
    for name in refused:
        setattr(arguments, name, other(getattr(arguments, name)))
    with pytest.raises(ValueError, match=r"^(\w+ must be left at .* in TrainingArguments: .*; got )+") as found:
        require_honoured(arguments)
    assert "\n" not in str(found.value)
    assert set(re.findall(r"(\w+) must be left at", str(found.value))) == refused
    more = transformers.Seq2SeqTrainingArguments(str(tmp_path), use_cpu=True, predict_with_generate=True)
    with pytest.raises(ValueError, match=r"^predict_with_generate must be left at False"):
        require_honoured(more)


BETTER: dict[str, Any] = {
    "evaluated": OTHERS, "eval_strategy": "steps", "eval_steps": 1, "save_steps": 1, "metric_for_best_model": "score",
    "greater_is_better": True,
}  # fmt: skip
EPOCHS = {**PRIVATE, "sampling": "poisson", "expected_batch": 6, "steps": 5}
"""Settings with two releases an epoch, of which the last is cut short."""
ACTS: list[tuple[dict[str, Any], Any, Any]] = [
    ({"logging_steps": 4, "logging_first_step": True}, lambda _, told: told.steps("log"), [1, 4]),
    (
        {"logging_strategy": "epoch", "private": EPOCHS},
        lambda trainer, told: (told.steps("log"), trainer.state.num_train_epochs, trainer.state.epoch),
        ([2, 4, 5], 3, 2.5),
    ),
    (
        {"eval_strategy": "steps", "eval_steps": 2, "eval_delay": 3, "eval_on_start": True, "evaluated": OTHERS},
        lambda _, told: told.steps("evaluate"),
        [0, 4, 6],
    ),
    (
        {"eval_strategy": "epoch", "evaluated": OTHERS, "per_device_eval_batch_size": 2},
        lambda trainer, told: (told.steps("evaluate"), len(trainer.get_eval_dataloader())),
        ([1, 2, 3, 4, 5, 6], 3),
    ),
    (
        {"save_steps": 2, "save_total_limit": 1},
        lambda trainer, told: (told.steps("save"), names(trainer)),
        ([2, 4, 6], ["_dpzero", "checkpoint-6"]),
    ),
    ({"save_strategy": "no"}, lambda trainer, _: names(trainer), ["_dpzero"]),
    (
        {"save_strategy": "epoch", "save_total_limit": 2, "save_only_model": True, "save_on_each_node": True},
        lambda trainer, _: (names(trainer), Path(trainer.args.output_dir, "checkpoint-6", "dpzero.pt").exists()),
        (["_dpzero", "checkpoint-5", "checkpoint-6"], False),
    ),
    ({**BETTER, "save_strategy": "best"}, lambda _, told: told.steps("save"), [1, 3]),
    (
        {**BETTER, "save_total_limit": 1, "load_best_model_at_end": True},
        lambda trainer, _: (trainer.state.best_metric, trainer.state.best_global_step, names(trainer)),
        (0.9, 3, ["_dpzero", "checkpoint-3"]),
    ),
    ({"use_cache": True}, lambda trainer, _: trainer.model.config.use_cache, True),
]
"""Arguments, what is looked at after training with them, and what is found."""
INHERITED = """
    log_level log_level_replica log_on_each_node disable_tqdm report_to run_name project trackio_space_id
    trackio_bucket_id trackio_static_space_id prediction_loss_only eval_do_concat_batches eval_use_gather_object
    eval_accumulation_steps include_for_metrics batch_eval_metrics label_names dataloader_num_workers
    dataloader_pin_memory dataloader_persistent_workers dataloader_prefetch_factor
    dataloader_multiprocessing_context dataloader_in_order output_dir resume_from_checkpoint
    restore_callback_states_from_checkpoint seed full_determinism use_cpu tf32 remove_unused_columns ddp_backend
    ddp_timeout local_rank do_train do_eval do_predict
"""
"""Fields on which transformers acts, and those of the tests below."""


@pytest.mark.parametrize(("changes", "look", "expected"), ACTS, ids=[" ".join(changes)[:60] for changes, _, _ in ACTS])
def test_what_is_honoured_acts(tmp_path: Path, changes: dict[str, Any], look: Any, expected: Any) -> None:
    scores = iter([0.3, 0.2, 0.9, 0.1, 0.0, 0.0])
    if "metric_for_best_model" in changes:
        changes = {**changes, "options": {"compute_metrics": lambda _: {"score": next(scores)}}}
    assert look(*trained(tmp_path, **changes)) == expected


def test_columns_that_the_model_does_not_take_are_removed_unless_kept(tmp_path: Path) -> None:
    data = pytest.importorskip("datasets").Dataset.from_list([{**row, "other": 1} for row in ROWS])
    for kept in (False, True):
        seen: set[str] = set()

        def losses(module: Any, batch: Any, seen: set[str] = seen) -> torch.Tensor:
            seen |= set(batch)
            logits = module(input_ids=batch["input_ids"]).logits
            return torch.nn.functional.cross_entropy(logits, batch["labels"], reduction="none")

        trainer = made(tmp_path / str(kept), remove_unused_columns=not kept, options={"losses": losses})
        trainer.train_dataset = data
        trainer.train()
        assert ("other" in seen) == kept


def test_early_stopping_resumes_and_the_weights_are_those_of_the_best(tmp_path: Path) -> None:
    """Early stopping counts an evaluation that was no better before the resumption, and two after it."""
    scores = iter([0.5, 0.4, 0.3, 0.2, 0.1])
    common = {**BETTER, "load_best_model_at_end": True}
    common["options"] = {"compute_metrics": lambda _: {"score": next(scores)}}
    trained(tmp_path, callbacks=[transformers.EarlyStoppingCallback(3), StopAt(2)], **common)
    trainer, told = trained(
        tmp_path, callbacks=[transformers.EarlyStoppingCallback(3)], **common,
        resume_from_checkpoint=str(tmp_path / "checkpoint-2"), restore_callback_states_from_checkpoint=True,
    )  # fmt: skip
    assert told.steps("evaluate") == [3, 4]
    assert [entry["step"] for entry in trainer.state.log_history] == [1, 2, 3, 4]
    assert (trainer.state.best_metric, trainer.state.best_global_step) == (0.5, 1)
    best = Checkpoint.of(torch.load(tmp_path / "checkpoint-1" / "dpzero.pt", weights_only=True)).weights
    held = dict(trainer.model.named_parameters())
    assert all(torch.equal(value, held[name].detach()) for name, value in best.items())
    with pytest.raises(Exception, match=r"closed|made|step"):
        trainer.run.step()


class Hub:
    """Stands in for the hub of models, and notes which files each upload would take."""

    def __init__(self) -> None:
        self.uploads: list[tuple[dict[str, Any], list[str]]] = []

    def upload_folder(self, *, folder_path: str, ignore_patterns: Any = None, **named: Any) -> Any:
        files = [str(path.relative_to(folder_path)) for path in Path(folder_path).rglob("*") if path.is_file()]
        self.uploads.append((named, sorted(filter_repo_objects(files, ignore_patterns=ignore_patterns))))
        return type("Done", (), {"done": lambda self: True, "is_done": lambda self: True})()


HUB: dict[str, Any] = {
    "push_to_hub": True, "hub_strategy": "all_checkpoints", "hub_always_push": True, "hub_token": "word",
    "hub_private_repo": True, "hub_model_id": "mine", "hub_revision": "side",
}  # fmt: skip


def test_the_model_and_its_card_are_pushed_and_never_the_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hub = Hub()
    monkeypatch.setattr("transformers.trainer.hf_api", lambda: hub)

    def begin(self: Any, *_: Any, **named: Any) -> None:
        self.hub_model_id, self.push_in_progress = "me/mine", None

    monkeypatch.setattr("transformers.Trainer.init_hf_repo", begin)
    trainer, _ = trained(tmp_path, save_steps=3, **HUB)
    trainer.push_to_hub()
    assert len(hub.uploads) == 5  # The model and the checkpoint are uploaded twice each, and the model again at the end
    assert {(named["revision"], named["token"]) for named, _ in hub.uploads} == {("side", "word")}
    taken = {name for _, files in hub.uploads for name in files}
    assert {"model.safetensors", "README.md"} <= taken
    assert not {name for name in taken if "data.key" in name or "sqlite" in name}
    assert not (tmp_path / "data.key").exists()
    assert (tmp_path / "_dpzero" / "data.key").exists()


def test_metrics_on_training_records_are_refused_unless_public(tmp_path: Path) -> None:
    copies = [{**row, "labels": 1 - row["labels"]} for row in ROWS[3:7]]  # type: ignore[operator]
    for data in (
        ROWS,
        torch.utils.data.ConcatDataset([OTHERS, torch.utils.data.Subset(copies, [1])]),
        {"a": OTHERS, "b": ROWS[3:7]},
    ):
        with pytest.raises(ValueError, match=r"^eval_dataset must hold other records than train_dataset"):
            made(tmp_path, evaluated=data).train()
        assert not (tmp_path / "_dpzero").exists()
        public = made(tmp_path, evaluated=data, options={"public_evaluation": True}).evaluate()
        assert {"eval_loss", "eval_b_loss"} & set(public)
    trainer = made(tmp_path, evaluated=OTHERS)
    assert "eval_loss" in trainer.evaluate()
    for ask in (trainer.evaluate, trainer.predict):
        with pytest.raises(ValueError, match=r"^eval_dataset must hold other records"):
            ask(ROWS[3:7])


def test_what_is_logged_and_saved_is_released_numbers_without_times(tmp_path: Path) -> None:
    """Nothing that is saved or logged says when it was written: times follow the secret sizes of batches."""
    trainer, told = trained(
        tmp_path, evaluated=OTHERS, eval_strategy="steps", eval_steps=2, save_steps=2, logging_steps=1
    )
    checkpoints = sorted(tmp_path.glob("checkpoint-*"))
    assert len(checkpoints) == 3
    begun = (tmp_path / "_dpzero" / "data.key").stat().st_mtime
    files = [file for checkpoint in checkpoints for file in (checkpoint, *checkpoint.rglob("*"))]
    assert {file.stat().st_mtime for file in files} == {begun}
    words = {name for logs in [*told.logs, *trainer.state.log_history] for name in logs}
    assert words == {"epoch", "epsilon", "eval_loss", "released", "step", "step_size"}
    assert all(np.isfinite(value) for logs in told.logs for value in logs.values())
    plan, (_, records, _) = trainer.run.plan, read(tmp_path / "_dpzero" / "run.sqlite")
    unit = plan.clip / plan.rule.levels / PRIVATE["expected_batch"]
    released = [abs(unit * float(record.sums[0])) for record in records]
    assert [logs["released"] for logs in told.logs if "released" in logs] == pytest.approx(released, rel=1e-12)
    outcome = made(tmp_path / "again").train()
    assert outcome.training_loss is None
    assert set(outcome.metrics) == {"epsilon"}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"max_steps": 7}, "max_steps must be left at -1"),
        ({"options": {"optimizers": (object(), None)}}, "optimizers and optimizer_cls_and_kwargs must be left out: "),
        (
            {"options": {"optimizer_cls_and_kwargs": (object(), None)}},
            "optimizers and optimizer_cls_and_kwargs must be",
        ),
        ({"ddp_backend": "gloo"}, ".*process group"),
        ({**BETTER, "load_best_model_at_end": True, "save_only_model": True}, "save_only_model must be False with"),
        ({"private": 3}, "private must be a mapping of settings"),
        ({"private": {k: v for k, v in PRIVATE.items() if k != "clip"}}, "clip must be given: there is no default"),
        ({"private": {**PRIVATE, "epsilon": 2}}, r"unknown setting epsilon; did you mean target_epsilon\?"),
        ({"private": {**PRIVATE, "folder": "a"}}, "folder must be left out of private: it is _dpzero/ in the output"),
        ({"private": {**PRIVATE, "collate": None}}, "collate must be left out of private: it is data_collator of"),
    ],
)
def test_what_no_run_has_is_refused_when_the_trainer_is_made(
    tmp_path: Path, changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=f"^{message}") as found:
        made(tmp_path / "out", **changes)
    assert "\n" not in str(found.value)
    assert not (tmp_path / "out").exists()


def sharded(trainer: Any) -> None:
    trainer.is_fsdp_enabled = True
    trainer.train()


def decayed(trainer: Any) -> None:
    trainer.args.weight_decay = 0.1
    trainer.train()


def mislabelled(trainer: Any) -> None:
    trainer.train_dataset = [{**row, "labels": 7} for row in ROWS]
    trainer.train()


@pytest.mark.parametrize(
    ("work", "said"),
    [
        (lambda trainer: trainer.train(trial=object()), "trial must be None: .*private_search"),
        (sharded, "the Trainer does not shard: use torch's fully_shard"),
        (decayed, "weight_decay must be left at"),
        (mislabelled, "losses must be finite numbers .* got none for 12 of 12 .*no class"),
    ],
)
def test_what_no_run_does_is_one_line_before_anything_is_there(tmp_path: Path, work: Any, said: str) -> None:
    with pytest.raises(ValueError, match=f"^{said}") as found:
        work(made(tmp_path))
    assert "\n" not in str(found.value)
    assert not (tmp_path / "_dpzero").exists()
