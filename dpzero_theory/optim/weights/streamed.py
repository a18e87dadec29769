"""Weights of a module whose layers are in files (`weights.layers`): they have the same bits as in memory.

A step reads each layer once, from the checkpoint or from the working folder, and moves it by the releases since. In
the working folder a layer's file says which moves it has made (by a digest of them). A crash leaves files of different
ages, and each is moved on when it is read; a file whose moves are not a beginning of the run's is not used. A run goes
on as any other does: with the initial weights, which it moves by its transcript.
"""

import hashlib
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import torch.distributed as dist
from torch import Tensor, nn

from dpzero_theory.optim.step.differences import Point
from dpzero_theory.optim.weights.derivatives import NONE
from dpzero_theory.optim.weights.directions import Directions
from dpzero_theory.optim.weights.layers import Layers, Values
from dpzero_theory.optim.weights.module import Scales, Through, Weights
from dpzero_theory.privacy.journal import sync_folder

BEHIND = 16
"""A layer is written to the working folder when its newest file there lacks this many moves or more; writing takes
longer than making a few moves again."""
_DIGEST = "moves"
"""The entry of a file's metadata that holds the digest of the moves that the layer has made."""


class StreamedWeights(Weights):
    """The trainable weights of a module whose layers are read from files one at a time (`layers.stream`).

    layers: the module's streamed layers. directions: the random directions of the run. precision: how moves are rounded
    in half precision, `nearest` or `stochastic`. Raises ValueError for `master`, whose bits beside the weights are not
    streamed, and in several processes.
    """

    def __init__(
        self, module: nn.Module, layers: Layers, directions: Directions, *, precision: str = "nearest"
    ) -> None:
        if precision == "master":
            raise ValueError("precision must be 'nearest' or 'stochastic' where layers are streamed; got 'master'")
        if dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1:
            raise ValueError("layers must not be streamed in several processes")
        super().__init__(module, directions, precision=precision)
        self._unread = {name for name, size in zip(self.names, self.sizes, strict=True) if size}
        self._layers = layers
        self._index = {parameter: index for index, parameter in enumerate(self.parameters)}
        self._of = {parameter: index for index, layer in enumerate(layers.layers) for parameter in layer.parameters}
        self.forget()
        layers.values, layers.changed = self._read, self._look_again

    def evaluated(
        self, points: Sequence[Point], function: Callable[[nn.Module], Tensor], at_once: int = 1
    ) -> list[Tensor]:
        """Return function(module) at each of the points, a list in their order; each layer is read once for all points.

        points: pairs (number of a direction u, shift), for the weights x + shift u. Raises ValueError for at_once above
        1, and for a point that asks for a derivative.
        """
        if at_once > 1:
            raise ValueError("points_at_once must be 1 where layers are streamed")
        shifts = [(number, shift) for number, shift in points if shift is not None]
        if len(shifts) < len(points):
            self._derivatives([], function)
        asked = partial(function, self.module)
        answers: list[list[object]] = [[] for _ in points]
        for index in range(len(self._layers.layers)):
            with self._layers.held(index) as forward:
                for point, known in zip(shifts, answers, strict=True):
                    with self.shifted(*point):
                        arguments, named = self._layers.asked(asked, known)
                        known.append(forward(*arguments, **named))
        found = []
        for point, known in zip(shifts, answers, strict=True):
            with self.shifted(*point):
                found.append(self._layers.answered(asked, known))
        return found

    def _derivatives(self, numbers: Sequence[int], function: Callable[[nn.Module], Tensor]) -> Sequence[Tensor]:
        raise ValueError(f"{NONE}: layers are streamed")

    def add_(self, values: Callable[[int, int, int], Tensor], number: int) -> None:
        """Raise ValueError, whatever the arguments: a layer that is read from its file again could not be moved by a
        released vector, which is kept nowhere."""
        raise ValueError("weights must not be streamed where a release is a vector")

    def values(self) -> dict[str, Tensor]:
        """Return copies of the trainable weights by name, in host memory, after all moves of the run."""
        return {name: held.detach().cpu().clone() for name, held in zip(self.names, self._in_memory(), strict=True)}

    def load_values(self, values: Mapping[str, Tensor]) -> None:
        """Raise ValueError: streamed weights cannot be loaded, but go on from the initial ones by the transcript."""
        raise ValueError(
            "streamed weights must not be loaded: resume with the initial ones, and the transcript moves them"
        )

    def forget(self) -> None:
        """Forget all moves of the run, so that a layer that is read next has its initial values.

        Parameters outside the layers, which stay in memory, keep the values that they have.
        """
        start = hashlib.sha256(
            f"{self.directions.key} {self.directions.law} {self._rounding.precision}".encode()
        ).hexdigest()
        self._made: list[Scales] = []
        self._ages = {start: 0}
        self._newest = start

    def _make(self, scales: Scales, through: Through | None) -> None:
        if through is not None:
            raise ValueError("weights must not be streamed where an update keeps something beside them")
        super()._make(scales, through)
        self._made.append(scales)
        words = " ".join(f"{number} {scale.hex()}" for number, scale in scales)
        self._newest = hashlib.sha256(f"{self._newest} {words}".encode()).hexdigest()
        self._ages[self._newest] = len(self._made)

    def _passed_over(self, parameter: nn.Parameter) -> bool:
        return parameter in self._of  # a streamed parameter has new memory at each call of its layer

    def _in_memory(self) -> Iterator[Tensor]:
        with ExitStack() as stack:
            held: int | None = None
            for parameter in self.parameters:
                layer = self._of.get(parameter)
                if layer != held:
                    stack.close()
                    if layer is not None:
                        stack.enter_context(self._layers.held(layer))
                    held = layer
                yield parameter

    def _read(self, index: int) -> Values:
        """Return the values of the layer with this index after all moves of the run, by parameter.

        They are written to the working folder if the newest values kept there lack `BEHIND` moves or more.
        """
        found, age = self._moved(index)
        behind = self._made[age:]
        for scales in behind:
            for parameter, values in found.items():
                if parameter in self._index:
                    self._move(values, self._index[parameter], 0, scales, None)
        if self._layers.work is not None and len(behind) >= BEHIND:
            self._write(index, found)
        return found

    def _file(self, index: int) -> Path:
        assert self._layers.work is not None
        return self._layers.work / f"layer-{index}.safetensors"

    def _moved(self, index: int) -> tuple[Values, int]:
        """Return the newest values that a file has of the layer with this index, and how many moves are in them."""
        layers = self._layers
        if layers.work is not None and self._file(index).exists():
            from safetensors import safe_open

            with safe_open(self._file(index), "pt") as file:
                age = self._ages.get((file.metadata() or {}).get(_DIGEST, ""))
                if age is not None:
                    values = (file.get_tensor(str(place)) for place in range(len(layers.layers[index].parameters)))
                    placed = (value.to(layers.device, copy=True) for value in values)
                    return dict(zip(layers.layers[index].parameters, placed, strict=True)), age
        return layers.initial(index), 0

    def _write(self, index: int, values: Values) -> None:
        """Write the values of the layer with this index to the working folder, in one piece or not at all."""
        from safetensors.torch import save

        path = self._file(index)
        path.parent.mkdir(parents=True, exist_ok=True)
        part = path.with_suffix(".part")
        named = {str(place): value.contiguous() for place, value in enumerate(values.values())}
        with part.open("wb") as file:
            file.write(save(named, {_DIGEST: self._newest}))
            file.flush()
            os.fsync(file.fileno())
        os.replace(part, path)
        sync_folder(path.parent)
