"""One loss for each record, from a Trainer: by the model's task, or by the Trainer's own `compute_loss`.

The Trainer's `compute_loss` is called on copies of the Trainer, so that nothing is left in it. The model is evaluated.
"""

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
"""How many pairs of records are evaluated to see whether a loss is a mean."""


def known_losses(trainer: Trainer) -> Losses | None:
    """Return the loss function of single records, of which a Trainer's `compute_loss` is the mean; None if that is not
    known.

    It is known if `compute_loss` is the method of transformers' Trainer, or of TRL's SFT or DPO trainer, and the
    Trainer has no `compute_loss_func`. Raises ValueError if `losses_for` does not know the task of the Trainer's model.
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

    What `compute_loss` assigns to the Trainer, appends to one of its lists, or logs is dropped, since it is computed
    from private records.

    Args:
        trainer: a Trainer with a `compute_loss` of its own.
        data: the records, as the Trainer's collator takes them.

    Returns:
        The pair (losses, collate) as `make_private` takes them: a batch is a list with a batch for each record.

    Raises:
        ValueError: there are several processes; or `compute_loss` of two records is not between its values for each
            alone, for one of four pairs, so that it is no mean. A loss that compares records, such as a contrastive
            one, gives no record a loss of its own.
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
    trainer.model.eval()  # A run evaluates in this mode, so the test does, too.
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
    # The loss of a batch of two records must be between the losses of the two. `losses` takes a list of batches and has
    # one number for each; `join` makes a batch of a list of records. Pairs whose losses are not finite do not count.
    places = [pair * len(data) // _PAIRS for pair in range(_PAIRS)]
    for place in places:
        two = [data[place], data[(place + len(data) // 2) % len(data)]]
        *own, both = losses([*(join([record]) for record in two), join(two)]).tolist()
        # A difference up to eps^(2/3) (|loss| + 0.1), with the eps of float32, is taken for rounding.
        slack = float(np.finfo(np.float32).eps) ** (2 / 3) * (max(map(abs, own)) + 0.1)
        if math.isfinite(sum(own)) and not min(own) - slack <= both <= max(own) + slack:
            raise ValueError("got another number for two records together")


def _twin(trainer: Trainer) -> Any:
    # A copy, on which a private run calls `compute_loss`: what that method logs, or keeps in the Trainer's attributes,
    # lists and dictionaries, is computed from private records, and must not be left in the Trainer that callers see.
    found: Any = copy.copy(trainer)
    for name, value in vars(found).items():
        if name not in ("train_dataset", "eval_dataset"):  # No loss changes a data set, which may be a long list.
            vars(found)[name] = _apart(value)
    found.log = lambda *logs, **named: None
    return found


def _apart(value: Any) -> Any:
    if isinstance(value, dict):
        found = copy.copy(value)  # A copy of a defaultdict keeps its default factory, which a new dict would lack.
        found.update({name: _apart(part) for name, part in value.items()})
        return found
    return copy.copy(value) if isinstance(value, list | set | deque) else value
