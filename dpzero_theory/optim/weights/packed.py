"""Training of quantised linear layers (*packed* layers), whose weight W in 4-bit or 8-bit integers is never changed.

After `train_packed`, a layer's output is x (W + M)^T in place of x W^T, where M is the sum of all changes that training
has made: each is an amount times a low-rank direction. The layer's own kernel computes x W^T, and x M^T is computed
from the factors of the directions. The layer's trainable parameter `packed_moves` is the list of these changes, a
float64 tensor of two columns:

    row      entries
    0        the shape of W: outputs, inputs
    1        the rank of the directions, and the index of the layer's first sign in a direction (`Directions.place`)
    2, 3     the run's public key, 32 bits an entry, lowest first
    4, ...   one change: the index of a direction in the run, and the amount

So each change takes 16 bytes in a checkpoint. N changes of rank rho take N rho (outputs + inputs) bits of memory in a
layer, and the time of a product with N rho (outputs + inputs) numbers. With more than outputs * inputs/(outputs +
inputs) changes it is better to train unpacked weights.
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
"""The name of the parameter in which a packed layer lists the changes that training has made."""
_HEAD = 4  # The number of rows of `packed_moves` before the first change
_CHUNK = 1 << 20
"""The most signs that are converted from bits to numbers at a time."""


def train_packed(module: nn.Module) -> list[str]:
    """Make the weights of all quantised linear layers in a module trainable, in place; return the layers' names.

    A layer counts as quantised if it has integers `in_features` and `out_features`, and its `weight` is not a plain
    floating-point tensor of 16, 32 or 64 bits. Examples are the layers `Linear4bit` and `Linear8bitLt` of bitsandbytes,
    and those of torchao. Each gets a trainable float64 parameter `packed_moves`, the list of the low-rank changes that
    training adds to `weight`, and a forward hook that adds their product with the input to the output. `weight` itself
    is never written. Other parameters stay as they are. The run needs low-rank directions and finite differences.

    Args:
        module: the module, with its final weights, device and type: a later cast would change `packed_moves` too.

    Raises:
        ValueError: there is no quantised linear layer, or one of them is trainable already.
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
    # Whether `part` is a linear layer with a quantised weight. A module around such a layer, as peft has, is none.
    if not all(isinstance(getattr(part, name, None), int) for name in ("in_features", "out_features")):
        return False
    weight: Any = getattr(part, "weight", None)
    plain = type(weight) in (Tensor, nn.Parameter) and weight.is_floating_point() and weight.element_size() > 1
    return not plain and not any(hasattr(child, "in_features") for child in part.children())


def shape_of(name: str, parameter: nn.Parameter) -> tuple[int, ...]:
    """Return the shape of the weights that a run trains by the trainable parameter called `name`.

    It is the shape of `parameter`. For the parameter `packed_moves` of a quantised linear layer (`train_packed`) it is
    the shape (outputs, inputs) of the layer's weight. Raises ValueError if that parameter is not float64.
    """
    if not is_packed(name):
        return tuple(parameter.shape)
    if parameter.dtype != torch.float64:
        raise ValueError(f"{name} must be float64 (cast the module before train_packed); got {parameter.dtype}")
    rows, columns = parameter[0].tolist()
    return int(rows), int(columns)


def is_packed(name: str) -> bool:
    """Whether a parameter with this name, such as "layer.packed_moves", is one that `train_packed` gives to a quantised
    linear layer: the list of the changes that training has made to the layer's weight."""
    return name.rpartition(".")[2] == NAME


def move_(parameter: nn.Parameter, directions: Directions, first: int, amounts: Sequence[tuple[int, float]]) -> None:
    """Add changes W <- W + amount * u to the list that a quantised linear layer keeps. Its weight W is not written.

    Args:
        parameter: the parameter `packed_moves` of the layer, which is changed.
        directions: the low-rank directions of the run.
        first: the index of the first sign that is for this layer among all signs of a direction (`Directions.place`).
        amounts: the changes, pairs (index of a direction u in the run, amount).

    Raises:
        ValueError: the list has changes along the directions of another run.
    """
    key = [directions.key >> shift & 0xFFFFFFFF for shift in (0, 32, 64, 96)]
    head = [[directions.law.rank, first], key[:2], key[2:]]
    added = torch.tensor([*head, *amounts], dtype=torch.float64, device=parameter.device)
    if len(parameter) > _HEAD and not torch.equal(parameter[1:_HEAD], added[:3]):
        raise ValueError("a packed layer must not have moves of another run: begin with a new module")
    parameter.data = torch.cat([parameter.data[:1], added[:3], parameter.data[_HEAD:], added[3:]])


def save_adapter(module: nn.Module, folder: str | os.PathLike[str]) -> None:
    """Save what training has added to quantised linear layers as a LoRA adapter of peft for the quantised model.

    The layers are those of `train_packed`. In each the adapter is the sum of all changes, one for each direction of
    each step, in float32. Its rank is the number of changes times the rank of the directions, but at most the smaller
    side of the layer's weight. Requires safetensors (the extra `hf`).

    Args:
        module: the trained module. The adapter has the names of its layers.
        folder: where adapter_model.safetensors and adapter_config.json are written; created if it does not exist.

    Raises:
        ValueError: the module has no layer that `train_packed` made trainable and a run has changed.
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
    """Return output + x M^T, where M, shape (outputs, inputs), is what training has added to a quantised layer.

    While a run evaluates the layer at shifted weights, x times the shift is added too (`shifted.Shifted`).

    Args:
        output: the output of the layer's kernel for x, shape (..., outputs).
        x: the input of the layer, shape (..., inputs).
        moves: the layer's parameter `packed_moves`, the list of the changes whose sum is M.
        hook: the layer's forward hook, which caches the random signs of these changes.
    """
    if has_torch_function((x, moves)):  # `shifted.Shifted` is active, and adds x times the shift of the weight
        return handle_torch_function(moved, (x, moves), output, x, moves, hook)
    for left, right in hook.factors(moves.detach(), x.dtype):
        output = output + (x @ right.T @ left).to(output.dtype)
    return output


# The forward hook of a quantised linear layer of `train_packed`. It adds x M^T to the output x W^T of the layer's
# kernel, where M is what training has added to the weight W.
class _Hook:
    def __init__(self) -> None:
        self._known: Any = None
        self._held: Any = None  # The tensor that was read last, kept so that its address stays its own
        self._head: list[list[float]] = []
        self._numbers: list[float] = []
        self._bits = torch.zeros(0)  # For each change its direction's signs, those of rows first, 8 in a byte

    def __call__(self, layer: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any], output: Tensor) -> Tensor:
        x = args[0] if args else next(iter(kwargs.values()))
        return moved(output, x, layer.packed_moves, self)

    def factors(self, moves: Tensor, dtype: torch.dtype) -> Iterator[tuple[Tensor, Tensor]]:
        # Yields pairs (left, right) of shapes (terms, outputs) and (terms, inputs). The sum of left^T right over the
        # pairs is what training has added to the layer's weight. `moves` is the layer's parameter `packed_moves`.
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
        # Caches the signs of the directions in the list `moves`. Only the signs of new changes are computed.
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
