"""A Hugging Face Trainer whose `train` is a private run (requires the extra `hf`).

    trainer = DPZeroTrainer(
        model, TrainingArguments("out", save_steps=500, report_to="none"), train_dataset=data,
        processing_class=tokenizer,
        private=dict(target_epsilon=2, target_delta=1e-5, steps=10_000, expected_batch=64, clip=1.0, step_size=1e-6,
                     smoothing=1e-3, relation="add-remove", sampling="poisson"),
    )
    trainer.train()                                # resume_from_checkpoint=True after an interruption
    trainer.run.get_epsilon(1e-5)                  # the epsilon that may be claimed

    trainer = privatize(ClassOfOthers(...), private=dict(...))   # for a Trainer of any class

Callbacks, evaluation and checkpoints are the Trainer's. An epoch is n/expected_batch steps, one pass over the n records
in expectation. The log shows epsilon, the step size and the size of the released noisy averages, never a training loss
or a time. The run's own files are in the folder `_dpzero` of the output folder. Pushes to the hub leave this folder
out, since its file `data.key` is secret.
"""

import math
import os
import shutil
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import wraps
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import nn
from transformers import PreTrainedModel, Trainer, TrainerState, TrainingArguments
from transformers.trainer_callback import ExportableState
from transformers.trainer_utils import SaveStrategy, TrainOutput, rotate_checkpoints, sort_checkpoints

from dpzero_theory.check import names_of, settings
from dpzero_theory.optim.engines.engine import Engine
from dpzero_theory.optim.files.folder import KEY, made_whole
from dpzero_theory.optim.files.statement import statement
from dpzero_theory.optim.files.transcript import OF_TRAINER, Record, read
from dpzero_theory.optim.losses.evaluation import Losses
from dpzero_theory.optim.losses.identity import shared
from dpzero_theory.optim.losses.records import require_data
from dpzero_theory.optim.losses.users import ByUser
from dpzero_theory.optim.plan import REQUIRED
from dpzero_theory.optim.private import make_private_with_epsilon
from dpzero_theory.optim.run import Run
from dpzero_theory.optim.trainers.arguments import for_a_run, require_honoured
from dpzero_theory.optim.trainers.own_loss import known_losses, one_by_one
from dpzero_theory.optim.weights.shards import is_collective

_STATE, _TRAINER_STATE = "dpzero.pt", "trainer_state.json"
"""The files of a checkpoint that hold the state of the run and the state of the Trainer."""
_TIMES = ("_runtime", "_per_second", "_time")
"""Logged values whose names end in one of these are times or speeds."""
_OWN_STEPS = ("create_optimizer", "create_scheduler", "get_train_dataloader", "training_step", "_inner_training_loop")
"""Methods of a Trainer that `train` does not call in a private run."""
_T = TypeVar("_T", bound=Trainer)


def _require_settings(private: object) -> None:
    # Raises ValueError unless `private` is "auto", or a mapping with keys that `DPZeroTrainer` accepts, including
    # target_epsilon, target_delta and, without settings="auto", all names in `plan.REQUIRED`.
    if private == "auto":
        return
    if not isinstance(private, Mapping):
        raise ValueError(f"private must be a mapping of settings, dict(target_epsilon=2, ...); got {private!r:.60}")
    of_trainer = {
        "folder": f"{OF_TRAINER}/ in the output folder",
        "collate": "data_collator of the Trainer",
        "engine": "an argument of the trainer",
    }
    for name, instead in of_trainer.items():
        if name in private:
            raise ValueError(f"{name} must be left out of private: it is {instead}")
    known, required = (
        [name for name in names if name not in ("module", "losses", "data", *of_trainer)]
        for names in names_of(make_private_with_epsilon)
    )
    settings(private, known, required if "settings" in private else [*required, *REQUIRED])


def _require_no_optimizer(*given: object) -> None:
    if any(value is not None for value in given):
        raise ValueError("optimizers and optimizer_cls_and_kwargs must be left out: the plan makes the steps")


@contextmanager
def _without_backward(model: Any) -> Iterator[None]:
    # `Trainer` refuses a quantised model without a backward pass (GGUF). A private run needs none, so the model does
    # not say that it is quantised while the block runs.
    quantised = getattr(model, "is_quantized", False)
    if quantised:
        model.is_quantized = False
    try:
        yield
    finally:
        if quantised:
            model.is_quantized = True


class DPZeroTrainer(Trainer):  # type: ignore[misc]
    """A `transformers.Trainer` whose `train` makes a private run.

    To make a Trainer class of another library private, derive from both: `class Private(DPZeroTrainer, TheirTrainer)`.
    The attribute `run` is the `Run`, once training has begun.

    Args:
        model: the model to train, as `transformers.Trainer` takes it.
        args: the training arguments. Arguments that a private run does not use must have their defaults;
            `trainers.arguments` lists those that it uses.
        private: the settings of the run, a mapping with the arguments of `make_private_with_epsilon` other than module,
            losses, data, folder, collate and engine. Its key `resume` may only be "moved", for an output folder that
            was copied or brought from another disk. If its key `settings` is "auto", settings not given are chosen by
            public records, if there are any: its key `public_data`, or else eval_dataset, which must then be public (it
            is not used with public_evaluation=True or entries of `by_user`). "auto" in place of a mapping means
            dict(settings="auto", target_epsilon=2, target_delta=min(1e-5, 1/(10 n))) for n entries of train_dataset.
        losses: a function that takes the module and a collated batch, and returns the losses of the records, shape
            (batch,). None uses the losses of the model's task (`task_losses.losses_for`), or for a class with its own
            `compute_loss` the values of that method for each record alone.
        engine: "vllm" or an `engines.engine.Engine`, which computes the losses of the entries of train_dataset;
            data_collator is then not used, and `losses` must be None. None computes losses with the model.
        public_evaluation: whether metrics on training records may be computed. If False, an evaluation set raises
            ValueError if it shares a record with train_dataset or cannot be compared with it. Pass True only if the
            records are public, or if the metrics are shown only to those who hold the records.
        options: further arguments of the Trainer, such as train_dataset, eval_dataset and data_collator.

    Raises:
        ValueError: an argument is outside its range, or asks for something that a private run does not do.
    """

    run: Run
    control: Any

    def __init__(
        self,
        model: nn.Module | None,
        args: TrainingArguments,
        *,
        private: Mapping[str, Any] | str,
        losses: Losses | None = None,
        engine: Engine | str | None = None,
        public_evaluation: bool = False,
        **options: Any,
    ) -> None:
        args = for_a_run(args)
        _require_settings(private)
        require_honoured(args)
        _require_no_optimizer(*(options.get("optimizers") or ()), options.get("optimizer_cls_and_kwargs"))
        if options.get("train_dataset") is not None:
            require_data(options["train_dataset"], "train_dataset")
        with _without_backward(model):
            super().__init__(model=model, args=args, **options)
        self._begin(private, losses, public_evaluation, engine)

    def _begin(self, private: Any, losses: Losses | None, public_evaluation: bool, engine: Engine | str | None) -> None:
        # Checks and stores the arguments of the class; `train` starts the run with them.
        args, kind = self.args, type(self)
        _require_no_optimizer(self.optimizer, self.lr_scheduler, self.optimizer_cls_and_kwargs)
        for name in _OWN_STEPS:
            if getattr(kind, name).__module__.partition(".")[0] not in ("transformers", "trl"):
                raise ValueError(f"{kind.__name__} must have no {name} of its own: the steps are those of the plan")
        # A model with a peft adapter is no PreTrainedModel. It saves only the adapter, which is always possible.
        quantizer = getattr(self.model, "hf_quantizer", None) if isinstance(self.model, PreTrainedModel) else None
        if args.save_strategy != SaveStrategy.NO and quantizer is not None and not quantizer.is_serializable():
            method = quantizer.quantization_config.quant_method
            raise ValueError(
                "model must be one that can be saved, or save_strategy 'no'; got a base quantised by"
                f" {getattr(method, 'value', method)}, which cannot: train an adapter on it (peft)"
            )
        if engine is not None and losses is not None:
            raise ValueError(f"losses must be None with an engine, which evaluates them; got {losses!r:.60}")
        self._engine = engine
        # None means that the engine or, without one, the Trainer's compute_loss for each record computes the losses.
        self._losses = known_losses(self) if losses is None and engine is None else losses
        if private == "auto":
            delta = min(1e-5, 0.1 / len(self.train_dataset or (0,)))
            private = {"settings": "auto", "target_epsilon": 2.0, "target_delta": delta}
        self._private, self._public_evaluation = dict(private), public_evaluation
        self._looked_at: dict[int, object] = {}

    def train(
        self,
        resume_from_checkpoint: str | bool | None = None,
        trial: None = None,
        ignore_keys_for_eval: list[str] | None = None,
    ) -> TrainOutput:
        """Make all remaining steps of the private run.

        Args:
            resume_from_checkpoint: None or False starts a run; but if `args.resume_from_checkpoint` is set, that is
                used. A checkpoint's folder, or True for the last checkpoint in the output folder, continues the run
                there. With True, a run without a checkpoint is continued from the weights that the model has, which
                must be those at its start; and if the output folder has no run, one is started.
            trial: must be None. A hyperparameter search must account for all its runs together
                (`examples/private_search.py`).
            ignore_keys_for_eval: names of model outputs that evaluations during training ignore.

        Returns:
            A TrainOutput. `global_step` is the number of steps of the plan that have been made, including those before
            a resumption and those that were counted towards the privacy budget but lost in a crash. `training_loss` is
            None. `metrics["epsilon"]` is the epsilon that may be claimed at target_delta.

        Raises:
            ValueError: `make_private_with_epsilon` refuses a setting, the model is sharded (FSDP), a checkpoint is
                damaged, or an evaluation set shares records with the training data.
            FileExistsError: the output folder holds a run, and no checkpoint is to be resumed from.
            Exception: any other exception of `make_private_with_epsilon`, `Run.step` or a callback.
        """
        if trial is not None:
            raise ValueError("trial must be None: a search must pay for its runs together (examples/private_search.py)")
        if self.is_fsdp_enabled or is_collective(self.model):
            raise ValueError("the Trainer does not shard: use torch's fully_shard and make_private_with_epsilon")
        require_honoured(self.args)
        for data in self.eval_dataset.values() if isinstance(self.eval_dataset, dict) else (self.eval_dataset,):
            self._require_other_records(data)
        checkpoint = resume_from_checkpoint or self.args.resume_from_checkpoint
        self.run = self._started(bool(checkpoint))
        self.is_in_train = True
        try:
            self._resume(checkpoint)
            return self._loop(ignore_keys_for_eval)
        finally:
            self.is_in_train = False
            self.run.close()

    def _started(self, resumed: bool) -> Run:
        resume = self._private.get("resume", True)
        if resume is not True and resume != "moved":
            raise ValueError(f"resume must be 'moved' in private, or left out; got {resume!r}")
        if self._begun() and not resumed:
            raise FileExistsError(
                f"{self._folder} holds a run: give train resume_from_checkpoint=True to go on with it, or another"
                " output_dir to begin a new one"
            )
        data = self._without_unused_columns(self.train_dataset)
        losses: Any = None
        collate: Any = None  # An engine takes the records as they are
        if self._losses is not None:
            losses, collate = self._with_batch_on_device(self._losses), self.data_collator
        elif self._engine is None:
            losses, collate = one_by_one(self, data.texts if isinstance(data, ByUser) else data)
        options = {
            **self._private,
            "folder": self._folder,
            "collate": collate,
            "engine": self._engine,
            "resume": resume if self._begun() else False,
        }
        others = next(iter(self.eval_dataset.values())) if isinstance(self.eval_dataset, dict) else self.eval_dataset
        public = None if self._public_evaluation or isinstance(data, ByUser) else others
        if "settings" in options and public is not None:
            options = {"public_data": self._without_unused_columns(public), **options}
        return make_private_with_epsilon(self.model, losses, data, **options)

    def _with_batch_on_device(self, losses: Losses) -> Losses:
        return wraps(losses)(lambda module, batch: losses(module, self._prepare_inputs(batch)))

    def _without_unused_columns(self, data: Any) -> Any:
        if isinstance(data, ByUser):
            return data.over(self._without_unused_columns(data.texts))
        return self._remove_unused_columns(data, description="training") if hasattr(data, "column_names") else data

    def _move_model_to_device(self, model: Any, device: torch.device) -> None:
        # Frozen weights on the meta device have no values to move; the engine holds these.
        if not any(parameter.is_meta for parameter in model.parameters()):
            super()._move_model_to_device(model, device)

    def get_eval_dataloader(self, eval_dataset: Any = None) -> Any:
        """Return the data loader of an evaluation set: a data set, the name of one, or None for the Trainer's own.

        Raises ValueError if the set shares a record with the training data or cannot be compared with it, unless
        `public_evaluation` is True.
        """
        data = self.eval_dataset if eval_dataset is None else eval_dataset
        self._require_other_records(self.eval_dataset[data] if isinstance(data, str) else data)
        return super().get_eval_dataloader(eval_dataset)

    def get_test_dataloader(self, test_dataset: Any) -> Any:
        """Return the data loader of a test set. Raises ValueError if the set shares a record with the training data or
        cannot be compared with it, unless `public_evaluation` is True."""
        self._require_other_records(test_dataset)
        return super().get_test_dataloader(test_dataset)

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        """Log values as a Trainer does, without times and speeds, which depend on the secret sizes of batches."""
        super().log({name: value for name, value in logs.items() if not name.endswith(_TIMES)}, start_time)

    def _require_other_records(self, data: Any) -> None:
        # Metrics on training records would reveal them. A set is compared once, and kept, so that its id stays its own.
        if data is None or self._public_evaluation or self.train_dataset is None or id(data) in self._looked_at:
            return
        rule = "eval_dataset must hold other records than train_dataset: metrics on training records are not private"
        unless = "(public_evaluation=True, an argument of the trainer, says that they are public)"
        known = self.train_dataset.texts if isinstance(self.train_dataset, ByUser) else self.train_dataset
        self._set_signature_columns_if_needed()
        try:
            both = shared(known, data, self._signature_columns, self.label_names)
        except ValueError as error:
            raise ValueError(f"{rule} {unless}; {error}") from None
        if both:
            found = f"got {len(both)} that are training records, at {both[:5]}: leave them out"
            raise ValueError(f"{rule} {unless}; {found}")
        self._looked_at[id(data)] = data

    def create_model_card(self, **named: Any) -> None:
        """Write README.md, with the privacy statement of the run that `optim.verify` prints, into the output folder.

        Of the arguments `named` only model_name, the title, is used. Raises ValueError if the folder has no run.
        """
        if not self.is_world_process_zero():
            return
        if not self._begun():
            raise ValueError("create_model_card must come after train: there is no run to state anything of")
        folder, text = Path(self.args.output_dir), statement(read(self._folder)).text()
        card = (
            "---\nlibrary_name: transformers\ntags: [differential-privacy, dpzero]\n---\n\n"
            f"# {named.get('model_name') or folder.resolve().name}\n\n"
            "Trained privately by forward passes alone: each step moved the weights by released numbers, with the\n"
            f"step sizes of the run's plan and no other optimiser.\n\n## Privacy\n\n```text\n{text}\n```\n\n"
            "`python -m dpzero_theory.optim.verify` computes it again from the run's file, which is kept beside the\n"
            "model where it was trained.\n"
        )
        Path(folder, "README.md").write_text(card, encoding="utf-8")

    @property
    def _folder(self) -> Path:
        return Path(self.args.output_dir, OF_TRAINER)

    def _begun(self) -> bool:
        return self._folder.exists() and any(self._folder.iterdir())

    def _resume(self, checkpoint: str | bool | None) -> None:
        # `checkpoint` is a checkpoint's folder, or True for the last complete one, if there is one.
        found = self._last_complete_checkpoint() if checkpoint is True else checkpoint
        if found:
            self.run.load_state_dict(self._loaded(Path(found, _STATE)))
            self.state = TrainerState.load_from_json(str(Path(found, _TRAINER_STATE)))
            self._load_callback_state()
        self.run.catch_up()

    def _last_complete_checkpoint(self) -> str | None:
        numbered = sort_checkpoints(output_dir=self.args.output_dir)
        return next((path for path in reversed(numbered) if Path(path, _STATE).exists()), None)

    def _loaded(self, path: Path) -> dict[str, Any]:
        try:
            state: dict[str, Any] = torch.load(path, map_location=self.args.device, weights_only=True)
        except Exception as error:
            said = " ".join(str(error).split())
            raise ValueError(f"{path} must be a checkpoint of this run; name an earlier one ({said:.150})") from None
        return state

    def _loop(self, ignored: list[str] | None) -> TrainOutput:
        # Makes the remaining steps, and calls the Trainer's callbacks. Evaluations ignore the model outputs `ignored`.
        handler, state, total = self.callback_handler, self.state, self.run.plan.steps
        epoch = max(round(1 / self.run.plan.sampling.sample_rate), 1)
        first = total - self.run.releases_left
        state.max_steps, state.num_train_epochs = total, math.ceil(total / epoch)
        state.global_step, state.epoch = first, first / epoch
        state.is_world_process_zero = self.is_world_process_zero()
        state.is_local_process_zero = self.is_local_process_zero()
        state.compute_steps(self.args, total)
        descent = self.run.descent()
        self.control = handler.on_train_begin(self.args, state, self.control)
        if self.args.eval_on_start:
            self._evaluate(None, ignored, skip_scheduler=True)
        while self.run.releases_left and not self.control.should_training_stop:
            if state.global_step % epoch == 0 or state.global_step == first:
                self.control = handler.on_epoch_begin(self.args, state, self.control)
            self.control = handler.on_step_begin(self.args, state, self.control)
            record = self.run.step()
            descent.watch(record)
            state.global_step = total - self.run.releases_left
            state.epoch = state.global_step / epoch
            self.control = handler.on_step_end(self.args, state, self.control)
            self._report(record, ignored)
            if state.global_step % epoch == 0 or not self.run.releases_left:
                self.control = handler.on_epoch_end(self.args, state, self.control)
                self._report(record, ignored)
        if self.is_world_process_zero():
            shown = not self.args.disable_tqdm
            if shown:
                print(file=sys.stderr)  # Ends the line of the progress bar
            self.run.conclude(descent, shown=shown)
        self._load_best()
        self.control = handler.on_train_end(self.args, state, self.control)
        self._finish_current_push()
        return TrainOutput(state.global_step, None, {"epsilon": self._epsilon()})

    def _epsilon(self) -> float:
        return self.run.get_epsilon(self._private["target_delta"])

    def _report(self, record: Record, ignored: list[str] | None) -> None:
        # Logs the step, evaluates (without the model outputs `ignored`) and saves, each if a callback has asked for it.
        if self.control.should_log:
            self.control.should_log = False
            plan, sums = self.run.plan, record.sums
            # Only released numbers may be logged. This is the root mean square, over the step's K directions, of the
            # noisy averages of the records' clipped differences.
            released = plan.unit * math.hypot(*map(float, sums)) / math.sqrt(len(sums))
            shown = {"epsilon": self._epsilon(), "step_size": plan.step_size(record.release)}
            self.log({**shown, "released": released})
        if self.control.should_evaluate:
            self.control.should_evaluate = False
            best = self._determine_best_metric(self._evaluate(None, ignored, skip_scheduler=True), None)
            if self.args.save_strategy == SaveStrategy.BEST:
                self.control.should_save = best
        if self.control.should_save:
            self.control.should_save = False
            self._save_run()
            self.control = self.callback_handler.on_save(self.args, self.state, self.control)

    def _save_run(self) -> None:
        # Saves the model, the Trainer's state and the run's. Replaces an older checkpoint of the same step.
        self.run.weights.untrained.settle()
        state = None if self.args.save_only_model else self.run.state_dict()
        if not self.args.should_save:
            return
        output = Path(self.args.output_dir)
        folder = output / f"checkpoint-{self.state.global_step}"
        if folder.exists():  # Written before the run was resumed from an earlier checkpoint
            shutil.rmtree(folder)
        best = output / f"checkpoint-{self.state.best_global_step}"
        if self.state.best_global_step and (best.exists() or best == folder):
            self.state.best_model_checkpoint = str(best)
        with made_whole(folder) as new:
            self.save_model(str(new), _internal_call=True)
            kept = self.state.stateful_callbacks
            for callback in [*self.callback_handler.callbacks, self.control]:
                if isinstance(callback, ExportableState):
                    name, last = type(callback).__name__, callback.state()
                    kept[name] = [*kept[name], last] if isinstance(kept.get(name), list) else last
            self.state.save_to_json(str(new / _TRAINER_STATE))
            if state is not None:
                torch.save(state, new / _STATE)
            begun = (self._folder / KEY).stat().st_mtime
            for file in [*new.rglob("*"), new]:
                os.utime(file, (begun, begun))
        if self.args.push_to_hub:
            self._push_from_checkpoint(str(folder))
        limit, best_folder = self.args.save_total_limit, self.state.best_model_checkpoint
        rotate_checkpoints(str(output), save_total_limit=limit, best_model_checkpoint=best_folder, use_mtime=False)

    def _load_best(self) -> None:
        # The steps after the best checkpoint stay in the run's file and still count. If `train` is called again with
        # `resume_from_checkpoint`, it loads a remaining checkpoint, and moves the weights by the later steps.
        best = self.state.best_model_checkpoint
        if best is None:
            return
        if self.args.load_best_model_at_end:
            self.run.load_state_dict(self._loaded(Path(best, _STATE)))
            self.run.close()
        if self.args.should_save and self.args.save_total_limit == 1:
            for checkpoint in sort_checkpoints(output_dir=self.args.output_dir, best_model_checkpoint=best):
                if not Path(checkpoint).samefile(best):
                    shutil.rmtree(checkpoint, ignore_errors=True)


def privatize(
    trainer: _T,
    *,
    private: Mapping[str, Any] | str,
    losses: Losses | None = None,
    engine: Engine | str | None = None,
    public_evaluation: bool = False,
    train_dataset: Any = None,
) -> _T:
    """Turn a Trainer of any class into one whose `train` makes a private run, in place.

    Args:
        trainer: a Trainer that has not trained. Its class must not define create_optimizer, create_scheduler,
            get_train_dataloader, training_step or _inner_training_loop itself, but may inherit those of transformers
            and trl. The run calls the class's methods for the loss, evaluation and saving, and no others.
        private: the settings, a mapping of arguments of `make_private_with_epsilon`, or "auto" (`DPZeroTrainer`).
        losses: a function of the module and a collated batch that returns one loss for each record. If it and `engine`
            are None, the trainer's own loss is used, with one forward pass a record if its class has a `compute_loss`.
        engine: None, or an `engines.engine.Engine` or "vllm", which computes the losses in place of the model.
        public_evaluation: False refuses, with ValueError, an evaluation set that has a training record.
        train_dataset: the data set that the trainer was made with, to check that its length is that of
            trainer.train_dataset. Required if `args.max_length` is set, since TRL may then have dropped entries.

    Returns:
        The argument `trainer`, which is now also a `DPZeroTrainer`.

    Raises:
        ValueError: the training arguments ask for something that a private run does not do; or the trainer has trained,
            defines such a method, or has dropped entries. `train` raises it if `compute_loss` is no mean over records.
    """
    kind = type(trainer)
    if not isinstance(trainer, Trainer) or isinstance(trainer, DPZeroTrainer):
        raise ValueError(f"trainer must be a transformers.Trainer that is not private yet; got {kind.__name__}")
    _require_settings(private)
    require_honoured(trainer.args)
    if trainer.state.global_step:
        raise ValueError(f"trainer must not have trained yet; got one after {trainer.state.global_step} steps")
    if train_dataset is None and getattr(trainer.args, "max_length", None) is not None:
        raise ValueError(
            "train_dataset must be given, as the trainer was given it: entries that max_length ="
            f" {trainer.args.max_length} cuts away may have been left out, so that n would depend on their texts"
        )
    if train_dataset is not None and len(train_dataset) != len(trainer.train_dataset):
        raise ValueError(
            f"trainer must keep each of its {len(train_dataset)} entries; got {len(trainer.train_dataset)}, so that n"
            " depends on their texts: use DPZeroSFTTrainer or DPZeroDPOTrainer, or drop max_length"
        )
    require_data(trainer.train_dataset, "train_dataset")
    trainer.__class__ = type(f"Private{kind.__name__}", (DPZeroTrainer, kind), {})
    try:
        trainer._begin(private, losses, public_evaluation, engine)
    except ValueError:
        trainer.__class__ = kind
        raise
    return trainer
