"""A module whose layers are in files, and in memory one at a time.

    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    stream(model, model.model.decoder.layers, Tensors("CHECKPOINT"), device="cuda", work="work")
    run = make_private(model, losses, data, plan, ...)

Parameters outside the layers are read at the start. A parameter of a layer has its shape and no values until the layer
is called; then its values are read, and they are given up after the call. A step of `streamed.StreamedWeights` calls
each layer at all points x +- lambda u while it is in memory. To do so it runs the module's forward again and again: the
layers before return what they have answered already, and the forward ends at the next layer, whose arguments are then
known (`Layers.asked`). So a forward must call the layers one after the other, each once; it may do anything else.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from dpzero_theory.check import installed

_STREAMED = "_dpzero_layers"


class Tensors:
    """Reads tensors by name from the safetensors files of a folder, as Hugging Face writes them.

    Raises ValueError for a folder without such files.
    """

    def __init__(self, folder: str | Path) -> None:
        installed("streaming", "safetensors", "hf")
        from safetensors import safe_open

        self._open = safe_open
        self._files: dict[str, Path] = {}
        for path in sorted(Path(folder).glob("*.safetensors")):
            with safe_open(path, "pt") as file:
                self._files |= dict.fromkeys(file.keys(), path)
        if not self._files:
            raise ValueError(f"checkpoint must be a folder of safetensors files; got {str(folder)!r}")

    def read(self, names: Sequence[str]) -> Tensor:
        """Return the tensor with the first of these names that a file has, in host memory.

        names: the names of one parameter, several if it is tied. Raises ValueError if no file has any of them.
        """
        for name in names:
            if name in self._files:
                with self._open(self._files[name], "pt") as file:
                    found: Tensor = file.get_tensor(name)
                return found
        raise ValueError(f"checkpoint must hold {names[0]}, which it does not")


class LayerError(RuntimeError):
    """Raised where the values of a streamed layer cannot be read or written. No record is the cause, so it stops the
    run instead of counting a record as 0."""


class Asked(BaseException):
    """Raised to end a forward at the first layer without a known output; it holds the layer's arguments.

    arguments: those by position. named: those by name.
    """

    def __init__(self, arguments: Any, named: Any) -> None:
        super().__init__()
        self.arguments, self.named = arguments, named


class Layer(NamedTuple):
    """A layer: its own forward, and its parameters, frozen ones included."""

    forward: Callable[..., Any]
    parameters: list[nn.Parameter]


Values = dict[nn.Parameter, Tensor]


class Layers:
    """The layers of a streamed module, each of which is read when it is called.

    Args:
        module: the whole module. Its layers' forwards are replaced by ones that read the layer first.
        layers: its submodules that are streamed, in the order in which a forward calls them.
        source: the files with the initial values of all parameters.
        device: where the values of a layer are while it is in memory.
        work: a folder for the layers as a run has moved them; None for none.

    Attributes:
        values: a function from a layer's index to its values. At first it reads the initial ones; a run puts its own
            function here, which gives the layer as the run has moved it.
        changed: a function that is called when other parameters than before are in memory.
    """

    def __init__(self, module: nn.Module, layers: Sequence[nn.Module], source: Tensors, device: str, work: Path | None):
        self.work, self.device, self._source = work, torch.device(device), source
        self._names: dict[nn.Parameter, list[str]] = {}
        for name, parameter in module.named_parameters(remove_duplicate=False):
            self._names.setdefault(parameter, []).append(name)
        self.layers = [Layer(layer.forward, list(layer.parameters())) for layer in layers]
        self.values: Callable[[int], Values] = self.initial
        self.changed: Callable[[], None] = lambda: None
        self._answers: Sequence[Any] | None = None
        self._next = 0
        for index, layer in enumerate(layers):
            layer.forward = partial(self._call, index)

    def initial(self, index: int) -> Values:
        """Return the initial values of the layer with this index, read from the checkpoint, by parameter."""
        return {parameter: self.read(parameter) for parameter in self.layers[index].parameters}

    def read(self, parameter: nn.Parameter) -> Tensor:
        """Return the initial values of a parameter, read from the checkpoint, in the parameter's type, on the device.

        Raises ValueError if the checkpoint lacks them or has another shape.
        """
        found = self._source.read(self._names[parameter])
        if found.shape != parameter.shape:
            name, shapes = self._names[parameter][0], (tuple(parameter.shape), tuple(found.shape))
            raise ValueError(f"{name} must be of shape {shapes[0]}; got {shapes[1]}")
        return found.to(self.device, parameter.dtype, copy=True)

    @contextmanager
    def held(self, index: int) -> Iterator[Callable[..., Any]]:
        """A context manager that gives its block the original forward of the layer with this index; inside the block
        the layer's values are in memory.

        Raises LayerError where they cannot be read.
        """
        layer = self.layers[index]
        try:
            for parameter, values in self._read(index).items():
                parameter.data = values
            self.changed()
            yield layer.forward
        finally:
            for parameter in layer.parameters:
                parameter.data = absent(parameter.shape, parameter.dtype, self.device)
            self.changed()

    def _read(self, index: int) -> Values:
        try:
            return self.values(index)
        except (MemoryError, torch.OutOfMemoryError):  # a smaller micro-batch may leave room for the layer
            raise
        except Exception as error:
            said = " ".join(str(error).split())
            raise LayerError(f"layer {index} cannot be read: {said:.200}") from error

    def asked(self, function: Callable[[], object], answers: Sequence[Any]) -> tuple[Any, Any]:
        """Return the arguments with which a forward calls its first layer without a known output: by position, by name.

        function: runs the module's forward. answers: the outputs of the first layers, which these then return without
        being computed. Raises ValueError if the forward ends without calling the next layer.
        """
        try:
            self.answered(function, answers)
        except Asked as asked:
            return asked.arguments, asked.named
        raise ValueError(f"a forward must call every layer; layer {len(answers)} was not")

    def answered(self, function: Callable[[], Any], answers: Sequence[Any]) -> Any:
        """Return what `function`, which runs the module's forward, returns if the layers return these answers.

        answers: the outputs of the layers in order. Where one is missing for a layer that is called, `Asked` is raised.
        """
        self._answers, self._next = answers, 0
        try:
            return function()
        finally:
            self._answers = None

    def _call(self, index: int, *arguments: Any, **named: Any) -> Any:
        if self._answers is None:
            with self.held(index) as forward:
                return forward(*arguments, **named)
        if index != self._next:
            raise ValueError(f"layers must be called in order, each once in a forward; got {index} after {self._next}")
        if index == len(self._answers):
            raise Asked(arguments, named)
        self._next += 1
        return self._answers[index]


def stream(
    module: nn.Module, layers: Sequence[nn.Module], source: Tensors, *, device: str, work: str | Path | None = None
) -> None:
    """Read the parameters outside the layers; from now on a layer's values are in memory while it is called.

    Args:
        module: on any device; the meta device too, but then its buffers must be elsewhere.
        layers: submodules that a forward calls one after the other, each once.
        source: the files with the values of all parameters.
        device: where the values in memory are, such as "cuda".
        work: a folder for the layers as a run has moved them. Without one, a layer is read from the checkpoint each
            time and makes all moves of the run again.

    Raises:
        ValueError: a module that is streamed already, or an argument that does not fit.
    """
    if streamed(module) is not None:
        raise ValueError("module must not be streamed twice")
    for name, buffer in module.named_buffers():
        if buffer.is_meta:
            raise ValueError(f"buffer {name} must be in memory; got the meta device")
    found = Layers(module, list(layers), source, device, None if work is None else Path(work))
    inside = {parameter for layer in found.layers for parameter in layer.parameters}
    for parameter in list(module.parameters()):
        if parameter in inside:
            values = absent(parameter.shape, parameter.dtype, found.device)
        else:
            values = found.read(parameter)
        torch.utils.swap_tensors(parameter, nn.Parameter(values, parameter.requires_grad))  # type: ignore[no-untyped-call]
    setattr(module, _STREAMED, found)


def streamed(module: object) -> Layers | None:
    """Return the layers of a module that `stream` was called for; None for any other object."""
    found: Layers | None = getattr(module, _STREAMED, None)
    return found


def absent(shape: torch.Size, dtype: torch.dtype, device: torch.device) -> Tensor:
    """Return a tensor of this shape, type and device that takes the memory of one number.

    It stands in a module for values that are not in memory.
    """
    return torch.empty(1, dtype=dtype, device=device).expand(shape)


def is_absent(tensor: Tensor) -> bool:
    """Whether a tensor is one that `absent` made."""
    return tensor.numel() > 1 and not any(tensor.stride())
