"""Losses and moves of the weights on a GPU, recorded once and then replayed.

Python needs longer to start the kernels of a small step than a GPU needs to run them. So the kernels of an evaluation
are recorded once for each shape of a batch, those of a move of the weights once for each number of directions (CUDA
graphs), and later steps replay a recording as a whole. It reads and writes the same memory each time: before it is
replayed, the batch, the shifts, and the signs and amounts of the directions (`Directions.write`) are written there.

What cannot be recorded runs as it is, and a warning says so once: losses that wait for the GPU or compute on another
device, and losses whose replay does not give the same bits. One pool of GPU memory is kept until the process ends;
otherwise a recording touches what its evaluation or move touches.
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
"""A function that records what a function without arguments computes, and returns a replay: a function that computes it
each time it is called, and returns the same tensor with new values."""
_MOST = 16
"""The most evaluations that are kept recorded; batches of further shapes are evaluated operation by operation."""


def recorder(device: torch.device) -> _Recorder | None:
    """Return a function that records computations on the process's current GPU as CUDA graphs; None for any other
    device. It takes a function without arguments, records what that starts on the GPU without running it, and returns a
    replay: a function that runs the recording, and returns the same tensors each time, with new values."""
    return _on_cuda if device.type == "cuda" and device.index == torch.cuda.current_device() else None


def _on_cuda(function: Callable[[], _Answer]) -> Callable[[], _Answer]:
    # All recordings share one pool of memory: the tensors that a replay returns are overwritten by the next replay, of
    # this recording or another one, so the caller must copy them. Raises what `function` raises, and torch's
    # RuntimeError for operations that cannot be recorded.
    graph, pool = torch.cuda.CUDAGraph(), _kept().pool()
    try:
        with torch.cuda.graph(graph, pool=pool, capture_error_mode="thread_local"):
            found = function()
    except Exception:
        _record_nothing()  # torch's random generator stays in its recording state until a recording succeeds
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
    # The memory of this graph is shared by all others, as they are replayed one after the other and their results are
    # copied. It is never deleted: memory whose last recording is gone cannot be recorded into again.
    return _record_nothing()


class _Recording(NamedTuple):
    content: Any  # the batch that the recorded evaluation reads
    scale: Tensor  # the shifts that it reads
    replay: Callable[[], Tensor]  # computes the losses from what these two hold then


class Recorded:
    """Evaluates batches at shifted weights, if possible by replaying CUDA graphs of earlier evaluations.

    A batch is evaluated by `Weights.evaluated` if no graph can be made of that, for the reason in `refused`.

    Args:
        weights: the trainable weights, on one device, with low-rank directions.
        record: a function that records a computation on that device, and returns its replay (`recorder`).
        drawn: a function that returns how often losses have asked for the number of the step (`step_now`), with which
            they may draw random numbers. Such losses are not recorded.

    Attributes:
        refused: why nothing is recorded, or "".
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
        """Return the losses of a batch at each of the points, a tensor of shape (records,) for each.

        Raises what the losses raise, and ValueError if they cannot be evaluated at several points in one pass.

        Args:
            points: pairs (number of a direction, shift along it).
            ask: a function from a collated batch to the function of the module that returns the batch's losses.
            at_once: how many points are evaluated in one pass.
            content: the collated batch.
            records: how many records the batch has.
        """
        if self.refused:
            return self._weights.evaluated(points, ask(content), at_once, records)  # type: ignore[no-any-return]
        shape = _shape_of(content)
        content = each_tensor(content, lambda value: value.to(self._device, non_blocking=True))
        memory = self._weights.memory()
        if memory != self._memory:  # recordings read the old memory, so they are dropped
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
        # Write the shifts of the points `part` into `scale`, a float64 tensor of shape (points,), and the signs +-1
        # that make up the points' low-rank directions into the tensors from which recordings read them.
        scale.copy_(torch.tensor([shift for _, shift in part], dtype=torch.float64))
        self._weights.directions.write(tuple(number for number, _ in part), (), self._weights.shapes)

    def _add(self, key: Any, part: Sequence[Point], ask: Callable[[Any], Any], content: Any, records: int) -> None:
        # Evaluate a batch, `content`, of `records` records at the points `part` in one pass, and keep the evaluation as
        # a CUDA graph under `key`. If that is not possible, warn why, and set `refused`: no later batch is recorded.
        # ask(content) is the function of the module that returns the losses. Raises what the losses raise.
        own = each_tensor(content, Tensor.clone)
        scale = torch.zeros(len(part), dtype=torch.float64, device=self._device)
        untrained = self._weights.untrained
        before = self._drawn(), untrained.restored

        def once() -> Tensor:
            return torch.stack(self._weights.evaluated(part, ask(own), len(part), records, scale=scale)).view(-1)

        self._write(part, scale)
        wanted = once()  # run before it is recorded, so that what the losses raise reaches the caller
        if (self._drawn(), untrained.restored) != before:
            return self._refuse("they draw anew in each step, or write buffers")
        try:
            replay = self._record(once)
            same = bool((replay().view(torch.int64) == wanted.view(torch.int64)).all())
        except Exception as error:  # its text, which may show private records, is left out
            return self._refuse(f"recording them raised {type(error).__name__}")
        if not same:
            return self._refuse("their replay gives other bits")
        self._found[key] = _Recording(own, scale, replay)

    def _refuse(self, why: str) -> None:
        self.refused, self._found = why, {}
        warnings.warn(f"the losses are evaluated operation by operation, not by a recording: {why}", stacklevel=2)


def each_tensor(content: Any, function: Callable[[Tensor], Any]) -> Any:
    """Return a collated batch (tensors in any nesting of mappings and lists) with function(tensor) for each tensor."""

    def of(value: Any) -> Any:
        if isinstance(value, UserDict):  # such as the batches of transformers' tokenizers
            return type(value)({name: each_tensor(part, function) for name, part in value.items()})
        return function(value) if isinstance(value, Tensor) else value

    return _pytree.tree_map(of, content)


def _tensors(content: Any) -> list[Tensor]:
    found: list[Tensor] = []
    each_tensor(content, found.append)
    return found


def _shape_of(content: Any) -> str:
    # Recordings are found by this text. Two collated batches have the same one if only the numbers in their tensors or
    # their devices differ, not their nesting, a tensor's shape or type, or a value that is no tensor.
    return repr(each_tensor(content, lambda value: f"{tuple(value.shape)} {value.dtype}"))
