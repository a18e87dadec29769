"""A loop of small kernels as one CUDA graph, so that their launches cost next to nothing."""

from collections.abc import Callable

import torch
from torch import Tensor


class Captured:
    """Calls `function` as it is on the CPU. On CUDA it replays a graph of it, recorded once for each set of shapes.

    The function takes tensors and returns one. It must not wait for results on the host, and must look at the tensors'
    shapes only.
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
        with torch.cuda.stream(
            aside
        ):  # libraries allocate memory on their first use, which is not allowed during a capture
            self.function(*inputs)
        torch.cuda.current_stream().wait_stream(aside)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            output = self.function(*inputs)
        return graph, inputs, output
