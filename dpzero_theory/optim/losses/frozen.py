"""Frozen layers run once for each record, instead of twice at every step (the `hf` extra).

    for weight in model.parameters():
        weight.requires_grad_(False)
    model.model.norm.requires_grad_(True)            # say first what is trained
    tail, train, test = cached(model, train, test, collate=collate, folder="out/states")
    make_private_with_epsilon(tail, losses_for(tail), train, ...)

The layers below the first one with a trained weight give a record the same hidden states at every step and at both ends
of a difference. `cached` runs them once. It returns the rest of the model as a module, and data sets whose records hold
the hidden states beside what they held before. The weights of that module are the model's own tensors: when they have
been trained, the model is trained, and it is the model that is evaluated elsewhere, saved and published.

Hidden states are functions of a record, so a folder of them is as secret as the records.
"""

import os
from collections.abc import Mapping
from copy import copy
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils import _pytree
from torch.utils.data import TensorDataset

from dpzero_theory import check
from dpzero_theory.optim.losses.identity import of_all
from dpzero_theory.optim.losses.records import Collate, Data, Fetch, fetcher, require_data
from dpzero_theory.optim.losses.task_losses import IGNORED

STATES = "frozen_states"
"""The name of the hidden states in a record of `States`, and of the argument by which the tail takes them."""
_ROUNDINGS = 256
"""The largest difference that may be between an output of the tail (the model without its frozen layers) and the
model's, on the records that are compared, in units of eps max(1, the largest output). eps is the distance from 1 to the
next number of the hidden states' type."""


class States(TensorDataset):
    """Records with their hidden states: `data[i]` is a mapping from names to tensors, and so is `data[tensor]`. In it
    the hidden states have the name `STATES`.

    All records have one shape, and batches need no `collate`.

    Args:
        states: the hidden states, shape (records, tokens, width).
        inputs: the other arguments of the forward, and the labels, by name; the records run along their first axis.
    """

    def __init__(self, states: Tensor, inputs: Mapping[str, Tensor]) -> None:
        super().__init__(states, *inputs.values())
        self.names = (STATES, *inputs)

    def __getitem__(self, index: Any) -> Any:
        return {name: tensor[index] for name, tensor in zip(self.names, self.tensors, strict=True)}


def cached(
    model: nn.Module,
    *data: Data,
    collate: Collate = None,
    folder: str | os.PathLike[str] | None = None,
    micro_batch: int = 32,
) -> tuple[Any, ...]:
    """Run the frozen layers of a model once for each record; return the module that is left, and its data sets.

    The layers are the longest `nn.ModuleList` of the model, as in Llama, OPT, GPT-2, BERT and RoBERTa. The module that
    is left, the tail, is a model of the same class in which the layers below the first trained one only hand over the
    hidden states that the tail is called with. Its forward takes what the model's takes, and the hidden states as
    `frozen_states`; masks, positions and last tokens are found by the model's own code. In evaluation mode its loss of
    a record is the model's, up to the rounding of the hidden states. Before any states are kept, the outputs of the
    tail and of the model are compared on some records of the first data set.

    Where no layer is trained at all (only what follows them, such as the last normalisation) and records have a label
    at each token, tokens that predict nothing are left out: each record keeps the same number of consecutive tokens,
    which include all those with a label and the one before each.

    All records have one shape, so a run on them can be asked for `isolation="exact"`, if masks are given with four
    dimensions (records, 1, tokens, tokens), beside the positions: transformers reads the values of other masks.

    Args:
        model: takes the arguments of its forward by name. What is trained has `requires_grad`; nothing of it may be
            below the first trained layer (a trained output matrix that is tied to the embedding is). Dropout is off
            while the states are computed.
        data: map-style data sets. Each batch that `collate` makes of their records must be a mapping from names to
            tensors whose first axis is the records, padded and cut to one length.
        collate: from a list of records to such a batch; torch's default_collate if None.
        folder: where the states are kept as files; made if absent. A file's name is a digest of the frozen weights and
            the records, so the states that are there already are not computed again. Without a folder they are kept in
            memory.
        micro_batch: how many records are run at a time.

    Returns:
        The tail, then a data set of type `States` for each of `data`.

    Raises:
        ValueError: no layers, no trained weight, a trained weight below the first trained layer, records that are not
            of one shape, or a model whose output changes when its lower layers only hand over their states.
    """
    check.integer("micro_batch", micro_batch)
    if not data:
        raise ValueError("data must be given: one data set or more; got none")
    for index, one in enumerate(data):
        require_data(one, f"data[{index}]")
    bottom = _Bottom(model)
    tail = bottom.tail()
    inputs = [_read(one, fetcher(one, collate), micro_batch) for one in data]
    was_training = [part for part in model.modules() if part.training]
    model.eval()
    try:
        bottom.compare(tail, {name: value[:2] for name, value in inputs[0].items()})
        weights = bottom.digest()
        found = [bottom.states(one, micro_batch, folder, weights) for one in inputs]
    finally:
        for part in was_training:
            part.training = True
    return (tail, *found)


class _Place(NamedTuple):
    """A model's stack of layers. path: the parts of its name in the model. first: the index of the first trained layer,
    or the number of layers if none is trained."""

    path: list[str]
    layers: nn.ModuleList
    first: int


class _Reached(Exception):
    """Raised to end a forward when the hidden states are known, since the rest of it is not needed."""


class _Below(nn.Module):
    """Takes the place of a frozen layer in the tail, and returns its input unchanged."""

    def forward(self, hidden: Any, *_: Any, **__: Any) -> Any:
        return hidden


class _Entry(nn.Module):
    """Takes the place of the last frozen layer in the tail; returns the hidden states that the tail was called with.

    as_tuple: whether the layers of this model return tuples. dtype: the type of the hidden states in this model.
    """

    states: Tensor | None = None

    def __init__(self, as_tuple: bool, dtype: torch.dtype) -> None:
        super().__init__()
        self._as_tuple, self._dtype = as_tuple, dtype

    def forward(self, *_: Any, **__: Any) -> Any:
        if self.states is None:
            raise ValueError(f"batches must hold {STATES}, of the data sets that `cached` returns; got none")
        found = self.states.to(self._dtype)
        return (found,) if self._as_tuple else found


def _give(tail: nn.Module, args: tuple[Any, ...], named: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """A hook before the tail's forward: it takes the hidden states out of the arguments and hands them to `_Entry`.

    args, named: the forward's arguments by position and by name, which are returned without the hidden states.
    """
    _entry(tail).states = named.pop(STATES, None)
    return args, named


def _take(tail: nn.Module, args: Any, output: Any) -> None:
    """A hook after the tail's forward: it drops the hidden states, so that no batch stays in the module.

    args, output: the forward's arguments and result, which torch hands over and which are not used.
    """
    _entry(tail).states = None


def _entry(tail: nn.Module) -> _Entry:
    return next(part for part in tail.modules() if isinstance(part, _Entry))


class _Bottom:
    """Runs the frozen layers at the bottom of a model, to compute the hidden states of records.

    The object also makes the tail: the rest of the model, which is called with such hidden states (see `cached`).
    model: the whole model.
    """

    def __init__(self, model: nn.Module) -> None:
        self.model, self.place, self._device = model, _found(model), next(model.parameters()).device

    @property
    def _positionwise(self) -> bool:
        return self.place.first == len(self.place.layers)

    def tail(self) -> nn.Module:
        """Return the tail: the model without its frozen layers, with which it shares everything else."""
        place = self.place
        tail: nn.Module = _sharing(self.model)
        part = tail
        for name in place.path[:-1]:
            own = _sharing(part._modules[name])
            part._modules[name] = own
            part = own
        entry = _Entry(False, torch.float32)
        part._modules[place.path[-1]] = nn.ModuleList(
            [*(_Below() for _ in range(place.first - 1)), entry, *place.layers[place.first :]]
        )
        tail.register_forward_pre_hook(_give, with_kwargs=True)
        tail.register_forward_hook(_take, always_call=True)
        return tail

    def compare(self, tail: nn.Module, inputs: Mapping[str, Tensor]) -> None:
        """Raise ValueError unless the tail gives a few records the outputs that the model gives them, up to rounding
        (`_ROUNDINGS`), or if a weight below the first trained layer is trained.

        tail: the module without the frozen layers. inputs: the forward's arguments for these records, by name.
        """
        states, as_tuple = self._run(inputs, grad=True)
        if states.requires_grad:
            raise ValueError(
                f"model must have frozen weights below its layer {self.place.first}, the first trained one; got a"
                " trained weight there (an output matrix may be tied to the embedding)"
            )
        _entry(tail)._as_tuple, _entry(tail)._dtype = as_tuple, states.dtype
        places = self._places(inputs)
        with torch.no_grad():
            whole = _output(self.model(**_arguments(inputs, self._device)))
            try:
                rest = _output(tail(**_arguments(_kept(inputs, places), self._device), **{STATES: _at(states, places)}))
            except Exception as error:
                got = f"{type(error).__name__}: {error}"
                raise ValueError(f"model must run on given hidden states; got {got}") from None
        wanted = _at(whole, places)
        rounding = _ROUNDINGS * torch.finfo(states.dtype).eps * max(1.0, float(wanted.abs().max()))
        gap = float((wanted - rest).abs().max()) if wanted.shape == rest.shape else float("nan")
        if not gap <= rounding:
            raise ValueError(
                "model must pass nothing but hidden states from its frozen layers to the others; got outputs that"
                f" change by {gap:.1g} without them"
            )

    def states(
        self, inputs: Mapping[str, Tensor], micro_batch: int, folder: str | os.PathLike[str] | None, weights: str
    ) -> States:
        """Return the data set of hidden states of some records, from the folder's file if it is there.

        inputs: the forward's arguments and the labels of all records, by name. micro_batch: how many records are run at
        a time. folder: where the states are kept; None for in memory. weights: the digest of the frozen weights.
        """
        places, kept = self._places(inputs), _kept(inputs, self._places(inputs))
        path = None
        if folder is not None:
            name = of_all([weights, self.place.first, dict(inputs)], b"states")[:32]
            path = Path(folder) / f"{name}.pt"
            if path.exists():
                return States(torch.load(path, mmap=True, weights_only=True), kept)
        parts = []
        for first in range(0, len(next(iter(inputs.values()))), micro_batch):
            rows = slice(first, first + micro_batch)
            found, _ = self._run({name: value[rows] for name, value in inputs.items()})
            parts.append(_at(found, None if places is None else places[rows]).cpu())
        states = torch.cat(parts)
        if path is not None:
            path.parent.mkdir(parents=True, exist_ok=True)
            new = path.with_suffix(f".{os.getpid()}")
            torch.save(states, new)
            new.replace(path)
        return States(states, kept)

    def digest(self) -> str:
        """Return a digest, as text, of everything that the hidden states depend on beside the records: the model's
        class and configuration, its buffers, and its frozen weights but for those of the layers from the first trained
        one on."""
        config = getattr(self.model, "config", None)
        frozen = {id(p) for p in self.model.parameters() if not p.requires_grad}
        above = {id(p) for layer in self.place.layers[self.place.first :] for p in layer.parameters()}
        values = [
            (name, value)
            for name, value in [*self.model.named_parameters(), *self.model.named_buffers()]
            if id(value) not in above and (id(value) in frozen or not isinstance(value, nn.Parameter))
        ]
        return of_all(
            [type(self.model).__qualname__, str(config), *(part for pair in values for part in pair)], b"states"
        )

    def _run(self, inputs: Mapping[str, Tensor], *, grad: bool = False) -> tuple[Tensor, bool]:
        """Run the frozen layers on some records. Returns the hidden states, and whether the layers return tuples.

        inputs: the forward's arguments by name. grad: whether to record gradients, which shows a trained weight below.
        """
        found: list[Any] = []

        def reached(_: nn.Module, __: Any, output: Any) -> None:
            found.append(output)
            raise _Reached

        hook = self.place.layers[self.place.first - 1].register_forward_hook(reached)
        try:
            with torch.set_grad_enabled(grad):
                self.model(**_arguments(inputs, self._device))
        except _Reached:
            pass
        finally:
            hook.remove()
        output = found[0] if found else None
        states = output[0] if isinstance(output, tuple) else output
        if not isinstance(states, Tensor) or states.dim() != 3:
            raise ValueError(
                "model must have layers that return hidden states of shape (records, tokens, width); got"
                f" {check.shown(getattr(states, 'shape', type(output)))}"
            )
        return states, isinstance(output, tuple)

    def _places(self, inputs: Mapping[str, Tensor]) -> Tensor | None:
        """Return the positions of the tokens that are kept of each record, shape (records, kept tokens).

        None where all tokens are kept. inputs: the forward's arguments and the labels, by name.
        """
        labels = inputs.get("labels")
        if not self._positionwise or labels is None or labels.dim() != 2:
            return None
        needed = labels != IGNORED
        needed[:, :-1] |= needed[:, 1:].clone()
        length = needed.shape[1]
        first, last = needed.int().argmax(1), length - 1 - needed.flip(1).int().argmax(1)
        last = torch.where(needed.any(1), last, first)
        width = int((last - first).max()) + 1
        return (last + 1 - width).clamp(min=0)[:, None] + torch.arange(width)


def _found(model: nn.Module) -> _Place:
    """Return the place of a model's layers, its longest `nn.ModuleList`, and of the first trained one among them.

    Raises ValueError where there is none, where no weight is trained, and where the first layer has a trained weight.
    """
    lists = [(name, part) for name, part in model.named_modules() if isinstance(part, nn.ModuleList) and len(part)]
    if not lists:
        raise ValueError(f"model must have its layers in an nn.ModuleList; got none in {type(model).__name__}")
    if not any(p.requires_grad for p in model.parameters()):
        raise ValueError("model must have a trained weight, one with requires_grad; got none")
    name, layers = max(lists, key=lambda pair: len(pair[1]))
    trained = (k for k, layer in enumerate(layers) if any(p.requires_grad for p in layer.parameters()))
    first = next(trained, len(layers))
    if first == 0:
        raise ValueError(f"model must have a frozen layer at the bottom of {name}; got a trained weight in its first")
    return _Place(name.split("."), layers, first)


def _sharing(module: Any) -> Any:
    """Return a copy of a module that shares its weights and submodules, but has a list of submodules and hooks of its
    own, which can be changed without changing the first module."""
    other = copy(module)
    for name, value in vars(module).items():
        if name == "_modules" or (name.endswith(("_hooks", "_kwargs", "_called")) and isinstance(value, dict)):
            vars(other)[name] = copy(value)
    return other


def _read(data: Data, fetch: Fetch, micro_batch: int) -> dict[str, Tensor]:
    """Return all records of a data set as tensors by name, with the records along the first axis.

    fetch: makes a batch of records from their numbers. micro_batch: how many are read at a time. Raises ValueError
    unless batches are mappings to tensors and all records have one shape.
    """
    count, parts = len(data), []
    for start in range(0, count, micro_batch):
        batch = fetch(np.arange(start, min(start + micro_batch, count)))
        rows = min(micro_batch, count - start)
        if not isinstance(batch, Mapping) or not all(isinstance(v, Tensor) and len(v) == rows for v in batch.values()):
            raise ValueError(f"batches must be mappings from names to tensors, one row a record; got {_shapes(batch)}")
        parts.append({str(name): value.cpu() for name, value in batch.items()})
        if _forms(parts[-1]) != _forms(parts[0]):
            raise ValueError(
                "records must be padded and cut to one length by the data set or collate; got"
                f" {_shapes(parts[0])}, then {_shapes(parts[-1])}"
            )
    return {name: torch.cat([part[name] for part in parts]) for name in parts[0]}


def _forms(batch: Mapping[str, Tensor]) -> dict[str, tuple[Any, ...]]:
    return {name: (value.dtype, *value.shape[1:]) for name, value in batch.items()}


def _shapes(batch: object) -> str:
    if not isinstance(batch, Mapping):
        return check.shown(type(batch))
    return ", ".join(f"{name} {tuple(getattr(value, 'shape', ()))}" for name, value in batch.items())


def _arguments(inputs: Mapping[str, Tensor], device: torch.device) -> dict[str, Tensor]:
    return {name: value.to(device) for name, value in inputs.items() if name != "labels"}


def _at(values: Tensor, places: Tensor | None) -> Tensor:
    """Return the entries of `values`, shape (records, tokens, ...), at the tokens `places` of each record.

    All entries are returned if `places` is None, or if `values` has no axis of tokens.
    """
    if places is None or values.dim() < 2:
        return values
    return values[torch.arange(len(places))[:, None].to(values.device), places.to(values.device)]


def _kept(inputs: Mapping[str, Tensor], places: Tensor | None) -> dict[str, Tensor]:
    """Return the forward's arguments and labels at the tokens `places` of each record; all of them if `places` is None.
    inputs: the arguments and labels, by name.

    A mask of padding is left out, since what is left of the model looks at one token at a time.
    """
    if places is None:
        return dict(inputs)
    kept = {name: _at(value, places) for name, value in inputs.items() if name != "attention_mask"}
    mask = inputs.get("attention_mask")
    if mask is not None and mask.dim() == 4:
        width = places.shape[1]
        kept["attention_mask"] = mask.new_ones(1).expand(len(places), 1, width, width).contiguous()
    return kept


def _output(output: Any) -> Tensor:
    """Return the logits of what a model returns or, where it has none, its first tensor."""
    found = getattr(output, "logits", None)
    return found if isinstance(found, Tensor) else next(x for x in _pytree.tree_leaves(output) if isinstance(x, Tensor))
