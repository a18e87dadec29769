"""The hidden states of records in a frozen model, computed once and kept on disk."""

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from dpzero_theory.optim.engines.texts import IGNORED
from dpzero_theory.optim.losses.identity import of_all

STATES = "frozen_states"
"""The name of the hidden states in a record of `States`."""
_AT_ONCE = 32
"""How many records are run at a time."""


class States(TensorDataset):
    """Records with their hidden states: `data[i]` is a mapping from names to tensors, and so is `data[tensor]`.

    Args:
        states: the hidden states, shape (records, tokens, width).
        inputs: the other entries of the records, by name; the records run along their first axis.
    """

    def __init__(self, states: Tensor, inputs: Mapping[str, Tensor]) -> None:
        super().__init__(states, *inputs.values())
        self.names = (STATES, *inputs)

    def __getitem__(self, index: Any) -> Any:
        return {name: tensor[index] for name, tensor in zip(self.names, self.tensors, strict=True)}


class _Reached(Exception):
    """Raised to end a forward when the hidden states are known."""


def cached(model: Any, first: int, records: Sequence[Mapping[str, Tensor]], folder: Path) -> States:
    """Return records with the hidden states that enter a layer of a causal language model.

    Args:
        model: of transformers, with `model.layers` and `model.norm`. It is run in evaluation mode on its own device.
        first: the number of the layer. With the number of all layers the states are those before the last
            normalisation, which looks at one token at a time: of each record the same number of consecutive tokens is
            kept, which include the labelled ones and the one before each.
        records: mappings to input_ids, attention_mask and labels, all of one length.
        folder: where the states are kept, as files named by a digest of the layers below and of the records.
    """
    inputs = {name: torch.stack([record[name] for record in records]) for name in records[0]}
    body, last = model.model, first == len(model.model.layers)
    below = [body.embed_tokens, *body.layers[:first]]
    weights = [value for part in below for value in part.state_dict().values()]
    places = _labelled(inputs["labels"]) if last else None

    def made() -> Tensor:
        part = body.norm if last else body.layers[first]
        rows = (slice(start, start + _AT_ONCE) for start in range(0, len(records), _AT_ONCE))
        return _at(torch.cat([entering(model, part, {k: v[row] for k, v in inputs.items()}) for row in rows]), places)

    states = kept(folder, [str(model.config), first, *weights, inputs], made)
    return States(states, {name: _at(value, places) for name, value in inputs.items()})


def kept(folder: Path, of: Sequence[Any], made: Callable[[], Tensor]) -> Tensor:
    """Return what `made` makes of the values `of`, from a file in `folder` that is named by their digest. Where there
    is none it is made, and written whole."""
    path = folder / f"{of_all(of, b'states')[:32]}.pt"
    if not path.exists():
        folder.mkdir(parents=True, exist_ok=True)
        new = path.with_suffix(f".{os.getpid()}")
        torch.save(made(), new)
        new.replace(path)
    found: Tensor = torch.load(path, mmap=True, weights_only=True)
    return found


def entering(model: Any, part: nn.Module, inputs: Mapping[str, Tensor]) -> Tensor:
    """Return the hidden states that enter `part` of the model, shape (records, tokens, width)."""
    states: list[Tensor] = []

    def reached(_: nn.Module, given: tuple[Tensor, ...]) -> None:
        states.append(given[0])
        raise _Reached

    hook = part.register_forward_pre_hook(reached)
    try:
        with torch.no_grad():
            model.eval()(**{name: value.to(model.device) for name, value in inputs.items() if name != "labels"})
    except _Reached:
        pass
    finally:
        hook.remove()
    return states[0].cpu()


def _labelled(labels: Tensor) -> Tensor:
    """Return the positions of the tokens that are kept of each record, shape (records, kept tokens)."""
    needed = labels != IGNORED
    needed[:, :-1] |= needed[:, 1:].clone()
    length = needed.shape[1]
    first, last = needed.int().argmax(1), length - 1 - needed.flip(1).int().argmax(1)
    width = int((last - first).max()) + 1
    return (last + 1 - width).clamp(min=0)[:, None] + torch.arange(width)


def _at(values: Tensor, places: Tensor | None) -> Tensor:
    """Return the entries of `values`, shape (records, tokens, ...), at the tokens `places`; all if that is None."""
    return values if places is None else values[torch.arange(len(places))[:, None], places]
