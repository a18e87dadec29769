"""Caches what frozen layers compute for each record, so that an evaluation runs only the layers above them.

If all layers below the first trained weight are frozen, their output for a record (its hidden states) is the same at
all weights of a run. `with_states` looks for a cut through the model: a tensor through which alone the losses depend on
the frozen modules before it. It is the first argument of a module with trained weights, the innermost for which that is
so, or else what the last frozen module returns. When a record is collated, its tensor becomes a part of the batch.
While the losses are evaluated, this tensor takes its place, and the frozen modules before it return zeros instead of
running. Tensors are kept in host memory under a digest of the record as it was read, so a record that is read
differently, with other augmentation for example, has another tensor.
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
"""The number of records, evenly spread, whose losses with frozen modules and with the kept tensors are compared."""
_WORTHWHILE = 0.2
"""A cut must be above frozen modules with at least this share of all parameters without embeddings."""
_SHIFT = 1e-3  # The shift of the weights at which records are compared, to refuse a tensor that trained weights change


class _Cut(NamedTuple):
    # A tensor of a forward pass that may be kept
    module: nn.Module  # whose first argument, or result, it is
    argument: bool
    tensor: Any
    version: Any  # torch's count of in-place writes to it by then
    before: list[tuple[nn.Module, Any]]  # the outermost frozen modules that have returned by then, and their results


class _Reached(Exception):
    """Raised by a hook to end a forward pass where the tensor to be kept is known."""


def _cuts(weights: Weights, losses: Losses, batch: Any) -> list[_Cut]:
    # Evaluates a batch of one record. Returns the cuts that may be made, in the order in which they are tried.
    arguments: list[_Cut] = []
    results: list[_Cut] = []
    returned: list[tuple[nn.Module, Any]] = []
    counted: Counter[nn.Module] = Counter()

    def early(part: nn.Module, *, trained: bool) -> bool:
        # Whether no trained weight has been read so far, and the module has some (`trained`) or none
        has = any(parameter.requires_grad for parameter in part.parameters())
        return len(weights.unread) == len(weights.names) and has is trained

    def calling(part: nn.Module, args: Any, named: Any) -> None:
        counted[part] += 1
        if early(part, trained=True):
            given = _first(args, named)
            arguments.append(_Cut(part, True, given, getattr(given, "_version", None), returned[:]))

    def called(part: nn.Module, _: Any, result: Any) -> None:
        if _size(part) and early(part, trained=False):
            inner = set(part.modules())  # Only the outermost module need return zeros
            returned[:] = [(part, result), *(pair for pair in returned if pair[0] not in inner)]
            results.append(_Cut(part, False, result, getattr(result, "_version", None), returned[:]))

    with ExitStack() as stack:
        for part in weights.module.modules():
            stack.callback(part.register_forward_pre_hook(calling, with_kwargs=True).remove)
            stack.callback(part.register_forward_hook(called).remove)
        weights.evaluated([(0, 0.0)], lambda module: per_record(losses(module, batch), 1))

    def possible(cut: _Cut) -> bool:
        # A later module that writes to the tensor in place would overwrite what is kept.
        whole = isinstance(cut.tensor, Tensor) and cut.tensor._version == cut.version and counted[cut.module] == 1
        return whole and _size(*(part for part, _ in cut.before)) >= _WORTHWHILE * _size(weights.module)

    found = [*filter(possible, reversed(arguments)), *[*filter(possible, results)][-1:]]
    # The activations of this pass are not kept for the run. Tensors on the device meta have no entries.
    return [cut._replace(tensor=None, before=_pytree.tree_map_only(Tensor, _meta, cut.before)) for cut in found]


# The losses with a cut. `collate` and `losses` replace `join` (a function from a list of records to a batch) and the
# loss function. Tensors are kept under a digest of the record, up to `most` bytes in all; those that do not fit are
# computed each time their record is collated.
class _Frozen:
    def __init__(
        self, weights: Weights, losses: Losses, join: Callable[[Sequence[Any]], Any], most: float, cut: _Cut
    ) -> None:
        self._weights, self._losses, self._join, self._left, self._cut = weights, losses, join, most, cut
        self._kept: dict[str, Tensor] = {}

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
        # Returns the losses of a pair (tensors, batch) that `collate` made, without running the frozen modules.
        with self._returning(batch[0]):
            return self._losses(module, batch[1])

    def alike(self, records: Sequence[Any]) -> bool:
        # Returns whether records have the same losses, up to rounding, if the frozen modules run and if `losses` puts
        # the tensors that `collate` returns in their place, at weights that are shifted along a direction.
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

        def reached(part: nn.Module, args: Any, named_or_result: Any) -> None:
            found.append(_first(args, named_or_result) if self._cut.argument else named_or_result)
            raise _Reached

        part = self._cut.module
        if self._cut.argument:
            hook = part.register_forward_pre_hook(reached, with_kwargs=True)
        else:
            hook = part.register_forward_hook(reached)
        try:
            with suppress(_Reached):
                self._losses(module, batch)
        finally:
            hook.remove()
        return found[0].clone()

    @contextmanager
    def _returning(self, output: Tensor) -> Iterator[None]:
        output, taker = output.to(self._weights.parameters[0].device), self._cut.module
        run: Any = taker.forward

        def takes(*args: Any, **named: Any) -> Any:
            if not self._cut.argument:
                return output
            return run(output, *args[1:], **(named if args else {**named, next(iter(named)): output}))

        forwards = {part: partial(_zeros, result) for part, result in self._cut.before} | {taker: takes}
        before = [vars(part).get("forward") for part in forwards]
        try:
            for part, forward in forwards.items():
                vars(part)["forward"] = forward
            yield
        finally:
            for part, own in zip(forwards, before, strict=True):
                del vars(part)["forward"]
                if own is not None:
                    vars(part)["forward"] = own


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
        gigabytes: how much host memory, in units of 2^30 bytes, the kept tensors may take. Those that do not fit are
            computed each time their record is collated, which a run does once in a step. With 0 the arguments are
            returned.

    Returns:
        A pair (losses, collate). The new collate function takes a list of records and returns a pair (what frozen
        layers compute of them, batch), which the new loss function takes as its batch.
    """
    small = all(parameter.requires_grad for parameter in module.parameters())
    if small or not gigabytes:
        return losses, collate
    join: Callable[[Sequence[Any]], Any] = default_collate if collate is None else collate  # type: ignore[assignment]
    numbers = np.unique(np.arange(_COMPARED) * len(data) // _COMPARED).tolist()
    with suppress(Exception):
        weights = Weights(module, Directions(bytes(16), "low-rank"))
        records = read(data, numbers, alike=True)
        try:
            for cut in [] if weights.collective else _cuts(weights, losses, join(records[:1])):
                frozen = _Frozen(weights, losses, join, math.ldexp(gigabytes, 30), cut)
                with suppress(Exception):  # Some models cannot run if a part of them returns zeros
                    if frozen.alike(records[:1]) and frozen.alike(records):  # One record refuses most cuts
                        weights.guarded = False
                        return wraps(losses)(partial(frozen.losses)), frozen.collate
        finally:
            weights.untrained.settle()  # The run must begin with the buffers as they were before.
    return losses, collate


def _first(args: Any, named: Any) -> Any:
    return args[0] if args else next(iter(named.values()), None)


def _meta(tensor: Tensor) -> Tensor:
    return torch.empty_like(tensor, device="meta")


def _zeros(result: Any, *args: Any, **named: Any) -> Any:
    # Stands in for the forward pass of a frozen module and returns zeros. Each tensor of `result`, what the module has
    # returned for one record, gives the dtype, the number of axes and the length of the last axis. The other lengths
    # are those of the module's first argument, which has the records of the present batch.
    given = _first(args, named)

    def like(leaf: Any) -> Any:
        if not isinstance(leaf, Tensor) or not leaf.ndim:
            return leaf
        zero = given.new_zeros((), dtype=leaf.dtype)
        return zero.expand(*given.shape[: leaf.ndim - 1], leaf.shape[-1])  # Takes no memory

    return _pytree.tree_map(like, result)


def _size(*modules: nn.Module) -> int:
    # Returns the number of parameters without embeddings, whose look-up takes nearly no time. An embedding that is also
    # the last layer's matrix is left out too.
    found = {id(p): p.numel() for module in modules for p in module.parameters()}
    for part in {part for module in modules for part in module.modules()}:
        if isinstance(part, nn.Embedding):
            found.pop(id(part.weight), None)
    return sum(found.values())
