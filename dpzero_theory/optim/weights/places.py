"""Where in memory this process holds the trainable parameters."""

import itertools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from numpy.typing import NDArray
from torch import Tensor

from dpzero_theory.optim.weights.shards import piece


@dataclass(frozen=True)
class Place:
    """Says where in memory this process holds its piece of a trainable parameter.

    name, index: the parameter's name, and its place among the trainable ones. tensor: the piece, which begins with the
    parameter's coordinate `origin` (0 unless it is sharded), and fills the elements start, ..., stop - 1 of its
    storage. array: the same memory as a flat numpy array; None where numpy cannot read and write it.
    """

    name: str
    index: int
    tensor: Tensor
    origin: int
    start: int
    stop: int
    array: NDArray[Any] | None


def storages(parameters: Mapping[str, Tensor]) -> dict[int, list[Place]]:
    """Return where this process holds its piece of each parameter: a list of places for each storage, in memory order.

    parameters: by name. The keys are numbers of storages, as `storage_of` gives them. Raises ValueError where two
    parameters share memory.
    """
    found: dict[int, list[Place]] = {}
    for index, (name, parameter) in enumerate(parameters.items()):
        held, origin = piece(parameter)
        if held.numel():
            place = Place(name, index, held, origin, *extent(held), _array(held))
            found.setdefault(storage_of(held), []).append(place)
    for places in found.values():
        places.sort(key=lambda place: place.start)
        for one, other in itertools.pairwise(places):
            if other.start < one.stop or one.tensor.dtype != other.tensor.dtype:
                raise ValueError(f"trainable parameters must not share memory; got {one.name} and {other.name}")
    return found


def extent(tensor: Tensor) -> tuple[int, int]:
    """Return the index of the first element that a tensor has in its storage, and the index after the last one."""
    start = int(tensor.storage_offset())
    if tensor.is_contiguous() or tensor.numel() == 0:
        return start, start + tensor.numel()
    return start, start + 1 + sum((n - 1) * step for n, step in zip(tensor.size(), tensor.stride(), strict=True))


def _array(tensor: Tensor) -> NDArray[Any] | None:
    if tensor.device.type != "cpu" or tensor.dtype not in (torch.float32, torch.float64) or not tensor.is_contiguous():
        return None
    found: NDArray[Any] = tensor.view(-1).numpy()
    return found


def storage_of(tensor: Tensor) -> int:
    """Return a number for a tensor's memory, the same for all tensors in it; 0 where there is none (sparse ones)."""
    try:
        return int(tensor.untyped_storage()._cdata)
    except (NotImplementedError, RuntimeError):
        return 0
