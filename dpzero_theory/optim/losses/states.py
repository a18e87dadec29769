"""Caches what frozen layers compute for each record, so that an evaluation runs only the layers above them.

If all layers below the first trained weight are frozen, their output for a record (its hidden states) is the same at
all weights of a run. `with_states` first looks at what the first module with trained weights of its own takes. If the
losses depend on the frozen modules before it through this tensor alone, it is kept, and they return zeros instead of
running. Else `with_states` looks for a chain of frozen modules: each is called once in a forward pass and takes only
the result of the module before it, and the last one's result, which is kept, is used by the rest of the model.

When a record is collated, what is kept of it becomes a part of the batch. It is in host memory under a digest of the
record as it was read, so a record that is read differently, with other augmentation for example, has another output.
"""

import math
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from functools import partial, wraps
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils import _pytree
from torch.utils.data import default_collate

from dpzero_theory.optim.engines.probe import rounding
from dpzero_theory.optim.losses.evaluation import Losses, per_record
from dpzero_theory.optim.losses.identity import of_all
from dpzero_theory.optim.losses.isolation import Trace
from dpzero_theory.optim.losses.records import Collate, Data, read
from dpzero_theory.optim.weights.directions import Directions
from dpzero_theory.optim.weights.module import Weights

_COMPARED = 8
"""The number of records, evenly spread, whose losses by frozen modules and by their kept outputs are compared."""
_WORTHWHILE = 0.2
"""Outputs of frozen modules are kept only if these have at least this share of all parameters without embeddings."""
_SHIFT = 1e-3  # The shift of the weights at which records are compared, to find a chain that reads a trained weight


class _Call(NamedTuple):
    # One call of a frozen module during a forward pass
    given: Any  # the first argument of the call
    result: Any  # what was returned
    version: int  # torch's count of in-place writes to `result` when the module returned it
    size: int  # the number of parameters of all modules in `chain`
    chain: tuple[nn.Module, ...]  # frozen modules up to this one; each takes the result of the one before it


class _Reached(Exception):
    """Raised by a hook to end a forward pass after the module whose output is wanted."""


# Frozen modules that need not run, and for each record the tensor that is kept in their place. `find` finds them by
# hooks while the loss of one record is evaluated. `collate` and `losses` then replace `join` (a function from a list of
# records to a batch) and the loss function. Tensors are kept under a digest of the record, up to `most` bytes in all;
# those that do not fit are computed each time their record is collated.
class _Frozen:
    def __init__(self, weights: Weights, losses: Losses, join: Callable[[Sequence[Any]], Any], most: float) -> None:
        self._weights, self._losses, self._join, self._left = weights, losses, join, most
        self._kept: dict[str, Tensor] = {}
        self._modules: tuple[nn.Module, ...] = ()  # those that need not run; a chain's last one's result is kept
        self._taker: nn.Module | None = None  # the trained module whose first argument is kept, or None for a chain
        self._results: dict[nn.Module, Any] = {}  # what the modules have returned for one record, if there is a taker

    def find(self, record: Any, way: str) -> bool:
        # Evaluates a record to find the modules. Returns whether they have at least a fifth of the module's parameters
        # and nothing writes to the kept tensor in place. With the way "taker" they are all that run before the first
        # module with trained weights of its own. Otherwise they are the chain with the most parameters. A module
        # follows another in it if it takes its result. If an enclosing module takes this result too, and so might also
        # use it elsewhere, the inner module follows only with the way "within". `alike` then tests the losses.
        calls: list[_Call] = []
        counted: Counter[nn.Module] = Counter()
        takers: dict[int, tuple[Any, list[nn.Module]]] = {}  # by id of an argument, which is kept: who took it
        trained: list[tuple[nn.Module, Any, Any]] = []  # modules with trained weights, their argument, its version
        weights, batch = self._weights, self._join([record])

        def calling(part: nn.Module, args: Any, named: Any) -> None:
            given = _first(args, named)
            takers.setdefault(id(given), (given, []))[1].append(part)
            if any(parameter.requires_grad for parameter in part.parameters(recurse=False)):
                trained.append((part, given, getattr(given, "_version", None)))

        def called(part: nn.Module, args: Any, named: Any, result: Any) -> None:
            counted[part] += 1
            given = _first(args, named)
            if result is given:  # such as dropout in eval mode
                takers[id(given)][1].remove(part)
            if len(weights.unread) < len(weights.names) or result is given:
                return
            if not any(parameter.requires_grad for parameter in part.parameters()):
                calls.append(_Call(given, result, getattr(result, "_version", 0), _size(part), (part,)))

        with ExitStack() as stack:
            for part in weights.module.modules():
                stack.callback(part.register_forward_pre_hook(calling, with_kwargs=True).remove)
                stack.callback(part.register_forward_hook(called, with_kwargs=True).remove)
            weights.evaluated([(0, 0.0)], lambda module: per_record(self._losses(module, batch), 1))
        if way == "taker":
            self._taker, given, version = trained[0]
            self._results = {call.chain[0]: call.result for call in calls}
            self._modules = tuple(self._results)
            kept = isinstance(given, Tensor) and given._version == version and counted[self._taker] == 1
            return bool(kept and _size(*self._modules) >= _WORTHWHILE * _size(weights.module))
        best: dict[int, _Call] = {}
        for call in calls:
            if counted[call.chain[0]] == 1 and isinstance(call.result, Tensor):
                before = best.get(id(call.given))
                # It joins if it is the first to take that result or, `within`, if all takers lie in or around it.
                takes, part = takers[id(call.given)][1], call.chain[0]
                if before is not None and (
                    takes[0] is part or (way == "within" and all(_nested(one, part) for one in takes))
                ):
                    call = call._replace(size=call.size + before.size, chain=before.chain + call.chain)
                if call.size >= best.get(id(call.result), call).size:
                    best[id(call.result)] = call
        found = max(reversed(best.values()), key=lambda call: call.size, default=None)  # the last of equals
        if found is None or found.size < _WORTHWHILE * _size(weights.module):
            return False
        self._modules = found.chain
        # A later module that writes to this result in place would overwrite the outputs that are kept.
        return bool(found.result._version == found.version)

    def collate(self, records: Sequence[Any]) -> tuple[Tensor, Any]:
        # Returns a pair: the tensors that are kept of the records, each evaluated alone, and the batch. The former have
        # shape (rows, ...). If a record has several rows (a pair of answers has two), the first rows of all records
        # come before their second rows. Tensors of different lengths are padded with 0 along axis 1.
        outputs = [self._of(record) for record in records]
        longest = max(found.shape[1] for found in outputs) if outputs[0].ndim > 2 else 0
        if longest:
            outputs = [
                functional.pad(found, (*[0] * (2 * found.ndim - 4), 0, longest - found.shape[1])) for found in outputs
            ]
        return torch.stack(outputs, 1).flatten(0, 1), self._join(records)

    def losses(self, module: nn.Module, batch: tuple[Tensor, Any]) -> object:
        # Returns the losses of a pair (outputs, batch) that `collate` made, without running the frozen modules. In a
        # chain each returns `outputs`, of which only what the last one returns is used.
        with self._returning(batch[0]):
            return self._losses(module, batch[1])

    def alike(self, records: Sequence[Any]) -> bool:
        # Returns whether records have the same losses, up to rounding, if the frozen modules run and if `losses` puts
        # the outputs that `collate` returns in their place, at weights that are shifted along a direction.
        plain, mine, trace = self._join(records), self.collate(records), Trace()

        def whole(module: nn.Module) -> object:
            with trace:
                return self._losses(module, plain)

        found = [
            self._weights.evaluated([(0, _SHIFT)], lambda module, way=way: per_record(way(module), len(records)))[0]
            for way in (whole, partial(self.losses, batch=mine))
        ]
        one, other = (values.cpu().numpy() for values in found)
        return bool(np.abs(one - other).max() <= rounding(trace.coarsest, one, other))

    def _of(self, record: Any) -> Tensor:
        # Pickle alone would digest the whole storage of a tensor of which the record is a view.
        key = of_all([record], b"states")  # "" for a record that cannot be pickled, whose output is not kept
        found = self._kept.get(key)
        if found is None:
            batch = self._join([record])
            found = self._weights.evaluated([(0, 0.0)], lambda module: self._output(module, batch))[0].to("cpu")
            if key and found.nbytes <= self._left:
                self._left -= found.nbytes
                self._kept[key] = found
        return found

    def _output(self, module: nn.Module, batch: Any) -> Tensor:
        found: list[Tensor] = []

        def reached(part: nn.Module, args: Any, named_or_output: Any) -> None:
            found.append(named_or_output if self._taker is None else _first(args, named_or_output))
            raise _Reached

        if self._taker is None:
            hook = self._modules[-1].register_forward_hook(reached)
        else:
            hook = self._taker.register_forward_pre_hook(reached, with_kwargs=True)
        try:
            with suppress(_Reached):
                self._losses(module, batch)
        finally:
            hook.remove()
        return found[0].clone()

    @contextmanager
    def _returning(self, output: Tensor) -> Iterator[None]:
        output, taker = output.to(self._weights.parameters[0].device), self._taker
        parts: list[nn.Module] = [*self._modules, *([] if taker is None else [taker])]
        before = [vars(part).get("forward") for part in parts]
        run: Any = None if taker is None else taker.forward

        def takes(*args: Any, **named: Any) -> Any:
            return run(output, *args[1:], **(named if args else {**named, next(iter(named)): output}))

        try:
            for part in self._modules:
                zeros = partial(_zeros, self._results.get(part))
                vars(part)["forward"] = zeros if taker is not None else lambda *args, **named: output
            if taker is not None:
                vars(taker)["forward"] = takes
            yield
        finally:
            for part, forward in zip(parts, before, strict=True):
                del vars(part)["forward"]
                if forward is not None:
                    vars(part)["forward"] = forward


def with_states(
    module: nn.Module, losses: Losses, data: Data, collate: Collate, gigabytes: float
) -> tuple[Losses, Collate]:
    """Return a loss function and a collate function that run the frozen layers below the trained weights once per
    record.

    `losses` and `collate` themselves are returned if there are no such layers, or they have less than a fifth of the
    parameters; if one of up to eight records raises an exception, which is suppressed; or if the losses of these
    records change by more than rounding.

    Args:
        module: the module, whose parameters with requires_grad are trained.
        losses: a function (module, batch) -> losses of shape (records,), one for each record of the batch.
        data: a map-style data set.
        collate: a function from a list of records to a batch; torch's default_collate if None.
        gigabytes: how much host memory, in units of 2^30 bytes, the outputs of frozen layers may take. Outputs that do
            not fit are computed each time their record is collated, which a run does once in a step. With 0 the
            arguments are returned.

    Returns:
        A pair (losses, collate). The new collate function takes a list of records and returns a pair (outputs of the
        frozen layers, batch), which the new loss function takes as its batch.
    """
    small = all(parameter.requires_grad for parameter in module.parameters())
    if small or not gigabytes:
        return losses, collate
    join: Callable[[Sequence[Any]], Any] = default_collate if collate is None else collate  # type: ignore[assignment]
    numbers = np.unique(np.arange(_COMPARED) * len(data) // _COMPARED).tolist()
    for way in ("taker", "within", "chain"):
        with suppress(Exception):
            weights = Weights(module, Directions(bytes(16), "low-rank"))
            records = read(data, numbers, alike=True)
            frozen = _Frozen(weights, losses, join, math.ldexp(gigabytes, 30))
            try:
                if not weights.collective and frozen.find(records[0], way) and frozen.alike(records):
                    weights.guarded = False
                    return wraps(losses)(partial(frozen.losses)), frozen.collate
            finally:
                weights.untrained.settle()  # The run must begin with the buffers as they were before.
    return losses, collate


def _first(args: Any, named: Any) -> Any:
    return args[0] if args else next(iter(named.values()), None)


def _zeros(result: Any, *args: Any, **named: Any) -> Any:
    # Returns zeros of the form of `result`, which a module has returned for another batch, with the first axes of the
    # first argument
    given = _first(args, named)

    def like(leaf: Any) -> Any:
        if not isinstance(leaf, Tensor) or not leaf.ndim:
            return leaf
        return leaf.new_zeros(()).expand(*given.shape[: leaf.ndim - 1], leaf.shape[-1])  # Takes no memory

    return _pytree.tree_map(like, result)


def _nested(one: nn.Module, other: nn.Module) -> bool:
    return other in set(one.modules()) or one in set(other.modules())


def _size(*modules: nn.Module) -> int:
    # Returns the number of parameters without embeddings, whose look-up takes nearly no time. An embedding that is also
    # the last layer's matrix is left out too.
    found = {id(p): p.numel() for module in modules for p in module.parameters()}
    for part in {part for module in modules for part in module.modules()}:
        if isinstance(part, nn.Embedding):
            found.pop(id(part.weight), None)
    return sum(found.values())
