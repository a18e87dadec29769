"""Masked language modelling in which the mask of a record does not depend on other records.

A collator such as transformers' `DataCollatorForLanguageModeling(mlm=True)` draws the masks of a whole batch together,
and draws new ones each time a record is read. Here the collator masks one record at a time, with a seed that follows
from the run's secret key, the step and the record's index. So all evaluations of a step, and a resumed run, use the
same mask.
"""

import copy
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from dpzero_theory.optim.losses.records import Data, read, seeded


class Masked:
    """A map-style data set that holds the records of `data`, masked at random by a collator.

    Args:
        data: a map-style data set, whose records the collator takes.
        collate: a collator of transformers for which `Masked.by(collate)` is True. It is copied, and not changed.
    """

    @staticmethod
    def by(collate: object) -> bool:
        """Return whether a collate function masks tokens at random: whether it has a true attribute `mlm`, and a
        `tokenizer`."""
        return bool(getattr(collate, "mlm", False)) and hasattr(collate, "tokenizer")

    def __init__(self, data: Data, collate: Any) -> None:
        self._data, self._collate = data, copy.copy(collate)
        # A seed or generator of the collator would make masks depend on the records that were masked before.
        self._collate.seed = self._collate.generator = None
        self._tokenizer = collate.tokenizer

    def __len__(self) -> int:
        return len(self._data)

    def __getitem__(self, index: Any) -> dict[str, Tensor]:
        return self.drawn(index, index)

    def drawn(self, index: int, seed: int) -> dict[str, Tensor]:
        """Return the record with the given index, masked: a dictionary of tensors, without a batch axis.

        The mask is determined by `seed`, an integer in [0, 2^64). The states of the global random generators are
        restored.
        """
        (record,) = read(self._data, [index], seed.to_bytes(8, "little"))
        with seeded(seed):
            batch: Mapping[str, Tensor] = self._collate([record])
        return {name: value[0] for name, value in batch.items()}

    def collate(self, records: Sequence[Mapping[str, Tensor]]) -> dict[str, Tensor]:
        """Return the batch of one or more masked records, which `drawn` has returned, as a dictionary of tensors.

        Tensors have shape (batch, length), or (batch,) if a record has a single number. Shorter records are padded on
        the tokenizer's padding side, and their labels with -100.
        """
        padding = {
            "input_ids": self._tokenizer.pad_token_id,
            "token_type_ids": getattr(self._tokenizer, "pad_token_type_id", 0),
            "labels": -100,  # Torch and transformers leave tokens with this label out of a loss.
        }
        left = getattr(self._tokenizer, "padding_side", "right") == "left"
        length = max(len(record["input_ids"]) for record in records)

        def padded(name: str, value: Tensor) -> Tensor:
            missing = length - len(value) if value.dim() else 0
            sides = (missing, 0) if left else (0, missing)
            return functional.pad(value, sides, value=padding.get(name, 0)) if missing > 0 else value

        return {name: torch.stack([padded(name, record[name]) for record in records]) for name in records[0]}
