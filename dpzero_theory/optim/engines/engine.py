"""Losses that an engine evaluates: a server that holds the model and is sent the trained weights at every point.

A run with an `Engine` has no loss function. Its module gives the trained parameters alone, such as the LoRA factors of
peft; the frozen parameters may be on the meta device. Everything on which privacy rests stays in the run's process: it
pays, draws the secret batch, clips, adds noise, records what is released, and moves the weights. The engine is sent
weights and records, and returns losses.

Before a run begins, `losses.isolation` compares an engine's losses as it compares those of a function: of a record
again, beside others, and alone. `engines.probe` also compares an engine of a language model with the model itself.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from dpzero_theory.check import Array

Adapter = Mapping[str, Tensor]
"""The trained parameters at one point, by their names in the run's module."""


class EngineError(BaseException):
    """Raised if an engine cannot evaluate losses any more, whatever the records are.

    It is no Exception: a run counts a record whose loss raises an Exception as 0, and would go on spending its budget.
    """


class Engine(ABC):
    """A server of a model, which evaluates the losses of a run (`engine=` of `make_private` and `DPZeroTrainer`).

    Attributes:
        name: the engine, its version, the model and the number type. It is written into the run's file, and a run can
            only be resumed with an engine of the same name.
        rounding: the distance from 1 to the next number of the coarsest number type that the engine computes with, such
            as 2^-23 for float32.
        invariant: whether a record's loss has the same bits whatever other records are evaluated with it. The run's
            file then says that no record's loss depends on another record, to the last bit (isolation "exact").
        longest: the largest number of tokens of a record, if `engines.probe` is to compare the engine with the run's
            module, a causal language model of transformers; 0 if it is not.
    """

    name: str
    rounding: float = 2.0**-23
    invariant: bool = False
    longest: int = 0

    @abstractmethod
    def scores(self, adapters: Sequence[Adapter], records: Sequence[Any]) -> Array:
        """Return the losses of records at several points, float64 of shape (points, records).

        The loss of a record that the engine cannot evaluate, such as one that is too long, is NaN, which a run counts
        as 0.

        Args:
            adapters: for each point, which is a value of the trained weights, a mapping from the names of the run's
                module's trainable parameters to tensors with their values there.
            records: the records, as the run's data set returns them.

        Raises:
            EngineError: the engine cannot evaluate any record.
        """

    def parts(self) -> "Sequence[Engine]":
        """Return the engines among which `scores` divides records; by default this engine alone."""
        return [self]

    def __call__(self, module: nn.Module, batch: Sequence[Any]) -> Tensor:
        """Return the losses of a batch with the trainable parameters of `module`, float64 of shape (batch,)."""
        return torch.from_numpy(self.scores([trained(module)], batch)[0])


def trained(module: nn.Module) -> dict[str, Tensor]:
    """Return copies of the trainable parameters of a module, by name, with the values that its forward reads: inside
    the context manager `Weights.shifted` these are the shifted ones."""
    return {name: p.clone().detach() for name, p in module.named_parameters() if p.requires_grad}


class TorchEngine(Engine):
    """An engine that evaluates a loss function with a torch module of its own, one point after the other.

    Args:
        module: a module whose trainable parameters have the names that they have in the run's module. It is put into
            eval mode.
        losses: a function (module, batch) -> a tensor of shape (batch,), whose entry i is the loss of record i.
        collate: a function from a list of records to the batch that `losses` takes.
    """

    def __init__(self, module: nn.Module, losses: Callable[..., Any], collate: Callable[..., Any] = list) -> None:
        self._module, self._losses, self._collate = module.eval(), losses, collate
        dtypes = sorted({p.dtype for p in module.parameters() if p.is_floating_point()}, key=str)
        kinds = " ".join(str(dtype).removeprefix("torch.") for dtype in dtypes)
        self.name = f"torch {torch.__version__} {type(module).__name__} {kinds}"
        self.rounding = max(torch.finfo(dtype).eps for dtype in dtypes)

    def scores(self, adapters: Sequence[Adapter], records: Sequence[Any]) -> Array:
        batch, found = self._collate(list(records)), []
        with torch.no_grad():
            for adapter in adapters:
                for name, parameter in self._module.named_parameters():
                    if name in adapter:
                        parameter.copy_(adapter[name])
                found.append(self._losses(self._module, batch).double().cpu().numpy())
        return np.stack(found)
