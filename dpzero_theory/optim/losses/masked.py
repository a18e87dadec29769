"""Masked language modelling: masks are drawn by record and step, so that a record's loss depends on no other record.

A collator such as transformers' `DataCollatorForLanguageModeling(mlm=True)` masks tokens at random, for all records of
a batch together. So a record's loss would change with each reading, and its mask would depend on the other records.
Here the collator masks each record by itself, with the global random generators seeded by the run's secret key, the
release and the record's number; they have their earlier states afterwards. So all points of a step see one mask, and a
resumed run draws the same ones.
"""

import copy
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from dpzero_theory.optim.losses.records import Data, read, seeded


class Masked:
    """A data set whose records are the records of `data`, masked by a collator.

    Args:
        data: the records, as the collator takes them.
        collate: a collator of transformers that masks tokens at random: `Masked.by(collate)` is true.
    """

    @staticmethod
    def by(collate: object) -> bool:
        """Whether `collate` masks tokens at random, as a collator with a true attribute `mlm` and a `tokenizer`
        does."""
        return bool(getattr(collate, "mlm", False)) and hasattr(collate, "tokenizer")

    def __init__(self, data: Data, collate: Any) -> None:
        self._data, self._collate = data, copy.copy(collate)
        # A generator of the collator's own would make a mask depend on the records that were masked before.
        self._collate.seed = self._collate.generator = None
        self._tokenizer = collate.tokenizer

    def __len__(self) -> int:
        return len(self._data)

    def __getitem__(self, index: Any) -> dict[str, Tensor]:
        return self.drawn(index, index)

    def drawn(self, index: int, seed: int) -> dict[str, Tensor]:
        """Return the masked record with the number `index`, from 0: tensors by name, without an axis for the batch.

        The mask is drawn from `seed`, an integer in [0, 2^64).
        """
        (record,) = read(self._data, [index], seed.to_bytes(8, "little"))
        with seeded(seed):
            batch: Mapping[str, Tensor] = self._collate([record])
        return {name: value[0] for name, value in batch.items()}

    def collate(self, records: Sequence[Mapping[str, Tensor]]) -> dict[str, Tensor]:
        """Return the batch of one or more `records` that `drawn` returned: tensors by name, of shape (batch, length),
        or (batch,) for a number. Shorter records are padded at the tokenizer's padding side, labels with -100."""
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
