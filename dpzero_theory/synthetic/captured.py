"""`Captured`, which replays a function of many small kernels as a CUDA graph, so that the launches take little time."""

from collections.abc import Callable

import torch
from torch import Tensor


class Captured:
    """A callable that computes `function`, on CUDA by replaying a CUDA graph that is captured once for each set of
    shapes.

    On the CPU the object only calls `function`. A call returns a new tensor, which later calls do not change. All calls
    must have arguments of the same dtypes and on the same device.

    Args:
        function: takes tensors and returns one tensor. On CUDA it must not synchronise with the host, and its control
            flow may depend on nothing but the shapes of its arguments.
    """

    def __init__(self, function: Callable[..., Tensor]) -> None:
        self.function = function
        self._recorded: dict[tuple[torch.Size, ...], tuple[torch.cuda.CUDAGraph, list[Tensor], Tensor]] = {}

    def __call__(self, *given: Tensor) -> Tensor:
        if not given[0].is_cuda:
            return self.function(*given)
        shapes = tuple(tensor.shape for tensor in given)
        if shapes not in self._recorded:
            self._recorded[shapes] = self._record(given)
        graph, inputs, output = self._recorded[shapes]
        for place, tensor in zip(inputs, given, strict=True):
            place.copy_(tensor)
        graph.replay()
        return output.clone()

    def _record(self, given: tuple[Tensor, ...]) -> tuple[torch.cuda.CUDAGraph, list[Tensor], Tensor]:
        inputs = [tensor.clone(memory_format=torch.contiguous_format) for tensor in given]
        aside = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        aside.wait_stream(torch.cuda.current_stream())
        # CUDA libraries allocate memory in their first call, which the capture of a graph does not allow.
        with torch.cuda.stream(aside):
            self.function(*inputs)
        torch.cuda.current_stream().wait_stream(aside)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            output = self.function(*inputs)
        return graph, inputs, output
