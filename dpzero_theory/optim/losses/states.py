"""What frozen layers compute from a record, computed once: an evaluation then runs the layers above them alone.

Where all layers below the first trained weight are frozen, what they hand up (a record's hidden states) is the same at
every point of every step. `with_states` finds a chain of frozen modules, each called once and with nothing but what the
one before it returned, of which the last hands its output to the rest before a trained weight is read. The chain runs
for each record alone, without other records, when the record is collated. Its output becomes a part of the batch, and
while the losses are evaluated every module of the chain returns it unseen.

The output is kept in memory under a digest of the record as it was read, so that augmented or masked records are never
taken for one another, and nothing is written. A chain is taken only if a few records have the same losses with and
without it, up to rounding; else the module is evaluated as a whole, as it is if layers below are trained.
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
from torch.utils.data import default_collate

from dpzero_theory.optim.engines.probe import rounding
from dpzero_theory.optim.losses.evaluation import Losses, per_record
from dpzero_theory.optim.losses.identity import of_all
from dpzero_theory.optim.losses.isolation import Trace
from dpzero_theory.optim.losses.records import Collate, Data, read
from dpzero_theory.optim.weights.directions import Directions
from dpzero_theory.optim.weights.module import Weights

_COMPARED = 8
"""How many records, evenly spread, must have the same losses with and without the chain."""
_WORTHWHILE = 0.2
"""The least share of the module's parameters, embeddings left out, that a chain must have."""
_SHIFT = 1e-3  # Records are compared at shifted weights, so that a loss which reads a weight unseen is found.


class _Call(NamedTuple):
    # A call of a frozen module in a forward
    given: Any  # the first argument
    result: Tensor  # what was returned
    version: int  # how often torch had counted a write to the result when it was returned
    size: int  # how many parameters the modules in `chain` have
    chain: tuple[nn.Module, ...]  # this module and those before it, each of which takes only the result of the last


class _Reached(Exception):
    """Raised by a hook to end a forward once it has reached the module whose output is wanted."""


# A chain of frozen modules, each of which takes what the one before it returned, and the last one's outputs for each
# record. `find` finds it by hooks while the losses of one record are evaluated; `collate` and `losses` then stand in
# for `join` (a list of records -> the batch) and the loss function. Outputs are kept by a digest of the record as it
# was read, up to `most` bytes in all; those of further records are computed anew whenever such a record is collated.
class _Chain:
    def __init__(self, weights: Weights, losses: Losses, join: Callable[[Sequence[Any]], Any], most: float) -> None:
        self._weights, self._losses, self._join, self._left = weights, losses, join, most
        self._kept: dict[str, Tensor] = {}
        self._modules: tuple[nn.Module, ...] = ()

    def find(self, record: Any, *, within: bool) -> bool:
        # Finds the longest chain of frozen modules by evaluating a record. Returns whether there is one that has at
        # least a fifth of the module's parameters, and whose output nothing writes. A module follows the one before it
        # if it takes that one's result. If a module around it takes the result too, to hand it on, and may use it in
        # other places, then it follows only with `within`; `alike` must tell whether it is used in other places.
        calls: list[_Call] = []
        counted: Counter[nn.Module] = Counter()
        takers: dict[int, tuple[Any, list[nn.Module]]] = {}  # by id; the object is kept too, so that none gets its id
        weights, batch = self._weights, self._join([record])

        def calling(part: nn.Module, args: Any, named: Any) -> None:
            given = _first(args, named)
            takers.setdefault(id(given), (given, []))[1].append(part)

        def called(part: nn.Module, args: Any, named: Any, result: Any) -> None:
            counted[part] += 1
            given = _first(args, named)
            if result is given:  # as of a dropout that does nothing
                takers[id(given)][1].remove(part)
            if len(weights.unread) < len(weights.names) or not isinstance(result, Tensor) or result is given:
                return
            if not any(parameter.requires_grad for parameter in part.parameters()):
                calls.append(_Call(given, result, result._version, _size(part), (part,)))

        with ExitStack() as stack:
            for part in weights.module.modules():
                stack.callback(part.register_forward_pre_hook(calling, with_kwargs=True).remove)
                stack.callback(part.register_forward_hook(called, with_kwargs=True).remove)
            weights.evaluated([(0, 0.0)], lambda module: per_record(self._losses(module, batch), 1))
        best: dict[int, _Call] = {}
        for call in calls:
            if counted[call.chain[0]] == 1:
                before = best.get(id(call.given))
                # the outermost module that takes a result may follow: those inside it may be several that read it
                takes, part = takers[id(call.given)][1], call.chain[0]
                if before is not None and (takes[0] is part or (within and all(_nested(one, part) for one in takes))):
                    call = call._replace(size=call.size + before.size, chain=before.chain + call.chain)
                if call.size >= best.get(id(call.result), call).size:
                    best[id(call.result)] = call
        found = max(reversed(best.values()), key=lambda call: call.size, default=None)  # of equal ones the last
        if found is None or found.size < _WORTHWHILE * _size(weights.module):
            return False
        self._modules = found.chain
        # a module above that writes its input in place would write what is kept
        return found.result._version == found.version

    def collate(self, records: Sequence[Any]) -> tuple[Tensor, Any]:
        # Returns the outputs of the chain's last module for the records, each evaluated alone, and the records' batch.
        # Outputs have the shape (rows, ...): where a record has several rows, as a pair of answers has two, the first
        # rows of all records come before the second ones. Outputs of several lengths are padded with 0 at the end of
        # their first axis after the rows.
        outputs = [self._of(record) for record in records]
        longest = max(found.shape[1] for found in outputs) if outputs[0].ndim > 2 else 0
        if longest:
            outputs = [
                functional.pad(found, (*[0] * (2 * found.ndim - 4), 0, longest - found.shape[1])) for found in outputs
            ]
        return torch.stack(outputs, 1).flatten(0, 1), self._join(records)

    def losses(self, module: nn.Module, batch: tuple[Tensor, Any]) -> object:
        # Returns the losses of a pair (outputs, batch) that `collate` made. The frozen modules that `find` chose do not
        # run. Each returns the last one's outputs: the others are called too, but only the last one's result is used.
        with self._returning(batch[0]):
            return self._losses(module, batch[1])

    def alike(self, records: Sequence[Any]) -> bool:
        # Whether records have the same losses, up to rounding, if the chain runs and if its outputs are put in its
        # place, at weights that are shifted along a direction.
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
        # Not by pickle alone, which writes all of a tensor of which the record is a part
        key = of_all([record], b"states")  # "" for a record that cannot be pickled, which is run anew each time
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

        def reached(part: nn.Module, args: Any, output: Any) -> None:
            found.append(output)
            raise _Reached

        hook = self._modules[-1].register_forward_hook(reached)
        try:
            with suppress(_Reached):
                self._losses(module, batch)
        finally:
            hook.remove()
        return found[0].clone()

    @contextmanager
    def _returning(self, output: Tensor) -> Iterator[None]:
        before = [vars(part).get("forward") for part in self._modules]
        output = output.to(self._weights.parameters[0].device)
        try:
            for part in self._modules:
                vars(part)["forward"] = lambda *args, **named: output
            yield
        finally:
            for part, forward in zip(self._modules, before, strict=True):
                del vars(part)["forward"]
                if forward is not None:
                    vars(part)["forward"] = forward


def with_states(
    module: nn.Module, losses: Losses, data: Data, collate: Collate, gigabytes: float
) -> tuple[Losses, Collate]:
    """Return losses and a collate function that run the frozen layers below the trained weights once for each record.

    They are the arguments themselves, a collate of None too, if such layers have less than a fifth of the parameters,
    if one of at most eight records raises (which is not raised here), or if these records' losses differ by more than
    rounding from those by the whole module. The returned collate takes any list of records as `data` gives them, tells
    them apart by content, and returns a pair (the frozen layers' outputs, batch), which the returned losses take.

    Args:
        module: the module, of which the parameters with requires_grad are trained.
        losses: a function (module, batch) -> one loss for each record, shape (batch,).
        data: the records.
        collate: a function from a list of records to the batch; torch's default_collate if None.
        gigabytes: how much host memory, in units of 2^30 bytes, outputs of the frozen layers may take. For records
            beyond it they are computed whenever a record is collated: once in each step of a run, which evaluates the
            batch at several points (shifted weights). 0 returns the arguments.
    """
    small = all(parameter.requires_grad for parameter in module.parameters())
    if small or not gigabytes:
        return losses, collate
    join: Callable[[Sequence[Any]], Any] = default_collate if collate is None else collate  # type: ignore[assignment]
    numbers = np.unique(np.arange(_COMPARED) * len(data) // _COMPARED).tolist()
    for within in (True, False):
        with suppress(Exception):
            weights = Weights(module, Directions(bytes(16), "low-rank"))
            records = read(data, numbers, alike=True)
            chain = _Chain(weights, losses, join, math.ldexp(gigabytes, 30))
            try:
                if not weights.collective and chain.find(records[0], within=within) and chain.alike(records):
                    weights.guarded = False
                    return wraps(losses)(partial(chain.losses)), chain.collate
            finally:
                weights.untrained.settle()  # what these records left in buffers must not be there when the run begins
    return losses, collate


def _first(args: Any, named: Any) -> Any:
    return args[0] if args else next(iter(named.values()), None)


def _nested(one: nn.Module, other: nn.Module) -> bool:
    return other in set(one.modules()) or one in set(other.modules())


def _size(module: nn.Module) -> int:
    # About the number of parameters that take time. A look-up in an embedding takes nearly none; where the last layer
    # has the same matrix, the time of that layer is left out too.
    found = {id(p): p.numel() for p in module.parameters()}
    for part in module.modules():
        if isinstance(part, nn.Embedding):
            found.pop(id(part.weight), None)
    return sum(found.values())
