"""What a module holds in addition to its trained weights: buffers, frozen parameters, and which of them there are.

Buffers and frozen parameters are handed out with the weights (`state_dict`, a Trainer's files), and evaluations read
private records: a buffer that the first batch fills, or a running maximum, would carry records out. So an evaluation
leaves nothing there:

    a buffer                      is put back after each evaluation, so the next one finds it as the first one did
    a frozen parameter, a buffer  is not copied: before a run begins an operation that would write it is refused, and
      of more than 2^22 elements  later the run ends after a step that wrote it (`require_unwritten`)
    the module's entries          are put back too: made, taken away or replaced buffers, parameters and submodules

What others write between evaluations stays. The kernels of batch normalisation write its statistics without torch's
counting the write, so buffers are compared by value after such a function. Numpy may write any memory, so buffers are
compared at each save and at the end too (`settle`). Two things are not seen: frozen parameters that are written in such
ways, and values in plain attributes, which no `state_dict` has. Trained parameters are never touched.
"""

from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from dpzero_theory.optim.weights.shifted import storage_of

_MOST_COPIED = 1 << 22
"""The most elements of a buffer that is copied and put back; a larger one must not be written."""


class _Held(NamedTuple):
    # A buffer or frozen parameter before an evaluation
    name: str
    tensor: Tensor
    memory: Tensor  # a view of the tensor's memory
    copy: Tensor | None  # of its values; None if it is not copied, and must not be written


class Untrained:
    """Keeps buffers of a module as they were before each evaluation, and finds out if one writes frozen parameters.

    Buffers of at most 2^22 elements are copied and put back. Larger ones and frozen parameters are not: a write to one
    is noted, and `require_unwritten` then raises. Put back are also submodules and buffers, and with `parameters`
    parameters, that an evaluation adds, replaces or removes: the dictionaries in which each submodule holds them, and
    its set of buffers that are not persistent. Sparse and nested buffers are not looked at.

    Args:
        module: the module that is evaluated.
        parameters: whether frozen parameters are guarded too. It must be False for a sharded module, whose parameters
            FSDP replaces.

    Attributes:
        guarded: by storage (`shifted.storage_of`), the name of a buffer or frozen parameter that must not be written,
            or "" for a buffer that is put back.
        parts: the module and its submodules.
        taken: how often all this was noted anew, because something other than an evaluation had changed it.
        restored: how often it was put back, after an evaluation that changed it or may have.
    """

    def __init__(self, module: nn.Module, *, parameters: bool) -> None:
        self._module, self._parameters = module, parameters
        self._live: list[Any] | None = None
        self._noted: list[Any] = []
        self._held: list[_Held] = []
        self._state: list[tuple[int, int]] = []
        self._written = ""
        self.taken = self.restored = 0
        self.guarded: dict[int, str] = {}
        self.parts: list[nn.Module] = []

    def begin(self) -> None:
        """Note the buffers and frozen parameters, with the buffers' values, before an evaluation. `put_back` undoes
        what the evaluation changes in buffers; nothing is refused here."""
        if self._live is None or not self._same():
            self._take()

    def settle(self) -> None:
        """Put back buffers that an evaluation has changed by writes that torch does not count (`Tensor._version`). Call
        this before buffers are shown, for example saved."""
        if self._live is not None and self._same():
            self._restore()

    def put_back(self, *, written: bool) -> None:
        """Put back the buffers' values, and buffers and parameters that an evaluation has replaced. Safe to repeat.

        If `written` is False, only tensors are looked at whose version (`Tensor._version`) has changed; it must be True
        if the evaluation may have written buffers in other ways.
        """
        if self._live is not None and (written or not self._same()):
            self._restore()

    def _restore(self) -> None:
        # Puts back dictionaries and buffers that differ from what `begin` noted. A frozen parameter or a buffer of more
        # than `_MOST_COPIED` elements has no copy: if it was written, its name is kept, for `require_unwritten`.
        assert self._live is not None
        self.restored += 1
        for live, noted in zip(self._live, self._noted, strict=True):
            if not _alike(live, noted):
                live.clear()
                live.update(noted)
        for held, before in zip(self._held, self._state, strict=True):
            tensor, memory = held.tensor, held.memory
            if _state(tensor)[0] != _state(memory)[0] or tensor.shape != memory.shape or tensor.dtype != memory.dtype:
                tensor.data = memory
            if held.copy is None:
                self._written = held.name if _state(tensor)[1] != before[1] else self._written
            elif not bool(((memory == held.copy) | ((memory != memory) & (held.copy != held.copy))).all()):
                with torch.inference_mode(memory.is_inference()), torch.no_grad():
                    memory.copy_(held.copy)
        self._state = [_state(held.tensor) for held in self._held]

    def require_unwritten(self) -> None:
        """Raise ValueError if an evaluation has written a frozen parameter, or a buffer of more than 2^22 elements:
        these are not copied, so they cannot be put back."""
        if self._written:
            raise ValueError(
                f"losses must not change what is handed out with the module; got a write of {self._written}: the module"
                " may hold what is private"
            )

    def _take(self) -> None:
        self.taken += 1
        self._live = None  # it stays None if a line below raises, so that nothing is compared or put back
        parts = list(self._module.modules())
        live: list[Any] = []
        for part in parts:
            registries = [part._modules, part._buffers, *([part._parameters] if self._parameters else [])]
            live += [registry for registry in registries if isinstance(registry, dict)]
            live.append(part._non_persistent_buffers_set)
        trained = {storage_of(p) for p in self._module.parameters() if p.requires_grad}
        found = [
            _Held(name, buffer, memory, memory.clone() if memory.numel() <= _MOST_COPIED else None)
            for name, buffer in self._module.named_buffers()
            if _can_be_copied(buffer) and storage_of(memory := buffer.detach()) not in trained
        ]
        for name, parameter in self._module.named_parameters() if self._parameters else ():
            own = not (parameter.requires_grad or parameter.is_meta)
            if own and storage_of(parameter) not in trained | {0}:
                found.append(_Held(name, parameter, parameter.detach(), None))
        guarded = {storage_of(held.memory): "" if held.copy is not None else held.name for held in found}
        self._held, self._state = found, [_state(held.tensor) for held in found]
        self.guarded, self.parts, self._noted = guarded, parts, [registry.copy() for registry in live]
        self._live = live

    def _same(self) -> bool:
        # Two tests: the dictionaries have the entries that were noted, and buffers and frozen parameters are in the
        # same memory, to which torch has counted no write since.
        try:
            if self._live != self._noted:
                return False
        except RuntimeError:  # comparing different tensors gives no single truth value
            return False
        return self._state == [_state(held.tensor) for held in self._held]


def _alike(live: Any, noted: Any) -> bool:
    if isinstance(live, set):
        return bool(live == noted)
    # Values are compared by identity: the comparison of two tensors would give no single truth value.
    return list(live) == list(noted) and all(live[name] is value for name, value in noted.items())


def _can_be_copied(buffer: Tensor) -> bool:
    return buffer.layout == torch.strided and not (buffer.is_meta or buffer.is_nested)


def _state(tensor: Tensor) -> tuple[int, int]:
    # Where the tensor's memory is, and how often torch counted a write to it (0 if it does not count)
    try:
        return tensor.data_ptr(), 0 if tensor.is_inference() else tensor._version
    except RuntimeError:  # a tensor subclass may have no memory of its own
        return 0, 0
