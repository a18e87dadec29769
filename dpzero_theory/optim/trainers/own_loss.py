"""The losses of single records from a Trainer: from the task of its model, or from its own `compute_loss`."""

import copy
import math
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial, wraps
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from transformers import Trainer

from dpzero_theory.optim.losses.evaluation import Losses
from dpzero_theory.optim.losses.records import Data
from dpzero_theory.optim.losses.task_losses import losses_for, preference_losses

_PAIRS = 4
"""The number of pairs of records on which `one_by_one` tests whether a loss is a mean over records."""


def known_losses(trainer: Trainer) -> Losses | None:
    """Return a loss function whose mean over a batch is the Trainer's `compute_loss`; None if none is known.

    It takes the module and a collated batch, and returns the losses of the records, shape (batch,). It is known if
    `compute_loss` is the method of transformers' Trainer or of TRL's SFTTrainer or DPOTrainer, and the Trainer has no
    compute_loss_func. Raises ValueError if `losses_for` does not know the task of the Trainer's model.
    """
    if trainer.compute_loss_func is not None:
        return None
    match type(trainer).compute_loss.__module__:
        case "transformers.trainer" | "trl.trainer.sft_trainer":
            return losses_for(trainer.model)
        case "trl.trainer.dpo_trainer":
            return preference_losses(trainer.args.beta)
    return None


def one_by_one(trainer: Trainer, data: Data) -> tuple[Losses, Callable[[Sequence[Any]], Any]]:
    """Return a loss function and a collate function that call the Trainer's `compute_loss` for one record at a time.

    `compute_loss` is called on a copy of the Trainer. What it assigns to the Trainer, appends to its lists, or logs is
    lost, since it depends on private records.

    Args:
        trainer: a Trainer with its own `compute_loss`.
        data: the records, as the Trainer's collator takes them. Up to eight are evaluated here.

    Returns:
        The pair (losses, collate) for `make_private`. collate(records) is a list with one batch for each record, and
        losses(module, batches) a tensor with one loss for each of them.

    Raises:
        ValueError: there are several processes; or `compute_loss` is not a mean over records, as a contrastive loss is
            not: for one of four pairs its value for both records is not between its values for each.
    """
    if trainer.args.world_size > 1:
        raise ValueError("losses must be given where there are several processes: compute_loss may wait for all")
    join = trainer._get_collator_with_removed_columns(trainer.data_collator, "training")

    @wraps(trainer.compute_loss_func or type(trainer).compute_loss)
    def losses(module: nn.Module, batches: Sequence[Any]) -> Tensor:
        found = []
        for batch in batches:
            twin = _twin(trainer)
            loss = twin.compute_loss(module, twin._prepare_inputs(batch))
            if not isinstance(loss, Tensor) or loss.numel() != 1:
                raise ValueError(f"got {type(loss).__name__} in place of one number")
            found.append(loss.reshape(()))
        return torch.stack(found)

    training = [part for part in trainer.model.modules() if part.training]
    trainer.model.eval()  # As in a run
    try:
        with torch.no_grad():
            _require_between(partial(losses, trainer.model), join, data)
    except Exception as error:
        said = "" if type(error) is ValueError else f"{type(error).__name__}: "
        raise ValueError(
            f"compute_loss must be a mean of the records' own losses; {said}{' '.join(str(error).split()):.150}: give"
            " losses, a function (module, batch) -> one loss for each record"
        ) from None
    finally:
        for part in training:
            part.training = True
    return losses, lambda records: [join([record]) for record in records]


def _require_between(
    losses: Callable[[Sequence[Any]], Tensor], join: Callable[[Sequence[Any]], Any], data: Data
) -> None:
    # Raises ValueError if, for one of four pairs of records, the loss of both together is not between their own losses.
    # `losses` takes a list of batches and returns one number for each; `join` makes a batch of a list of records. Pairs
    # with losses that are not finite are skipped.
    places = [pair * len(data) // _PAIRS for pair in range(_PAIRS)]
    for place in places:
        two = [data[place], data[(place + len(data) // 2) % len(data)]]
        *own, both = losses([*(join([record]) for record in two), join(two)]).tolist()
        # Differences up to eps^(2/3) (|loss| + 0.1) may be rounding, where eps is that of float32.
        slack = float(np.finfo(np.float32).eps) ** (2 / 3) * (max(map(abs, own)) + 0.1)
        if math.isfinite(sum(own)) and not min(own) - slack <= both <= max(own) + slack:
            raise ValueError("got another number for two records together")


def _twin(trainer: Trainer) -> Any:
    # Returns a copy of the Trainer, on which a private run calls `compute_loss`. What that method logs or stores in the
    # Trainer's attributes, lists and dictionaries depends on private records, and must not stay in the original.
    found: Any = copy.copy(trainer)
    for name, value in vars(found).items():
        if name not in ("train_dataset", "eval_dataset"):  # Not copied, since they may be long lists
            vars(found)[name] = _apart(value)
    found.log = lambda *logs, **named: None
    return found


def _apart(value: Any) -> Any:
    if isinstance(value, dict):
        found = copy.copy(value)  # Keeps the default factory of a defaultdict
        found.update({name: _apart(part) for name, part in value.items()})
        return found
    return copy.copy(value) if isinstance(value, list | set | deque) else value
