"""Private supervised and preference fine-tuning in the shape of TRL's trainers (the `trl` extra).

    trainer = DPZeroSFTTrainer(
        model, DPZeroSFTConfig("out", max_length=128), train_dataset=data, processing_class=tokenizer,
        private=dict(target_epsilon=2, target_delta=1e-5, steps=1000, expected_batch=64, clip=1.0, step_size=1e-2,
                     smoothing=1e-3, relation="add-remove", sampling="poisson"),
    )
    trainer.train()

What TRL does with data is TRL's: chat templates, prompts and completions, which tokens have a loss, truncation,
collators, and the metrics of evaluations. Training is that of `trainer.DPZeroTrainer`, and `private` and everything
said there hold here. A record is an entry of the data set, a text or a pair of answers, and so is the unit of privacy,
unless `owner` names a column: then it is all entries with the same value there, such as all pairs of one prompt or all
texts of one person (`losses.users`).

TRL leaves out entries that have no token with a loss after truncation. Here they stay, as records whose loss never
changes: otherwise n, the sampling rate and the noise, which are published, would depend on the text of one entry.

Every field of TRL's configurations is used, or must be left at its default, and an error says what to use instead.
Packing would put several records into one row, of which none could be clipped by itself, and is refused. With
preferences the reference model is the model as it is given, or without its adapter; its log-probabilities are computed
once, one pair at a time, and stored by `datasets` in its cache beside the data. They are as secret as the data.
"""

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, ClassVar, Self

from datasets import Dataset
from transformers import PreTrainedModel, TrainingArguments
from trl.trainer.dpo_config import DPOConfig
from trl.trainer.dpo_trainer import DPOTrainer
from trl.trainer.sft_config import SFTConfig
from trl.trainer.sft_trainer import SFTTrainer

from dpzero_theory.optim.losses.preferences import preference_losses
from dpzero_theory.optim.losses.users import by_user
from dpzero_theory.optim.trainers.arguments import HONOURED
from dpzero_theory.optim.trainers.trainer import DPZeroTrainer

_PUBLIC = "public_data"
"""The name, among the settings of a run, of the records from which starting values are computed."""
_NUMBER = "dpzero_entry"
"""The column with the number of each entry in the data set as it was given, by which shuffled entries are found."""
_OWN_RECORD = "a record must have rows of its own: leave it off, rows are padded"
_LOSS = "it is part of TRL's gradient training alone"
_TEXTS = (
    "model_init_kwargs trust_remote_code chat_template_path dataset_text_field dataset_kwargs dataset_num_proc "
    "eos_token max_length truncation_mode shuffle_dataset pad_to_multiple_of completion_only_loss "
    "assistant_only_loss pad_token"
)
_PAIRS = (
    "model_init_kwargs trust_remote_code disable_dropout dataset_num_proc max_length truncation_mode "
    "pad_to_multiple_of loss_type beta pad_token"
)


class _Config:
    """What the two configurations share: how to make one from TRL's own, `from_trl`.

    In both, autocast and gradient checkpointing are off, and a trainer refuses a configuration that turns them on.
    honoured: the fields of TRL's that a private run uses. instead: for other fields, what to use in their place.
    """

    honoured: ClassVar[frozenset[str]]
    instead: ClassVar[Mapping[str, str]]

    @classmethod
    def from_trl(cls, config: TrainingArguments) -> Self:
        """Return the configuration with the fields of `config`, TRL's own, that a private run uses.

        The fields about optimiser, batches and precision are left out: the trainer's argument `private` says those.
        """
        kept = (cls.honoured | HONOURED.keys()) & {field.name for field in fields(config) if field.init}
        return cls(**{name: getattr(config, name) for name in kept})


@dataclass
class DPZeroSFTConfig(_Config, SFTConfig):
    """The arguments of `DPZeroSFTTrainer`: those of `trl.SFTConfig`, without mixed precision and checkpointing."""

    bf16: bool | None = False
    gradient_checkpointing: bool | None = None  # type: ignore[assignment]

    honoured: ClassVar = frozenset(_TEXTS.split())
    instead: ClassVar = {
        "packing": _OWN_RECORD,
        "packing_strategy": _OWN_RECORD,
        "eval_packing": _OWN_RECORD,
        "padding_free": _OWN_RECORD,
        "loss_type": "give losses, one for each record",
        "router_aux_loss_coef": _LOSS,
        "activation_offloading": "no activations are kept",
    }


@dataclass
class DPZeroDPOConfig(_Config, DPOConfig):
    """The arguments of `DPZeroDPOTrainer`: those of `trl.DPOConfig`, without mixed precision and checkpointing.

    `loss_type` is one of `losses.preferences.PREFERENCES`, and `precompute_ref_log_probs` is always True.
    """

    bf16: bool | None = False
    gradient_checkpointing: bool | None = None  # type: ignore[assignment]
    precompute_ref_log_probs: bool = True
    precompute_ref_batch_size: int | None = 1

    honoured: ClassVar = frozenset(_PAIRS.split())
    instead: ClassVar = {
        "padding_free": _OWN_RECORD,
        "precompute_ref_log_probs": "they are computed once",
        "precompute_ref_batch_size": "a pair's numbers must not depend on its neighbours' lengths",
        "loss_weights": "give one loss_type",
        "ld_alpha": _LOSS,
        "f_divergence_type": _LOSS,
        "f_alpha_divergence_coef": _LOSS,
        "label_smoothing": _LOSS,
        "use_weighting": _LOSS,
        "discopop_tau": _LOSS,
        "router_aux_loss_coef": _LOSS,
        "activation_offloading": "no activations are kept",
        "sync_ref_model": "the reference model is the model at the start",
        "ref_model_mixup_alpha": "the reference model is the model at the start",
        "ref_model_sync_steps": "the reference model is the model at the start",
    }


class _Whole(Dataset):  # type: ignore[misc]
    """A data set of numbered entries from which TRL's preparation, which maps and filters it, leaves none out."""

    @classmethod
    def of(cls, data: Dataset, name: str) -> Dataset:
        """Return the entries of `data` with a column of their numbers. name: the argument's, for messages."""
        if not isinstance(data, Dataset) or _NUMBER in data.column_names:
            raise ValueError(f"{name} must be a datasets.Dataset without a column {_NUMBER}; got {type(data).__name__}")
        return cls._made(data.add_column(_NUMBER, range(len(data))))

    @classmethod
    def _made(cls, data: Any) -> Any:
        data.__class__ = cls
        return data

    def map(self, *args: Any, **options: Any) -> Any:
        """Return what `datasets.Dataset.map` returns, whose entries cannot be left out either."""
        return self._made(super().map(*args, **options))

    def filter(self, *args: Any, **options: Any) -> Any:
        """Return the data set itself, and warn of entries that the filter would leave out. Raises ValueError if the
        filter would leave out all entries."""
        left_out = len(self) - len(super().filter(*args, **options))
        if left_out == len(self):
            raise ValueError("the data must have entries that TRL keeps (not too long, with a loss); got none")
        if left_out:
            warnings.warn(
                f"{left_out} of {len(self)} entries have no token with a loss (max_length cuts them): each stays a"
                " record, of which nothing is learnt",
                stacklevel=2,
            )
        return self


def _units(data: Any, count: int, owners: Sequence[object] | None, name: str) -> Any:
    """Return the units of privacy of a prepared data set, which TRL may have shuffled.

    count: the number of entries that were given. owners: their owners; None if each entry is a unit. name: the
    argument's, for messages. Raises ValueError unless each entry that was given is there once.
    """
    numbers = list(data[_NUMBER]) if _NUMBER in data.column_names else []
    if sorted(numbers) != list(range(count)):
        raise ValueError(f"{name} must keep each of its {count} entries while TRL prepares it; got {len(data)}")
    data = data.remove_columns(_NUMBER)
    return data if owners is None else by_user(data, [owners[number] for number in numbers])


class _Trainer(DPZeroTrainer):
    """What the two trainers share: the unit of privacy, and `from_trl`, which makes one from TRL's own trainer.

    owner: the name of a column of train_dataset whose equal values belong to one unit of privacy, or None.
    """

    config: ClassVar[type[Any]]
    train_dataset: Any
    eval_dataset: Any

    def __init__(
        self,
        model: PreTrainedModel | None,
        args: Any = None,
        *,
        private: Mapping[str, Any],
        train_dataset: Any = None,
        owner: str | None = None,
        **options: Any,
    ) -> None:
        if not isinstance(args, self.config):
            raise ValueError(f"args must be a {self.config.__name__}; got {type(args).__name__}")
        known = list(getattr(train_dataset, "column_names", ()) or ())
        if owner is not None and owner not in known:
            raise ValueError(f"owner must be a column of train_dataset ({', '.join(known)}); got {owner!r}")
        if not isinstance(train_dataset, Dataset) or not len(train_dataset):
            got = "an empty one" if isinstance(train_dataset, Dataset) else type(train_dataset).__name__
            raise ValueError(
                "train_dataset must be a datasets.Dataset with entries (Dataset.from_list(rows); a stream: loaded"
                f" without streaming); got {got}"
            )
        owners = list(train_dataset[owner]) if owner is not None else None
        public = private.get(_PUBLIC) if isinstance(private, Mapping) else None
        evaluated = options.get("eval_dataset")
        if public is not None:  # TRL prepares the public data as it does evaluation sets
            if owner is not None and owner not in (getattr(public, "column_names", ()) or ()):
                raise ValueError(f"public_data must have the column {owner!r} of the owners; got none")
            if evaluated is None and args.eval_strategy != "no":
                raise ValueError(f"eval_dataset must be given with eval_strategy {str(args.eval_strategy)!r}; got none")
            named = evaluated if isinstance(evaluated, dict) else {"": evaluated} if evaluated is not None else {}
            options["eval_dataset"] = {**named, _PUBLIC: _Whole.of(public, _PUBLIC)}
        try:
            super().__init__(
                model, args, private=private, train_dataset=_Whole.of(train_dataset, "train_dataset"), **options
            )
        except (KeyError, AttributeError) as error:
            raise ValueError(
                f"train_dataset must have what TRL reads; got {type(error).__name__} {error} with its columns"
                f" {', '.join(known)}"
            ) from error
        if public is not None:
            found, of_public = self.eval_dataset.pop(_PUBLIC), list(public[owner]) if owner is not None else None
            self._private[_PUBLIC] = _units(found, len(public), of_public, _PUBLIC)
            self.eval_dataset = self.eval_dataset if isinstance(evaluated, dict) else self.eval_dataset.get("")
        self.train_dataset = _units(self.train_dataset, len(train_dataset), owners, "train_dataset")

    @classmethod
    def from_trl(cls, trainer: Any, *, private: Mapping[str, Any], **options: Any) -> Self:
        """Return the private trainer with the model, the data and the arguments of one of TRL's, which has not trained.

        Fields of its arguments about optimiser, batches and precision are left out (`DPZeroSFTConfig.from_trl`).

        Args:
            trainer: an `SFTTrainer` or a `DPOTrainer` of TRL.
            private: the settings of the private run.
            options: further arguments of this class. train_dataset is among them, as TRL's trainer was given it, unless
                that trainer cuts nothing (max_length=None).

        Raises:
            ValueError: train_dataset is missing, and TRL's trainer may have left entries out of its own copy.
        """
        if trainer.args.max_length is not None and "train_dataset" not in options:
            raise ValueError(
                "train_dataset must be given, as TRL's trainer was given it: TRL has left out entries that max_length"
                f" = {trainer.args.max_length} cuts away, so that n would depend on their texts; got none"
            )
        given = {
            "train_dataset": trainer.train_dataset,
            "eval_dataset": trainer.eval_dataset,
            "processing_class": trainer.processing_class,
            "data_collator": trainer.data_collator,
        }
        return cls(trainer.model, cls.config.from_trl(trainer.args), private=private, **{**given, **options})

    def _send_telemetry(self) -> None:
        """Send nothing, in place of TRL's method that tells the makers of TRL that a trainer is used."""


class DPZeroSFTTrainer(_Trainer, SFTTrainer):  # type: ignore[misc]
    """TRL's `SFTTrainer` whose `train` is a private run.

    Args:
        model: a causal language model, with or without an adapter.
        args: a `DPZeroSFTConfig`.
        private: the settings of the run, as `trainer.DPZeroTrainer` takes them.
        train_dataset: texts, prompts with completions, or conversations, as `trl.SFTTrainer` takes them.
        owner: the name of a column of it whose equal values are one unit of privacy; None if each entry is one.
        options: further arguments of `trl.SFTTrainer` and of `trainer.DPZeroTrainer`, such as eval_dataset,
            processing_class, peft_config, formatting_func, losses and public_evaluation.

    Raises:
        ValueError: an argument that a private run would not honour.
    """

    config = DPZeroSFTConfig


class DPZeroDPOTrainer(_Trainer, DPOTrainer):  # type: ignore[misc]
    """TRL's `DPOTrainer` whose `train` is a private run.

    Args:
        model: a causal language model, with or without an adapter.
        args: a `DPZeroDPOConfig`.
        private: the settings of the run, as `trainer.DPZeroTrainer` takes them.
        train_dataset: pairs of a chosen and a rejected answer, as `trl.DPOTrainer` takes them.
        owner: the name of a column of it whose equal values are one unit of privacy; None if each pair is one. With
            owner="prompt", all pairs of a prompt.
        options: further arguments of `trl.DPOTrainer` and of `trainer.DPZeroTrainer`, such as eval_dataset,
            processing_class, peft_config and public_evaluation.

    Raises:
        ValueError: an argument that a private run would not honour.
    """

    config = DPZeroDPOConfig

    def __init__(self, model: PreTrainedModel | None, args: Any = None, **options: Any) -> None:
        if isinstance(args, DPZeroDPOConfig) and options.get("losses") is None:
            kinds = args.loss_type if isinstance(args.loss_type, list) else [args.loss_type]
            if len(kinds) != 1:
                raise ValueError(f"loss_type must be one loss; got {kinds}")
            options["losses"] = preference_losses(kinds[0], args.beta)
        super().__init__(model, args, **options)
