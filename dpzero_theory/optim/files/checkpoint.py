"""A checkpoint of a run as tensors by name, which `torch.save` keeps, and safetensors' `save_file` too."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Self

import torch
from torch import Tensor

_RUN, _POSITION, _WEIGHTS, _KEPT, _UPDATE = "run.key", "run.position", "weights.", "kept.", "update."


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint of a run, which holds released information only.

    Attributes:
        key: the run's public key, in hexadecimal digits.
        position: how many releases have moved the weights.
        weights: the trainable weights, by name.
        kept: for half-precision weights in precision "master", the 16 bits by which each is finer than its type, by
            name (`Weights.state_dict`); empty otherwise.
        update: what the update rule keeps, such as momentum, by name (`Moves.state_dict`).
    """

    key: str
    position: int
    weights: Mapping[str, Tensor]
    kept: Mapping[str, Tensor]
    update: Mapping[str, Tensor] = field(default_factory=dict)

    def tensors(self) -> dict[str, Tensor]:
        """Return the whole checkpoint as tensors by name, which a file can keep."""
        return {
            _RUN: torch.tensor(list(bytes.fromhex(self.key)), dtype=torch.uint8),
            _POSITION: torch.tensor(self.position),
            **{_WEIGHTS + name: value for name, value in self.weights.items()},
            **{_KEPT + name: value for name, value in self.kept.items()},
            **{_UPDATE + name: value for name, value in self.update.items()},
        }

    @classmethod
    def of(cls, tensors: Mapping[str, Any]) -> Self:
        """Return the checkpoint whose method `tensors` returned these tensors. Raises ValueError for anything else."""
        if not {_RUN, _POSITION} <= set(tensors) or not all(isinstance(value, Tensor) for value in tensors.values()):
            raise ValueError(f"state must be of a run's state_dict; got the names {sorted(map(str, tensors))[:4]}")
        key, position = bytes(tensors[_RUN].tolist()).hex(), int(tensors[_POSITION])
        return cls(key, position, _below(tensors, _WEIGHTS), _below(tensors, _KEPT), _below(tensors, _UPDATE))


def is_checkpoint(tensors: Mapping[str, Any]) -> bool:
    """Whether tensors by name are a run's checkpoint, and not a module's weights alone."""
    return _RUN in tensors


def _below(tensors: Mapping[str, Tensor], prefix: str) -> dict[str, Tensor]:
    return {name.removeprefix(prefix): value for name, value in tensors.items() if name.startswith(prefix)}
