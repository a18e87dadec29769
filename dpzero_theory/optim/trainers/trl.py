"""Private supervised and preference fine-tuning by TRL's trainers (the `trl` extra), as `trainer` has it for others.

TRL prepares the data: templates, which tokens have a loss, truncation, collators, metrics. Training is that of
`trainer.DPZeroTrainer`. Mixed precision and gradient checkpointing, which TRL's configurations turn on, are off.

TRL leaves out entries that have no token with a loss after truncation. Here they stay, as records whose loss never
changes: otherwise n, the sampling rate and the noise, which are published, would depend on the text of one entry.

With preferences the reference model is the model as it is given, or without its adapter. Its log-probabilities are
computed once, one pair at a time, and stored by `datasets` in its cache next to the data, as secret as the data.
"""

import warnings
from collections.abc import Mapping
from typing import Any, ClassVar

from datasets import Dataset
from transformers import PreTrainedModel
from trl.trainer.dpo_config import DPOConfig
from trl.trainer.dpo_trainer import DPOTrainer
from trl.trainer.sft_config import SFTConfig
from trl.trainer.sft_trainer import SFTTrainer

from dpzero_theory.optim.losses.task_losses import preference_losses
from dpzero_theory.optim.losses.users import by_user
from dpzero_theory.optim.trainers.trainer import DPZeroTrainer

_NUMBER = "dpzero_entry"
"""The column with the number of each entry in the data set as it was given, by which shuffled entries are found."""


# TRL prepares a data set by `map` and `filter`, which leave out no entry here: otherwise n, the published number of
# records, would depend on an entry's text. A column with the entries' numbers shows whether all are left.
class _Whole(Dataset):  # type: ignore[misc]
    @classmethod
    def of(cls, data: Any, name: str) -> Any:
        if not isinstance(data, Dataset) or not len(data) or _NUMBER in data.column_names:
            got = "an empty one" if isinstance(data, Dataset) and not len(data) else type(data).__name__
            raise ValueError(
                f"{name} must be a datasets.Dataset with entries, without a column {_NUMBER} (Dataset.from_list(rows);"
                f" a stream: loaded without streaming); got {got}"
            )
        return cls._made(data.add_column(_NUMBER, range(len(data))))

    @classmethod
    def _made(cls, data: Any) -> Any:
        data.__class__ = cls
        return data

    def map(self, *args: Any, **options: Any) -> Any:
        return self._made(super().map(*args, **options))

    def filter(self, *args: Any, **options: Any) -> Any:
        # No entry is left out; there is a warning of those that the arguments would leave out
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


# A subclass sets `config`, the class of TRL's that `args` must have
class _TRLTrainer(DPZeroTrainer):
    config: ClassVar[type[Any]]
    train_dataset: Any

    def __init__(
        self,
        model: PreTrainedModel | None,
        args: Any = None,
        *,
        private: Mapping[str, Any] | str,
        train_dataset: Any = None,
        owner: str | None = None,
        **options: Any,
    ) -> None:
        if not isinstance(args, self.config):
            raise ValueError(f"args must be a {self.config.__name__}; got {type(args).__name__}")
        if isinstance(args, DPOConfig):
            if options.get("losses") is None:
                options["losses"] = preference_losses(args.beta)  # A bad beta is refused before the model is evaluated.
            chosen = {"settings": "auto"} if private == "auto" else private
            public = options.get("eval_dataset") is not None and owner is None and not options.get("public_evaluation")
            if "settings" in chosen and not public and "public_data" not in chosen:
                # The settings tested elsewhere are for means over tokens, and a preference's slope is a sum over them
                unless = "with owner or public_evaluation: public_data among the settings"
                raise ValueError(
                    f"eval_dataset must hold public pairs, by which settings are chosen ({unless}); got None"
                )
        whole = _Whole.of(train_dataset, "train_dataset")
        known = ", ".join(train_dataset.column_names)
        if owner is not None and owner not in train_dataset.column_names:
            raise ValueError(f"owner must be a column of train_dataset ({known}); got {owner!r}")
        try:
            super().__init__(model, args, private=private, train_dataset=whole, **options)
        except (KeyError, AttributeError) as error:
            raise ValueError(
                f"train_dataset must have what TRL reads; got {type(error).__name__} {error} with its columns {known}"
            ) from error
        numbers = list(self.train_dataset[_NUMBER]) if _NUMBER in self.train_dataset.column_names else []
        if sorted(numbers) != list(range(len(whole))):
            raise ValueError(
                f"train_dataset must keep each of its {len(whole)} entries while TRL prepares it; got"
                f" {len(self.train_dataset)}"
            )
        self.train_dataset = self.train_dataset.remove_columns(_NUMBER)
        if owner is not None:  # TRL may have shuffled the entries, so owners are found by the entries' numbers.
            owners = list(train_dataset[owner])
            self.train_dataset = by_user(self.train_dataset, [owners[number] for number in numbers])

    def _send_telemetry(self) -> None:
        pass  # TRL's method tells the makers of TRL that a trainer is used.


class DPZeroSFTTrainer(_TRLTrainer, SFTTrainer):  # type: ignore[misc]
    """TRL's `SFTTrainer` whose `train` is a private run.

    Args:
        model: a causal language model, with or without an adapter.
        args: a `trl.SFTConfig`.
        private: the settings of the run, as `trainer.DPZeroTrainer` takes them.
        train_dataset: a `datasets.Dataset` of what TRL's trainer takes. An entry is the unit of privacy.
        owner: the name of a column of train_dataset; if given, all entries with one value in it are one unit of
            privacy, and each entry must have a value.
        options: further arguments of TRL's trainer and of `trainer.DPZeroTrainer`, such as eval_dataset,
            processing_class, peft_config, losses and public_evaluation.

    Raises:
        ValueError: an argument is outside its range, or a private run would not honour it.
    """

    config = SFTConfig


class DPZeroDPOTrainer(_TRLTrainer, DPOTrainer):  # type: ignore[misc]
    """TRL's `DPOTrainer` whose `train` is a private run.

    Its arguments are those of `DPZeroSFTTrainer`, with a `trl.DPOConfig` as `args`. Settings are chosen from public
    pairs alone: with private="auto" and without them (`eval_dataset`) it raises ValueError.
    """

    config = DPOConfig
