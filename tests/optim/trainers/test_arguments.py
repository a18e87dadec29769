"""Tests that every field of transformers' TrainingArguments is honoured, which a test shows, or refused."""

import logging
import os
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

from dpzero_theory.optim.files.checkpoint import Checkpoint  # noqa: E402
from dpzero_theory.optim.losses.task_losses import losses_for  # noqa: E402
from dpzero_theory.optim.trainers.arguments import HONOURED, INSTEAD, defaults, require_honoured  # noqa: E402
from tests.optim.trainers.test_trainer import PRIVATE, ROWS, StopAt, made  # noqa: E402

OTHERS = [{**row, "input_ids": [8, *row["input_ids"][1:]]} for row in ROWS[:5]]
"""Records that are not training records."""
FIELDS = {field.name for field in fields(transformers.TrainingArguments)}


class Told(transformers.TrainerCallback):  # type: ignore[misc, name-defined]
    """A Trainer callback that notes the events of a run and the steps at which they came."""

    def __init__(self) -> None:
        self.events: list[tuple[str, int]] = []
        self.logs: list[dict[str, float]] = []

    def _note(self, event: str, state: Any) -> None:
        self.events.append((event, state.global_step))

    def on_log(self, args: Any, state: Any, control: Any, logs: dict[str, float], **unused: Any) -> None:
        self._note("log", state)
        self.logs.append(logs)

    def on_evaluate(self, args: Any, state: Any, control: Any, **unused: Any) -> None:
        self._note("evaluate", state)

    def on_save(self, args: Any, state: Any, control: Any, **unused: Any) -> None:
        self._note("save", state)

    def on_epoch_end(self, args: Any, state: Any, control: Any, **unused: Any) -> None:
        self._note("epoch", state)

    def steps(self, event: str) -> list[int]:
        return [step for name, step in self.events if name == event]


def trained(folder: Path, **changes: Any) -> tuple[Any, Told]:
    told = Told()
    callbacks = [*changes.pop("callbacks", ()), told]
    trainer = made(folder, callbacks=callbacks, **changes)
    trainer.train()
    return trainer, told


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_every_field_is_honoured_or_refused() -> None:
    assert set(HONOURED) | set(INSTEAD) == FIELDS
    assert not set(HONOURED) & set(INSTEAD)
    assert set(SHOWN) == set(HONOURED)


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


@pytest.mark.parametrize("name", sorted(INSTEAD))
def test_other_fields_are_refused_before_anything_is_made(tmp_path: Path, name: str) -> None:
    arguments = transformers.TrainingArguments(str(tmp_path / "out"), use_cpu=True, report_to="none")
    plain = defaults(arguments)
    require_honoured(arguments, plain)
    setattr(arguments, name, other(getattr(arguments, name)))
    with pytest.raises(ValueError, match=rf"^{name} must be left at .* in TrainingArguments: .*; got ") as found:
        require_honoured(arguments, plain)
    assert "\n" not in str(found.value)


def test_all_refused_fields_are_named_at_once(tmp_path: Path) -> None:
    arguments = transformers.TrainingArguments(
        str(tmp_path), use_cpu=True, report_to="none", learning_rate=1e-3, num_train_epochs=2, weight_decay=0.1
    )
    with pytest.raises(ValueError, match="must be left at") as found:
        require_honoured(arguments, defaults(arguments))
    said = str(found.value)
    assert set(re.findall(r"(\w+) must be left at", said)) == {"learning_rate", "num_train_epochs", "weight_decay"}
    assert set(re.findall(r"got ([\d.]+)", said)) == {"0.001", "2", "0.1"}


def test_a_field_of_another_class_is_refused(tmp_path: Path) -> None:
    arguments = transformers.Seq2SeqTrainingArguments(str(tmp_path), use_cpu=True, predict_with_generate=True)
    with pytest.raises(ValueError, match=r"^predict_with_generate must be left at False"):
        require_honoured(arguments, defaults(arguments))


def test_what_is_set_after_the_start_is_refused_too(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"^max_steps must be left at -1"):
        made(tmp_path / "out", max_steps=7)
    trainer = made(tmp_path / "out")
    trainer.args.weight_decay = 0.1
    with pytest.raises(ValueError, match=r"^weight_decay must be left at"):
        trainer.train()
    assert not (tmp_path / "out" / "_dpzero").exists()


@pytest.mark.parametrize("option", ["optimizers", "optimizer_cls_and_kwargs", "compute_loss_func"])
def test_optimisers_and_losses_of_a_backward_pass_are_refused(tmp_path: Path, option: str) -> None:
    with pytest.raises(ValueError, match=f"^{option} must be left out: "):
        made(tmp_path, options={option: (object(), None)})


def test_searches_that_are_not_paid_for_are_refused(tmp_path: Path) -> None:
    trainer = made(tmp_path)
    with pytest.raises(ValueError, match=r"^trial must be None: .*privacy.selection"):
        trainer.train(trial=object())
    with pytest.raises(ValueError, match=r"^hyperparameter_search must be .*privacy.selection"):
        trainer.hyperparameter_search(n_trials=2)


# --- Tests of the fields that are honoured ---


def shows_logging(folder: Path) -> None:
    _, told = trained(folder / "a", logging_steps=4, logging_first_step=True)
    assert told.steps("log") == [1, 4]
    assert set(told.logs[0]) == {"epsilon", "step_size", "released", "epoch"}
    assert all(np.isfinite(value) for value in told.logs[0].values())
    batches = {**PRIVATE, "sampling": "poisson", "expected_batch": 6, "steps": 5}
    trainer, told = trained(folder / "b", logging_strategy="epoch", private=batches)
    # An epoch has two releases, and the last epoch is cut short.
    assert told.steps("epoch") == told.steps("log") == [2, 4, 5]
    assert trainer.state.num_train_epochs == 3
    assert trainer.state.epoch == 2.5


def shows_log_levels(folder: Path) -> None:
    before = transformers.utils.logging.get_verbosity()
    try:
        for node in (True, False):
            arguments = made(folder, log_level="error", log_level_replica="critical", log_on_each_node=node).args
            assert transformers.utils.logging.get_verbosity() == logging.ERROR
            assert arguments.get_process_log_level() == logging.ERROR
    finally:
        transformers.utils.logging.set_verbosity(before)


def shows_reports(folder: Path) -> None:
    """Shows that reporters are given what the Trainer would give them, and that disable_tqdm hides the progress bar.

    `folder` is the output folder.
    """
    told: list[Any] = []

    class Reporter(transformers.TrainerCallback):  # type: ignore[misc, name-defined]
        def on_train_begin(self, args: Any, state: Any, control: Any, **unused: Any) -> None:
            told.append((args.report_to, args.run_name, args.project, args.trackio_space_id))

    trained(folder / "a", run_name="mine", project="ours", trackio_space_id="here", callbacks=[Reporter()])
    assert told == [([], "mine", "ours", "here")]
    for silent, bar in ((True, transformers.PrinterCallback), (False, transformers.ProgressCallback)):
        kinds = {type(callback) for callback in made(folder / "b", disable_tqdm=silent).callback_handler.callbacks}
        assert bar in kinds


def shows_evaluation(folder: Path) -> None:
    common = {"evaluated": OTHERS, "per_device_eval_batch_size": 2}
    _, told = trained(folder / "a", eval_strategy="steps", eval_steps=2, eval_delay=3, eval_on_start=True, **common)
    assert told.steps("evaluate") == [0, 4, 6]
    trainer, told = trained(folder / "b", eval_strategy="epoch", **common)
    assert told.steps("evaluate") == [1, 2, 3, 4, 5, 6]
    assert len(trainer.get_eval_dataloader()) == 3
    alone = made(folder / "c", evaluated=OTHERS).evaluate()["eval_loss"]
    assert np.isfinite(alone)


def shows_metrics(folder: Path) -> None:
    seen: list[Any] = []

    def metrics(found: Any, compute_result: bool = True) -> dict[str, float]:
        seen.append((found, compute_result))
        return {"right": float(np.mean(np.argmax(np.asarray(found.predictions), -1) == np.asarray(found.label_ids)))}

    common: dict[str, Any] = {"evaluated": OTHERS, "options": {"compute_metrics": metrics}}
    found = made(
        folder, include_for_metrics=["inputs"], eval_accumulation_steps=1, per_device_eval_batch_size=2, **common
    ).evaluate()
    assert 0 <= found["eval_right"] <= 1
    assert seen.pop()[0].inputs.shape == (5, 3)
    made(folder, batch_eval_metrics=True, per_device_eval_batch_size=2, **common).evaluate()
    assert [last for _, last in seen] == [False, False, True]
    only = made(folder, prediction_loss_only=True, **common).predict(OTHERS)
    assert only.predictions is None
    named = made(folder, label_names=["attention_mask"], evaluated=OTHERS).predict(OTHERS)
    assert named.label_ids.shape == (5, 3)
    split = made(
        folder,
        eval_do_concat_batches=False,
        eval_use_gather_object=True,
        per_device_eval_batch_size=2,
        evaluated=OTHERS,
    ).predict(OTHERS)
    assert len(split.predictions) == 3


def shows_loading(folder: Path) -> None:
    loader = made(
        folder,
        evaluated=OTHERS,
        dataloader_num_workers=1,
        dataloader_pin_memory=False,
        dataloader_persistent_workers=True,
        dataloader_prefetch_factor=3,
        dataloader_multiprocessing_context="fork",
        dataloader_in_order=False,
    ).get_eval_dataloader()
    assert (loader.num_workers, loader.pin_memory, loader.persistent_workers) == (1, False, True)
    assert (loader.prefetch_factor, loader.in_order) == (3, False)
    assert loader.multiprocessing_context.get_start_method() == "fork"


def shows_saving(folder: Path) -> None:
    _, told = trained(folder / "a", save_steps=2, save_total_limit=1)
    assert told.steps("save") == [2, 4, 6]
    assert names(folder / "a") == ["_dpzero", "checkpoint-6"]
    _, told = trained(folder / "b", save_strategy="no")
    assert names(folder / "b") == ["_dpzero"]
    trained(folder / "c", save_strategy="epoch", save_total_limit=2, save_only_model=True, save_on_each_node=True)
    assert names(folder / "c") == ["_dpzero", "checkpoint-5", "checkpoint-6"]
    assert "dpzero.pt" not in names(folder / "c" / "checkpoint-6")


def shows_the_best(folder: Path) -> None:
    """Shows that the weights at the end are those of the best evaluation, and that early stopping sees that one.

    `folder` is the output folder.
    """
    scores = iter([0.3, 0.9, 0.2, 0.1, 0.0])
    patience = transformers.EarlyStoppingCallback(2)
    common: dict[str, Any] = {
        "evaluated": OTHERS,
        "eval_strategy": "steps",
        "eval_steps": 1,
        "save_steps": 1,
        "metric_for_best_model": "score",
        "greater_is_better": True,
        "options": {"compute_metrics": lambda _: {"score": next(scores)}},
    }
    trainer, told = trained(
        folder / "a", load_best_model_at_end=True, save_total_limit=1, callbacks=[patience], **common
    )
    assert told.steps("evaluate") == [1, 2, 3, 4]
    assert (trainer.state.best_metric, trainer.state.best_global_step) == (0.9, 2)
    assert names(folder / "a") == ["_dpzero", "checkpoint-2"]
    assert int(trainer.run.state_dict()["run.position"]) == 2
    best = Checkpoint.of(torch.load(folder / "a" / "checkpoint-2" / "dpzero.pt", weights_only=True)).weights
    held = dict(trainer.model.named_parameters())
    assert all(torch.equal(value, held[name].detach()) for name, value in best.items())
    with pytest.raises(Exception, match=r"closed|made|step"):
        trainer.run.step()
    scores = iter([0.3, 0.2, 0.9, 0.1, 0.0, 0.0])
    _, told = trained(folder / "b", **{**common, "save_strategy": "best"})
    assert told.steps("save") == [1, 3]
    with pytest.raises(ValueError, match=r"^save_only_model must be False with load_best_model_at_end"):
        made(folder / "c", load_best_model_at_end=True, save_only_model=True, **common)


def shows_resuming(folder: Path) -> None:
    """Shows that a run resumes from the output folder `folder`, and that the state of its callbacks is restored."""
    scores = iter([0.5, 0.4, 0.3, 0.2, 0.1])
    common: dict[str, Any] = {
        "evaluated": OTHERS,
        "eval_strategy": "steps",
        "eval_steps": 1,
        "save_steps": 1,
        "metric_for_best_model": "score",
        "greater_is_better": True,
        "options": {"compute_metrics": lambda _: {"score": next(scores)}},
    }
    trained(folder, callbacks=[transformers.EarlyStoppingCallback(3), StopAt(2)], **common)
    trainer, told = trained(
        folder,
        callbacks=[transformers.EarlyStoppingCallback(3)],
        resume_from_checkpoint=str(folder / "checkpoint-2"),
        restore_callback_states_from_checkpoint=True,
        **common,
    )
    # Early stopping counts one evaluation that was no better before the resumption, and two after it.
    assert told.steps("evaluate") == [3, 4]
    assert trainer.state.best_metric == 0.5
    assert [entry["step"] for entry in trainer.state.log_history] == [1, 2, 3, 4]


class Hub:
    """Stands in for the hub of models, and notes which files each upload would take."""

    def __init__(self) -> None:
        self.uploads: list[tuple[dict[str, Any], list[str]]] = []

    def upload_folder(self, *, folder_path: str, ignore_patterns: Any = None, **named: Any) -> Any:
        files = [str(path.relative_to(folder_path)) for path in Path(folder_path).rglob("*") if path.is_file()]
        self.uploads.append((named, sorted(filter_repo_objects(files, ignore_patterns=ignore_patterns))))
        return type("Done", (), {"done": lambda self: True, "is_done": lambda self: True})()


def shows_the_hub(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Shows that what is pushed to the hub is the model and its card, never the run's folder, whose key is secret.

    `folder` is the output folder.
    """
    hub = Hub()
    monkeypatch.setattr("transformers.trainer.hf_api", lambda: hub)

    def begin(self: Any, *_: Any, **named: Any) -> None:
        self.hub_model_id, self.push_in_progress = "me/mine", None

    monkeypatch.setattr("transformers.Trainer.init_hf_repo", begin)
    options = {"hub_token": "word", "hub_private_repo": True, "hub_model_id": "mine", "hub_revision": "side"}
    trainer, _ = trained(
        folder, push_to_hub=True, hub_strategy="all_checkpoints", hub_always_push=True, save_steps=3, **options
    )
    trainer.push_to_hub()
    assert len(hub.uploads) == 5  # The model and the checkpoint are uploaded twice each, and the model again at the end
    assert {named["revision"] for named, _ in hub.uploads} == {"side"}
    assert {named["token"] for named, _ in hub.uploads} == {"word"}
    taken = {name for _, files in hub.uploads for name in files}
    assert {"model.safetensors", "README.md"} <= taken
    assert not {name for name in taken if "data.key" in name or "ledger" in name}
    assert not (folder / "data.key").exists()
    assert (folder / "_dpzero" / "data.key").exists()


def shows_the_process(folder: Path) -> None:
    made(folder, seed=3)
    first = torch.rand(2)
    made(folder, seed=3, full_determinism=False)
    assert torch.equal(first, torch.rand(2))
    try:
        made(folder, seed=3, full_determinism=True)
        assert torch.are_deterministic_algorithms_enabled()
    finally:
        torch.use_deterministic_algorithms(False)
        for name in ("CUDA_LAUNCH_BLOCKING", "CUBLAS_WORKSPACE_CONFIG", "ASCEND_LAUNCH_BLOCKING", "HCCL_DETERMINISTIC"):
            os.environ.pop(name, None)
    assert made(folder, use_cpu=True).args.device.type == "cpu"
    assert made(folder, use_cache=True).model.config.use_cache is True
    extra = [{**row, "other": 1} for row in ROWS]
    data = pytest.importorskip("datasets").Dataset.from_list(extra)
    for kept in (False, True):
        seen: set[str] = set()

        def losses(module: Any, batch: Any, seen: set[str] = seen) -> torch.Tensor:
            seen |= set(batch)
            return losses_for(module)(module, {name: batch[name] for name in ROWS[0]})

        trainer = made(folder / str(kept), remove_unused_columns=not kept, options={"losses": losses})
        trainer.train_dataset = data
        trainer.train()
        assert ("other" in seen) == kept


def shows_what_scripts_read(folder: Path) -> None:
    arguments = made(folder, do_train=True, do_predict=True, ddp_timeout=60).args
    assert (arguments.do_train, arguments.do_eval, arguments.do_predict) == (True, False, True)
    assert arguments.ddp_timeout_delta.total_seconds() == 60
    with pytest.raises(ValueError, match="process group"):
        made(folder, ddp_backend="gloo")


SHOWN = {
    name: shows
    for shows, words in {
        shows_logging: "logging_strategy logging_steps logging_first_step",
        shows_log_levels: "log_level log_level_replica log_on_each_node",
        shows_reports: "disable_tqdm report_to run_name project trackio_space_id trackio_bucket_id "
        "trackio_static_space_id",
        shows_evaluation: "eval_strategy eval_steps eval_delay eval_on_start per_device_eval_batch_size",
        shows_metrics: "prediction_loss_only eval_do_concat_batches eval_use_gather_object eval_accumulation_steps "
        "include_for_metrics batch_eval_metrics label_names",
        shows_loading: "dataloader_num_workers dataloader_pin_memory dataloader_persistent_workers "
        "dataloader_prefetch_factor dataloader_multiprocessing_context dataloader_in_order",
        shows_saving: "output_dir save_strategy save_steps save_total_limit save_only_model save_on_each_node",
        shows_the_best: "load_best_model_at_end metric_for_best_model greater_is_better",
        shows_resuming: "resume_from_checkpoint restore_callback_states_from_checkpoint",
        shows_the_hub: "push_to_hub hub_token hub_private_repo hub_model_id hub_strategy hub_always_push hub_revision",
        shows_the_process: "seed full_determinism use_cpu tf32 use_cache remove_unused_columns",
        shows_what_scripts_read: "ddp_backend ddp_timeout local_rank do_train do_eval do_predict",
    }.items()
    for name in words.split()
}
"""For each field that is honoured, the function that shows that it acts."""


@pytest.mark.parametrize("shows", sorted(set(SHOWN.values()), key=lambda shows: shows.__name__))
def test_what_is_honoured_acts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, shows: Any) -> None:
    if shows is shows_the_hub:
        shows(tmp_path, monkeypatch)
    else:
        shows(tmp_path)


# --- Tests of what is evaluated ---


def test_metrics_on_training_records_are_refused_unless_public(tmp_path: Path) -> None:
    copies = [dict(row) for row in ROWS[3:7]]
    tensors = [{name: torch.tensor(value) for name, value in row.items()} for row in copies]
    again = [{**row, "input_ids": [*row["input_ids"], 0], "attention_mask": [1, 1, 1, 0]} for row in copies]
    for data in (
        ROWS,
        copies,
        {"a": OTHERS, "b": copies},
        torch.utils.data.Subset(ROWS, [1, 4]),
        [*ROWS, *OTHERS],  # A data set with all training records and some others
        [*OTHERS, ROWS[-1]],  # A data set with one training record among others
        ROWS[::-1],
        torch.utils.data.ConcatDataset([OTHERS, copies]),
        tensors,
        again,  # A data set of the training records, tokenised to another length
        [{**row, "labels": 1 - row["labels"], "text": "b"} for row in copies],
    ):
        with pytest.raises(ValueError, match=r"^eval_dataset must hold other records than train_dataset"):
            made(tmp_path, evaluated=data).train()
        assert not (tmp_path / "_dpzero").exists()
    trainer = made(tmp_path, evaluated=OTHERS)
    assert "eval_loss" in trainer.evaluate()
    for ask in (trainer.evaluate, trainer.predict):
        with pytest.raises(ValueError, match=r"^eval_dataset must hold other records"):
            ask(copies)
    public = made(tmp_path, evaluated=ROWS, options={"public_evaluation": True})
    assert "eval_loss" in public.evaluate()


def test_what_cannot_be_compared_with_the_training_records_is_refused_unless_public(tmp_path: Path) -> None:
    class Augmented(torch.utils.data.Dataset[Any]):
        def __len__(self) -> int:
            return 5

        def __getitem__(self, index: int) -> Any:
            return {**OTHERS[index], "input_ids": torch.randint(1, 9, (3,))}

    with pytest.raises(ValueError, match=r"^eval_dataset must hold other records .* must read the same each time"):
        made(tmp_path, evaluated=Augmented()).evaluate()
    assert "eval_loss" in made(tmp_path, evaluated=Augmented(), options={"public_evaluation": True}).evaluate()


def test_nothing_that_is_saved_says_when_it_was_written(tmp_path: Path) -> None:
    """Nothing that is saved or logged says when it was written: times follow the secret sizes of batches."""
    trainer, told = trained(
        tmp_path, evaluated=OTHERS, eval_strategy="steps", eval_steps=2, save_steps=2, logging_steps=1
    )
    checkpoints = sorted(tmp_path.glob("checkpoint-*"))
    assert len(checkpoints) == 3
    begun = (tmp_path / "_dpzero" / "data.key").stat().st_mtime
    files = [file for checkpoint in checkpoints for file in (checkpoint, *checkpoint.rglob("*"))]
    assert {file.stat().st_mtime for file in files} == {begun}
    assert any("eval_loss" in logs for logs in told.logs)
    words = {name for logs in [*told.logs, *trainer.state.log_history] for name in logs}
    assert words == {"epoch", "epsilon", "eval_loss", "released", "step", "step_size"}


@pytest.mark.parametrize(
    ("private", "message"),
    [
        (3, "private must be a mapping of settings"),
        ({name: value for name, value in PRIVATE.items() if name != "clip"}, "clip must be given: there is no default"),
        ({**PRIVATE, "epsilon": 2}, r"unknown setting epsilon; did you mean target_epsilon\?"),
        ({**PRIVATE, "learning_rate": 2}, r"unknown setting learning_rate; did you mean step_size\?"),
        ({**PRIVATE, "folder": "a"}, "folder must be left out of private: it is _dpzero/ in the output folder"),
        ({**PRIVATE, "collate": None}, "collate must be left out of private: it is data_collator of the Trainer"),
    ],
)
def test_settings_of_no_run_are_refused_when_the_trainer_is_made(tmp_path: Path, private: Any, message: str) -> None:
    with pytest.raises(ValueError, match=f"^{message}") as found:
        made(tmp_path / "out", private=private)
    assert "\n" not in str(found.value)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([{k: v for k, v in row.items() if k != "labels"} for row in ROWS], "batches must hold labels, as a tensor"),
        ([{**row, "labels": 7} for row in ROWS], "labels must be integers from 0 to 1, the model's classes, .*; got 7"),
        ([{**row, "labels": 0.5} for row in ROWS], "labels must be integers, numbers of classes; got torch.float32"),
        ([{**row, "labels": [1, 2, 3]} for row in ROWS], r"labels must be of shape \(5,\) .*; got \(5, 3\)"),
    ],
)
def test_labels_that_are_none_of_the_models_are_one_line(tmp_path: Path, rows: Any, message: str) -> None:
    trainer = made(tmp_path)
    trainer.train_dataset = rows
    with pytest.raises(ValueError, match=f"^{message}") as found:
        trainer.train()
    assert "\n" not in str(found.value)
    assert not (tmp_path / "_dpzero").exists()


def test_the_outcome_has_no_number_that_is_none(tmp_path: Path) -> None:
    outcome = made(tmp_path).train()
    assert outcome.training_loss is None
    assert set(outcome.metrics) == {"epsilon"}
