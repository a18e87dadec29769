"""Private fine-tuning, supervised or by preferences, with the trainers of TRL (requires the extra `trl`).

TRL prepares the data (templates, which tokens have a loss, truncation, collators) and computes metrics;
`trainer.DPZeroTrainer` trains. Mixed precision and gradient checkpointing, which TRL turns on by default, are off.

TRL drops entries of which no token with a loss is left after truncation. Here they stay in the data set, as records
whose loss never changes. Otherwise the number of records, which is public, would depend on the text of an entry.

With preferences, the reference model is the model before training, or the model without its adapter. Its
log-probabilities are computed once, for one pair at a time. `datasets` stores them in its cache next to the data; they
are as secret as the data.
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
"""The name of a column with the entries' indices, which is added to the data set since TRL may shuffle its entries."""


# A data set from which TRL's `map` and `filter` drop no entry: otherwise the number of records, which is public, would
# depend on an entry's text. The column `_NUMBER` with the entries' indices shows whether all of them are left.
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
        # Keeps all entries, and warns of those that the arguments would drop
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


# The base of both trainers below. Each sets `config`, the TRL class that `args` must have.
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
                # Without public records "auto" takes values for losses that are means over tokens; these are sums
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
        if owner is not None:  # TRL may have shuffled the entries; `numbers` has their indices
            owners = list(train_dataset[owner])
            self.train_dataset = by_user(self.train_dataset, [owners[number] for number in numbers])

    def _send_telemetry(self) -> None:
        pass  # TRL's own method reports usage to the makers of TRL.


class DPZeroSFTTrainer(_TRLTrainer, SFTTrainer):  # type: ignore[misc]
    """A TRL `SFTTrainer` whose `train` makes a private run.

    Args:
        model: a causal language model, with or without an adapter.
        args: a `trl.SFTConfig`.
        private: the settings, a mapping of arguments of `make_private_with_epsilon`, or "auto" (`DPZeroTrainer`).
        train_dataset: a `datasets.Dataset` in a form that TRL's trainer takes. The unit of privacy is an entry.
        owner: None, or a column of train_dataset: all entries with the same value in it are one unit of privacy.
        options: further arguments of TRL's trainer and of `trainer.DPZeroTrainer`, such as eval_dataset,
            processing_class, peft_config, losses and public_evaluation.

    Raises:
        ValueError: an argument is outside its range, or asks for something that a private run does not do.
    """

    config = SFTConfig


class DPZeroDPOTrainer(_TRLTrainer, DPOTrainer):  # type: ignore[misc]
    """A TRL `DPOTrainer` whose `train` makes a private run.

    The arguments are those of `DPZeroSFTTrainer`, but `args` is a `trl.DPOConfig`. If `private` is "auto" or has
    settings="auto", settings are chosen by public pairs of answers, and ValueError is raised without any: they are the
    key public_data of `private` or, if `owner` is not given and the option public_evaluation is not True, the pairs of
    the option eval_dataset.
    """

    config = DPOConfig
