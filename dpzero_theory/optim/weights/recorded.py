"""Records the GPU kernels of an evaluation once, as a CUDA graph, and replays the graph in later steps.

Python needs longer to start the kernels of a small step than a GPU needs to run them. An evaluation is therefore
recorded once for each shape of a batch, and a move of the weights once for each number of directions. A graph always
reads and writes the same memory, so the batch, the shifts, and the signs and amounts of the directions
(`Directions.write`) are written there before a replay.

Losses that wait for the GPU, compute on another device, draw random numbers by the step, write buffers, or give other
bits in a replay run operation by operation, and a warning says so. A pool of GPU memory is kept until the process ends.
"""

import warnings
from collections import UserDict
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor
from torch.utils import _pytree

from dpzero_theory.difference import Point

_Answer = TypeVar("_Answer")
_Recorder = Callable[[Callable[[], Any]], Callable[[], Any]]
"""A function that takes a function `work` without arguments, records what work() computes, and returns a replay. The
replay computes that again at each call, and returns the same tensors with new values."""
_MOST = 16
"""The most CUDA graphs of evaluations that a run keeps. Batches of further shapes are evaluated without a graph."""


def recorder(device: torch.device) -> _Recorder | None:
    """Return a function `record` that records computations as CUDA graphs; None if `device` is not the current GPU.

    record(work) records the kernels that work() starts on the GPU, without running them. It returns a function that
    runs these kernels, and returns the tensors that work() returned, with new values.
    """
    return _on_cuda if device.type == "cuda" and device.index == torch.cuda.current_device() else None


def _on_cuda(function: Callable[[], _Answer]) -> Callable[[], _Answer]:
    # All recordings share one pool of memory. So the next replay, of any recording, overwrites the tensors that a
    # replay returned, and the caller must copy them. Raises what `function` raises, and torch's RuntimeError for
    # operations that cannot be recorded.
    graph, pool = torch.cuda.CUDAGraph(), _kept().pool()
    try:
        with torch.cuda.graph(graph, pool=pool, capture_error_mode="thread_local"):
            found = function()
    except Exception:
        _record_nothing()  # Only a recording that succeeds ends the recording state of torch's random generator
        raise

    def replay() -> _Answer:
        graph.replay()
        return found

    return replay


def _record_nothing() -> torch.cuda.CUDAGraph:
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        torch.zeros(1, device="cuda")
    return graph


@cache
def _kept() -> torch.cuda.CUDAGraph:
    # All other graphs use the memory pool of this one. They may, since they are replayed one after the other and their
    # results are copied. This graph is never deleted, since torch cannot record into a pool that has no graph left.
    return _record_nothing()


class _Recording(NamedTuple):
    content: Any  # The batch that the recorded evaluation reads
    scale: Tensor  # The shifts that it reads
    replay: Callable[[], Tensor]  # Computes the losses from the present values of `content` and `scale`


class Recorded:
    """Evaluates losses at shifted weights, by replaying CUDA graphs of earlier evaluations if possible.

    Args:
        weights: the trainable weights, a `module.Weights`, on one device and with low-rank directions.
        record: a function that records a computation on that device and returns its replay, as `recorder` describes.
        drawn: a function that returns how often the losses have called `evaluation.step_now`. Losses that call it may
            draw random numbers anew in each step, so they are not recorded.

    Attributes:
        refused: the reason why evaluations are not recorded; "" as long as they are.
    """

    def __init__(self, weights: Any, record: _Recorder, drawn: Callable[[], int] = lambda: 0) -> None:
        self._weights, self._record, self._drawn = weights, record, drawn
        self._device: torch.device = weights.parameters[0].device
        self._found: dict[Any, _Recording] = {}
        self._memory: tuple[int, ...] = ()
        self.refused = ""

    def evaluated(
        self, points: Sequence[Point], ask: Callable[[Any], Any], at_once: int, content: Any, records: int
    ) -> list[Tensor]:
        """Return the losses of a batch at several points, a tensor of shape (records,) for each point in order.

        Args:
            points: pairs (index of a direction u in the run, shift); the weights at the point are x + shift u.
            ask: a function from a collated batch to the function of the module that computes the batch's losses.
            at_once: how many points are evaluated in one pass, >= 1.
            content: the collated batch.
            records: the number of records in the batch.

        Raises:
            ValueError: the losses cannot be evaluated at several points in one pass.
            Exception: any exception of the losses.
        """
        if self.refused:
            return self._weights.evaluated(points, ask(content), at_once, records)  # type: ignore[no-any-return]
        shape = _shape_of(content)
        content = each_tensor(content, lambda value: value.to(self._device, non_blocking=True))
        memory = self._weights.memory()
        if memory != self._memory:  # Recordings read the old memory, so they are dropped
            self._found, self._memory = {}, memory
        found: list[Tensor] = []
        for first in range(0, len(points), at_once):
            part = points[first : first + at_once]
            key = shape, len(part), any(shift for _, shift in part)
            if key not in self._found and not self.refused and len(self._found) < _MOST:
                self._add(key, part, ask, content, records)
            recording = self._found.get(key)
            if recording is None:
                found += self._weights.evaluated(part, ask(content), at_once, records)
                continue
            for mine, given in zip(_tensors(recording.content), _tensors(content), strict=True):
                mine.copy_(given)
            self._write(part, recording.scale)
            losses = recording.replay().clone()
            found += [losses] if len(part) == 1 else losses.view(len(part), -1).unbind()
        return found

    def _write(self, part: Sequence[Point], scale: Tensor) -> None:
        # Writes the shifts of the points `part` times `directions.scale` into `scale`, a float64 tensor of shape
        # (points,), and the signs of the points' low-rank directions into the tensors from which recordings read them.
        directions = self._weights.directions
        scale.copy_(torch.tensor([shift * directions.scale for _, shift in part], dtype=torch.float64))
        directions.write(tuple(number for number, _ in part), (), self._weights.shapes)

    def _add(self, key: Any, part: Sequence[Point], ask: Callable[[Any], Any], content: Any, records: int) -> None:
        # Evaluates the batch `content` at the points `part` in one pass, and keeps the evaluation as a CUDA graph under
        # `key`. If that is not possible, warns why and sets `refused`, so that no later batch is recorded.
        # Raises what the losses raise.
        own = each_tensor(content, Tensor.clone)
        scale = torch.zeros(len(part), dtype=torch.float64, device=self._device)
        untrained = self._weights.untrained
        before = self._drawn(), untrained.restored

        def once() -> Tensor:
            return torch.stack(self._weights.evaluated(part, ask(own), len(part), records, scale=scale)).view(-1)

        self._write(part, scale)
        wanted = once()  # Runs before it is recorded, so that the caller sees what the losses raise
        if (self._drawn(), untrained.restored) != before:
            return self._refuse("they draw anew in each step, or write buffers")
        try:
            replay = self._record(once)
            same = bool((replay().view(torch.int64) == wanted.view(torch.int64)).all())
        except Exception as error:  # The text of the error may show private records
            return self._refuse(f"recording them raised {type(error).__name__}")
        if not same:
            return self._refuse("their replay gives other bits")
        self._found[key] = _Recording(own, scale, replay)

    def _refuse(self, why: str) -> None:
        self.refused, self._found = why, {}
        warnings.warn(f"the losses are evaluated operation by operation, not by a recording: {why}", stacklevel=2)


def each_tensor(content: Any, function: Callable[[Tensor], Any]) -> Any:
    """Return a copy of a batch (tensors in nested mappings and lists) with `function` applied to each tensor."""

    def of(value: Any) -> Any:
        if isinstance(value, UserDict):  # Batches of transformers' tokenizers, for example
            return type(value)({name: each_tensor(part, function) for name, part in value.items()})
        return function(value) if isinstance(value, Tensor) else value

    return _pytree.tree_map(of, content)


def _tensors(content: Any) -> list[Tensor]:
    found: list[Tensor] = []
    each_tensor(content, found.append)
    return found


def _shape_of(content: Any) -> str:
    # Returns a text by which a batch's recording is found. Two batches have the same text if they differ only in the
    # numbers in their tensors, or in their devices.
    return repr(each_tensor(content, lambda value: f"{tuple(value.shape)} {value.dtype}"))
