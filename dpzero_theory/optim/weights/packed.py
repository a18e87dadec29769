"""Whole weights of packed layers: linear layers whose kernels read 4-bit or 8-bit integers, which are never unpacked.

A packed layer computes x W^T by a kernel of its own. `train_packed` gives it a trainable parameter `packed_moves`, and
from then on its output is x (W + M)^T, where M is the sum of all moves: of directions u = a b^T of low rank, each times
an amount. W stays as it is, and x M^T is computed from the factors of the directions. `packed_moves` is not M, but the
list of the moves, from which M follows:

    row      entries
    0        the shape of W: outputs, inputs
    1        the rank of the directions, and the number of the layer's first sign among those of a direction
    2, 3     the run's public key, 32 bits an entry, lowest first
    4, ...   the number of a direction, and the amount by which it is multiplied

So a checkpoint, a fingerprint or a replay of the trained weights has 16 bytes for each move of a layer. N moves of rank
rho take N rho (outputs + inputs) bits of memory in a layer, and the time of a product with N rho (outputs + inputs)
numbers in addition to that with W. Beyond outputs * inputs/(outputs + inputs) moves unpacked weights are the better
choice.
"""

import json
import math
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.overrides import handle_torch_function, has_torch_function
from torch.utils._python_dispatch import _disable_current_modes

from dpzero_theory.optim.weights.directions import Directions

NAME = "packed_moves"
"""The name of the parameter of a packed layer that holds its moves."""
_HEAD = 4  # So many rows of that parameter come before the first move.
_CHUNK = 1 << 20
"""The most signs that are unpacked to numbers at a time."""


def train_packed(module: nn.Module) -> list[str]:
    """Make the whole weights of all packed linear layers in a module trainable, in place.

    A layer counts as packed if it has whole numbers `in_features` and `out_features`, and its `weight` is no plain
    floating-point tensor of 16, 32 or 64 bits: bitsandbytes' `Linear4bit` and `Linear8bitLt`, layers quantised by
    torchao, and others of this kind. `weight` is never written: the layer gets a trainable float64 parameter
    `packed_moves`, the list of low-rank changes that training adds to it, which checkpoints have, and a forward hook
    that adds their product with the input to the output. Other parameters stay as they are. Do not cast the module to
    another type afterwards: a run refuses a list that is not float64. It needs low-rank directions and finite
    differences.

    Args:
        module: the module, with its final weights and on its final device.

    Returns:
        The names of the layers.

    Raises:
        ValueError: there is no packed layer, or one of them is trained already.
    """
    found = {name: part for name, part in module.named_modules() if _is_packed(part)}
    if not found:
        raise ValueError("module must have a packed linear layer (in_features, out_features, quantised weight)")
    for name, part in found.items():
        if hasattr(part, NAME):
            raise ValueError(f"train_packed must be called once; {name} has moves already")
    for part in found.values():
        device = next((held.device for held in (*part.parameters(), *part.buffers())), torch.device("cpu"))
        rows = torch.zeros(_HEAD, 2, dtype=torch.float64, device=device)
        rows[0] = torch.tensor([part.out_features, part.in_features])
        part.register_parameter(NAME, nn.Parameter(rows))
        part.register_forward_hook(_Hook(), with_kwargs=True)
    return list(found)


def _is_packed(part: nn.Module) -> bool:
    # A linear layer with a quantised weight; no module that has such a layer inside, as peft's layers have.
    if not all(isinstance(getattr(part, name, None), int) for name in ("in_features", "out_features")):
        return False
    weight: Any = getattr(part, "weight", None)
    plain = type(weight) in (Tensor, nn.Parameter) and weight.is_floating_point() and weight.element_size() > 1
    return not plain and not any(hasattr(child, "in_features") for child in part.children())


def shape_of(name: str, parameter: nn.Parameter) -> tuple[int, ...]:
    """Return the shape of the weights that a run trains by a trainable parameter with this name: the parameter's own
    or, for the parameter `packed_moves` of a quantised linear layer (`train_packed`), the shape (outputs, inputs) of
    the layer's weight.

    Raises ValueError if `packed_moves` was cast from float64 to another type.
    """
    if not is_packed(name):
        return tuple(parameter.shape)
    if parameter.dtype != torch.float64:
        raise ValueError(f"{name} must be float64 (cast the module before train_packed); got {parameter.dtype}")
    rows, columns = parameter[0].tolist()
    return int(rows), int(columns)


def is_packed(name: str) -> bool:
    """Whether a parameter with this name in a model, such as "layer.packed_moves", is the one that `train_packed` gives
    to a quantised linear layer: the list of the changes that training has added to the layer's weight."""
    return name.rpartition(".")[2] == NAME


def move_(parameter: nn.Parameter, directions: Directions, first: int, amounts: Sequence[tuple[int, float]]) -> None:
    """Add moves W <- W + amount * u, along directions u, to the list that a quantised linear layer keeps for its weight
    W, which itself is not written.

    Args:
        parameter: the parameter `packed_moves` of the layer, which is changed.
        directions: the directions of the run, of low rank: each is made of random signs for all trained parameters.
        first: the index, from 0, of the first sign that is for this layer in the row of all signs of a direction
            (`Directions.place`).
        amounts: the moves, pairs (number of a direction u, amount).

    Raises:
        ValueError: the layer's list has moves along the directions of another run.
    """
    key = [directions.key >> shift & 0xFFFFFFFF for shift in (0, 32, 64, 96)]
    head = [[directions.law.rank, first], key[:2], key[2:]]
    added = torch.tensor([*head, *amounts], dtype=torch.float64, device=parameter.device)
    if len(parameter) > _HEAD and not torch.equal(parameter[1:_HEAD], added[:3]):
        raise ValueError("a packed layer must not have moves of another run: begin with a new module")
    parameter.data = torch.cat([parameter.data[:1], added[:3], parameter.data[_HEAD:], added[3:]])


def save_adapter(module: nn.Module, folder: str | os.PathLike[str]) -> None:
    """Write what training has added to quantised linear layers as a low-rank adapter in peft's format, which serves on
    the quantised model.

    `train_packed` made the layers trainable. A step of a run with K directions changes the weight W of each of them by
    K moves W <- W + amount * u along directions u of low rank, which the layer keeps as a list. The adapter is their
    sum, exact up to the rounding of float32. Its rank in a layer is the number of moves, steps times K, times the rank
    of the directions, but at most the smaller side of W. Needs safetensors, which the extra `hf` brings.

    Args:
        module: a module whose quantised layers were trained so; the adapter has the names of its layers.
        folder: where adapter_model.safetensors and adapter_config.json are written; it is made if it is not there.

    Raises:
        ValueError: no layer was trained so.
    """
    from safetensors.torch import save_file

    tensors, ranks = {}, {}
    for name, part in module.named_modules():
        hook = next((hook for hook in part._forward_hooks.values() if isinstance(hook, _Hook)), None)
        parts = [] if hook is None else list(hook.factors(part.packed_moves.detach(), torch.float32))
        if not parts:
            continue
        up, down = (torch.cat(factors).cpu() for factors in zip(*parts, strict=True))
        up = up.T
        if len(down) > min(len(up), down.shape[1]):
            whole = up @ down
            up, down = (whole, torch.eye(len(whole.T))) if len(whole) > len(whole.T) else (torch.eye(len(whole)), whole)
        for letter, value in (("A", down), ("B", up)):
            tensors[f"base_model.model.{name}.lora_{letter}.weight"] = value.contiguous()
        ranks[name] = len(down)
    if not ranks:
        raise ValueError("module must have packed layers with moves (train_packed, then a run); got none")
    most = max(ranks.values())
    config = {
        "peft_type": "LORA", "r": most, "lora_alpha": most, "rank_pattern": ranks, "alpha_pattern": ranks,
        "target_modules": list(ranks), "bias": "none", "inference_mode": True,
    }  # fmt: skip
    place = Path(folder)
    place.mkdir(parents=True, exist_ok=True)
    save_file(tensors, place / "adapter_model.safetensors")
    (place / "adapter_config.json").write_text(json.dumps(config, indent=2))


def moved(output: Tensor, x: Tensor, moves: Tensor, hook: "_Hook") -> Tensor:
    """Return output + x M^T, where M, of shape (outputs, inputs), is what training has added to the weight of a
    quantised linear layer: the sum of its moves, each an amount times a direction of low rank.

    While a run evaluates the layer at a shifted weight, x times the shift is added too (`shifted.Shifted`).

    Args:
        output: what the layer's kernel returns for x, shape (..., outputs).
        x: the input of the layer, shape (..., inputs).
        moves: the parameter `packed_moves` of the layer, the list of its moves.
        hook: the layer's hook, which keeps the random signs of which their directions are made.
    """
    if has_torch_function((x, moves)):  # `shifted.Shifted` is active, and adds x times the shift of the weight
        return handle_torch_function(moved, (x, moves), output, x, moves, hook)
    for left, right in hook.factors(moves.detach(), x.dtype):
        output = output + (x @ right.T @ left).to(output.dtype)
    return output


# The forward hook of a quantised linear layer that `train_packed` made trainable. To the output x W^T of the layer's
# kernel it adds x M^T, where M is the sum of what training has added to the weight W.
class _Hook:
    def __init__(self) -> None:
        self._known: Any = None
        self._held: Any = None  # the tensor that was read, kept alive so that no other gets the address in `_known`
        self._head: list[list[float]] = []
        self._numbers: list[float] = []
        self._bits = torch.zeros(0)  # for each move the signs a, then b, eight in a byte

    def __call__(self, layer: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any], output: Tensor) -> Tensor:
        x = args[0] if args else next(iter(kwargs.values()))
        return moved(output, x, layer.packed_moves, self)

    def factors(self, moves: Tensor, dtype: torch.dtype) -> Iterator[tuple[Tensor, Tensor]]:
        # Pairs of shapes (terms, outputs) and (terms, inputs), whose products left^T right sum to what training has
        # added to the layer's weight. It follows from `moves`, the layer's parameter `packed_moves`.
        if len(moves) == _HEAD:
            return
        known = moves.data_ptr(), moves._version, len(moves)
        if known != self._known:
            with _disable_current_modes():
                self._read(moves)
            self._known, self._held = known, moves
        sides = self._rank * self._rows, self._rank * self._columns
        table, at_once = self._table.to(dtype), max(1, _CHUNK // sum(sides))
        amounts = (moves[_HEAD:, 1] / math.sqrt(self._rank)).to(dtype).repeat_interleave(self._rank)
        for first in range(0, len(self._bits), at_once):
            signs = table[self._bits[first : first + at_once].long()].flatten(1)
            left, right = signs[:, : sides[0]], signs[:, sides[0] : sum(sides)]
            scale = amounts[first * self._rank : (first + at_once) * self._rank, None]
            yield left.reshape(-1, self._rows) * scale, right.reshape(-1, self._columns)

    def _read(self, moves: Tensor) -> None:
        # Keeps the signs of the directions along which the layer was moved; only those of new moves are computed.
        head, numbers = moves[:_HEAD].tolist(), moves[_HEAD:, 0].tolist()
        kept = len(self._numbers) if head == self._head and numbers[: len(self._numbers)] == self._numbers else 0
        self._rows, self._columns, self._rank, first = (int(value) for row in head[:2] for value in row)
        key = sum(int(part) << 32 * place for place, part in enumerate([*head[2], *head[3]]))
        directions, count = Directions(key, f"low-rank:{self._rank}"), self._rank * (self._rows + self._columns)
        new = [torch.from_numpy(directions.bits(int(number), first, count)) for number in numbers[kept:]]
        self._bits = torch.stack([*self._bits[:kept], *(bits.to(moves.device) for bits in new)])
        self._head, self._numbers = head, numbers
        octets = np.unpackbits(np.arange(256, dtype=np.uint8)[:, None], axis=1, bitorder="little")
        self._table = torch.from_numpy(2.0 * octets - 1).to(moves.device)
