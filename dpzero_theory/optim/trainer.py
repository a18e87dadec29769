"""DPZero inside a Hugging Face Trainer (the `hf` extra): its arguments, callbacks, evaluation and checkpoints.

    trainer = DPZeroTrainer(
        model, TrainingArguments("out", save_steps=500, report_to="none"), train_dataset=data,
        processing_class=tokenizer,
        private=dict(target_epsilon=2, target_delta=1e-5, steps=10_000, expected_batch=64, clip=1.0, step_size=1e-6,
                     smoothing=1e-3, relation="add-remove", sampling="poisson"),
    )
    trainer.train()                                # resume_from_checkpoint=True after an interruption
    trainer.run.get_epsilon(1e-5)

Of `TrainingArguments` only what concerns output, logging, evaluation and saving is used: steps, batches and step sizes
are those of `private`. The log has epsilon and the step, never a training loss. Metrics on an evaluation set are
releases about that set, which must be other records than the training data. Ledger and transcript are in `dpzero/`
of the output folder, and the model card (`create_model_card`) has the privacy statement of `optim.verify`.
"""

import json
from collections.abc import Mapping
from functools import wraps
from pathlib import Path
from typing import Any

import torch
import transformers
from torch import nn
from transformers import Trainer, TrainingArguments
from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR, TrainOutput

from dpzero_theory.optim.evaluation import Losses
from dpzero_theory.optim.private import make_private_with_epsilon
from dpzero_theory.optim.run import Run
from dpzero_theory.optim.shards import is_collective
from dpzero_theory.optim.statement import statement_of_folder

_STATE, _TRAINER_STATE = "dpzero.pt", "trainer_state.json"


def classification_losses(module: nn.Module, batch: Mapping[str, torch.Tensor]) -> torch.Tensor:
    """Cross-entropy of each record for a model with logits of shape (batch, classes), in float32."""
    inputs = {name: value for name, value in batch.items() if name != "labels"}
    return nn.functional.cross_entropy(module(**inputs).logits.float(), batch["labels"], reduction="none")


class DPZeroTrainer(Trainer):  # type: ignore[misc]
    """A Trainer whose `train` is a private run.

    private: keyword arguments of `optim.private.make_private_with_epsilon`, folder and collate excepted; resume only as
    "moved", for an output folder that was copied or brought from another disk.
    losses: per-record losses of a collated batch. Other arguments as `transformers.Trainer`. `run` is the `Run` once
    training has begun.
    """

    run: Run
    control: Any

    def __init__(
        self,
        model: nn.Module,
        args: TrainingArguments,
        *,
        private: Mapping[str, Any],
        losses: Losses = classification_losses,
        **options: Any,
    ) -> None:
        super().__init__(model, args, **options)
        self._private, self._losses = dict(private), losses

    def train(self, resume_from_checkpoint: str | bool | None = None, **unused: Any) -> TrainOutput:
        """Make the releases that are left.

        resume_from_checkpoint: a checkpoint's folder, or True for the last one in the output folder (without any, the
        transcript alone brings the initial weights up to date; for dpgd-0th, which has none, the initial weights are
        gone on from, with what was paid for paid). False or None starts a run, and refuses to where there is one.
        Errors as `make_private_with_epsilon`, and ValueError for a sharded model (FSDP) or a damaged checkpoint.
        """
        if self.is_fsdp_enabled or is_collective(self.model):
            raise ValueError(
                "the Trainer does not shard: use torch's fully_shard and make_private_with_epsilon instead"
            )
        resume = self._private.get("resume", True)
        if resume is not True and resume != "moved":
            raise ValueError(f"resume must be 'moved' in private, or left out; got {resume!r}")
        data = self.train_dataset
        if hasattr(data, "column_names"):
            data = self._remove_unused_columns(data, description="training")

        @wraps(self._losses)
        def losses(module: nn.Module, batch: Any) -> object:
            return self._losses(module, self._prepare_inputs(batch))

        self.run = make_private_with_epsilon(
            self.model,
            losses,
            data,
            **{
                **self._private,
                "folder": self._folder,
                "collate": self.data_collator,
                "resume": resume if resume_from_checkpoint and self._begun() else False,
            },
        )
        try:
            self._resume(resume_from_checkpoint)
            return self._loop()
        finally:
            self.run.close()

    def create_model_card(self, **named: Any) -> None:
        """README.md of the output folder: the privacy statement of the run, as `optim.verify` writes it.

        named: as of `transformers.Trainer`; of it model_name, finetuned_from, language, license, tags and dataset are
        used. Raises ValueError before the run has begun.
        """
        if not self.is_world_process_zero():
            return
        if not self._begun():
            raise ValueError("create_model_card must come after train: there is no run to state anything of")
        folder = Path(self.args.output_dir)
        tags = named.get("tags") or []
        about = {
            "library_name": "transformers",
            "tags": [*([tags] if isinstance(tags, str) else tags), "differential-privacy", "dpzero"],
            **{key: named[key] for key in ("language", "license") if named.get(key)},
            **({"base_model": named["finetuned_from"]} if named.get("finetuned_from") else {}),
            **({"datasets": named["dataset"]} if named.get("dataset") else {}),
        }
        statement = statement_of_folder(self._folder).text()
        card = (
            f"---\n{json.dumps(about, indent=1)}\n---\n\n# {named.get('model_name') or folder.resolve().name}\n\n"
            "Trained privately by forward passes alone: each step moved the weights by released numbers, with the\n"
            f"step sizes of the run's plan and no other optimiser (transformers {transformers.__version__}).\n\n"
            f"## Privacy\n\n```text\n{statement}\n```\n\n"
            "`python -m dpzero_theory.optim.verify` computes it again from the run's ledger and transcript.\n"
        )
        Path(folder, "README.md").write_text(card, encoding="utf-8")

    @property
    def _folder(self) -> Path:
        return Path(self.args.output_dir, "dpzero")

    def _begun(self) -> bool:
        return self._folder.exists() and any(self._folder.iterdir())

    def _resume(self, checkpoint: str | bool | None) -> None:
        found = self._last_checkpoint() if checkpoint is True else checkpoint
        if found:
            self.run.load_state_dict(self._loaded(Path(found, _STATE)))
        elif checkpoint and not self.run.plan.scalars:
            self.run.begin_again()
        self.run.catch_up()

    def _last_checkpoint(self) -> str | None:
        """The last one that was written to its end: its `dpzero.pt` comes last and whole."""
        numbered = Path(self.args.output_dir).glob(f"{PREFIX_CHECKPOINT_DIR}-*")
        whole = {path.name.rpartition("-")[2]: path for path in numbered if (path / _STATE).exists()}
        steps = [int(step) for step in whole if step.isdecimal()]
        return str(whole[str(max(steps))]) if steps else None

    def _loaded(self, path: Path) -> dict[str, Any]:
        try:
            state: dict[str, Any] = torch.load(path, map_location=self.args.device, weights_only=True)
        except Exception as error:
            said = " ".join(str(error).split())
            raise ValueError(f"{path} must be a checkpoint of this run; name an earlier one ({said:.150})") from None
        return state

    def _loop(self) -> TrainOutput:
        total = self.run.plan.steps
        self.state.max_steps, self.state.num_train_epochs = total, 1
        self.state.global_step = total - self.run.releases_left
        self.state.is_world_process_zero = self.is_world_process_zero()
        self.state.is_local_process_zero = self.is_local_process_zero()
        self.state.compute_steps(self.args, total)
        handler = self.callback_handler
        self.control = handler.on_train_begin(self.args, self.state, self.control)
        self.control = handler.on_epoch_begin(self.args, self.state, self.control)
        while self.run.releases_left and not self.control.should_training_stop:
            self.control = handler.on_step_begin(self.args, self.state, self.control)
            self.run.step()
            self.state.global_step = total - self.run.releases_left
            self.state.epoch = self.state.global_step / total
            self.control = handler.on_step_end(self.args, self.state, self.control)
            self._report()
        self.control = handler.on_epoch_end(self.args, self.state, self.control)
        self._report()
        self.control = handler.on_train_end(self.args, self.state, self.control)
        return TrainOutput(self.state.global_step, float("nan"), {"epsilon": self._epsilon()})

    def _epsilon(self) -> float:
        return self.run.get_epsilon(self._private["target_delta"])

    def _report(self) -> None:
        """Log, evaluate and save where the callbacks ask for it."""
        if self.control.should_log:
            self.control.should_log = False
            self.log({"epsilon": self._epsilon()})
        if self.control.should_evaluate:
            self.control.should_evaluate = False
            self.evaluate()
        if self.control.should_save:
            self.control.should_save = False
            self._save_run()
            self.control = self.callback_handler.on_save(self.args, self.state, self.control)

    def _save_run(self) -> None:
        folder = Path(self.args.output_dir, f"{PREFIX_CHECKPOINT_DIR}-{self.state.global_step}")
        state = self.run.state_dict()
        self.save_model(str(folder), _internal_call=True)
        if self.is_world_process_zero():
            self.state.save_to_json(str(folder / _TRAINER_STATE))
            torch.save(state, folder / f"{_STATE}.part")
            (folder / f"{_STATE}.part").replace(folder / _STATE)
