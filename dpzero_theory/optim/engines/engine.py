"""Serving engines: servers that hold a frozen language model and return the losses of records at given trained weights.

A run with an `Engine` calls it instead of a loss function, and sends it records and trained parameters, such as LoRA
factors of peft. The frozen parameters of the run's own module may be on the meta device. The run's process alone draws
the secret batch, clips, adds noise, keeps account of the privacy budget and changes the weights.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from dpzero_theory.check import Array

Adapter = Mapping[str, Tensor]
"""The values of the trained parameters, as a mapping from their names in the run's module to tensors."""


class EngineError(BaseException):
    """Raised if an engine can no longer evaluate the losses of any record.

    It is not an Exception, since a run counts a record whose loss raises an Exception as 0, and would go on with zeros.
    """


class Engine(ABC):
    """A server that evaluates the losses of a run, passed as `engine` to `make_private` or `DPZeroTrainer`.

    Attributes:
        name: a string with the engine, its version, the model and the number type. The run's file stores it, and a run
            can only be resumed with an engine of the same name.
        rounding: the unit roundoff of the coarsest number type in which the engine computes, such as 2^-23 for float32.
        invariant: whether no bit of a record's loss depends on the other records that are evaluated with it. If True,
            the run's file says that records are isolated exactly.
        longest: the largest number of tokens of a record. If it is above 0, `engines.probe` compares the engine with
            the run's module, a causal language model of transformers, before a run. 0 if they are not to be compared.
    """

    name: str
    rounding: float = 2.0**-23
    invariant: bool = False
    longest: int = 0

    @abstractmethod
    def scores(self, adapters: Sequence[Adapter], records: Sequence[Any]) -> Array:
        """Return the losses of records for several values of the trained parameters, as float64 of shape (adapters,
        records).

        The loss is NaN for a record that the engine cannot evaluate, such as one that is too long. A run counts NaN as
        0.

        Args:
            adapters: for each set of trained parameters, a mapping from their names in the run's module to their
                values.
            records: the records, as the run's data set returns them.

        Raises:
            EngineError: the engine cannot evaluate any record.
        """

    def parts(self) -> "Sequence[Engine]":
        """Return the engines among which this one divides the records, by default itself alone. `engines.probe` tests
        each of them."""
        return [self]

    def __call__(self, module: nn.Module, batch: Sequence[Any]) -> Tensor:
        """Return the losses of a batch of records at the trained parameters of `module`, float64 of shape (batch,)."""
        return torch.from_numpy(self.scores([trained(module)], batch)[0])


def trained(module: nn.Module) -> dict[str, Tensor]:
    """Return copies of a module's trainable parameters, by name, with the values that its forward uses (inside the
    context manager `Weights.shifted`, the shifted ones)."""
    return {name: p.clone().detach() for name, p in module.named_parameters() if p.requires_grad}


class TorchEngine(Engine):
    """An engine that evaluates a loss function with a torch module in this process, for one set of trained parameters
    at a time.

    Args:
        module: a module with the whole model, whose trained parameters have the names that they have in the run's
            module. It is put into eval mode, and `scores` overwrites these parameters.
        losses: a function (module, batch) -> losses of shape (batch,), one for each record of the batch.
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
