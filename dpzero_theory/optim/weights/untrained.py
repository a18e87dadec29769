"""Keeps a module's buffers and frozen parameters free of private records.

Evaluations read private records, and a module's buffers and frozen parameters are saved and published with its weights.
A buffer that the first batch fills, for example, would carry records out. So after an evaluation

    a buffer                      is restored, so that the next evaluation finds it as the first one did
    a frozen parameter, a buffer  is not restored, as it was not copied; before a run begins a write is refused, and
      of more than 2^22 elements  later a step that wrote raises at its end (`Untrained.require_unwritten`)
    the set of entries            is restored: buffers, parameters and submodules that were added, removed or replaced

Changes that are made between evaluations stay. Some functions write buffers without a change of `Tensor._version`, as
batch normalisation does; after these all buffers are compared by value. Numpy can write any memory, so buffers are also
compared before each save and at the end (`Untrained.settle`). Not detected are such writes to frozen parameters, and
changes of plain attributes, which no `state_dict` has. Trained parameters are never touched.
"""

from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from dpzero_theory.optim.weights.shifted import storage_of

_MOST_COPIED = 1 << 22
"""The most elements of a buffer that is copied and restored. A larger buffer must not be written."""


class _Held(NamedTuple):
    # A buffer or frozen parameter before an evaluation
    name: str
    tensor: Tensor
    memory: Tensor  # A detached view of its memory
    copy: Tensor | None  # A copy of its values; None if it must not be written


class Untrained:
    """Restores the buffers of a module after each evaluation, and detects writes to its frozen parameters.

    Buffers of at most 2^22 elements are restored. Larger buffers and frozen parameters are not; `require_unwritten`
    raises after a write to one. Entries of the module (buffers, submodules and parameters) that an evaluation adds,
    replaces or removes are restored too, and so is which buffers are persistent. Sparse and nested buffers are ignored.

    Args:
        module: the module that is evaluated.
        parameters: if False, parameters are neither restored nor watched for writes. Pass False for a sharded module,
            since FSDP replaces its parameters.

    Attributes:
        guarded: a mapping from `shifted.storage_of(t)` to the name, for each buffer or frozen parameter t that must not
            be written; with the name "" for a buffer that is restored.
        parts: the module and all its submodules.
        taken: how often the state to be restored was recorded, first or anew after a change between evaluations.
        restored: how often all buffers have been compared by value to restore them, whether or not any differed.
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
        """Record the module's entries, and copy its small buffers, for `put_back` and `settle` to restore. Does nothing
        if all are as last recorded. Call this before an evaluation."""
        if self._live is None or not self._same():
            self._take()

    def settle(self) -> None:
        """Restore buffers that were written without a change of `Tensor._version`. Call this before they are saved."""
        if self._live is not None and self._same():
            self._restore()

    def put_back(self, *, written: bool) -> None:
        """Restore buffers, parameters and submodules that an evaluation has changed, added or removed. Safe to repeat.

        If `written` is False, nothing is compared by value unless an entry or a `Tensor._version` has changed. Pass
        True if the evaluation may have written a buffer in another way.
        """
        if self._live is not None and (written or not self._same()):
            self._restore()

    def _restore(self) -> None:
        # Restores what differs from the state that `begin` recorded. A frozen parameter or large buffer has no copy: if
        # it was written, its name is kept for `require_unwritten`.
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
        """Raise ValueError if an evaluation has written a frozen parameter, or a buffer of more than 2^22 elements."""
        if self._written:
            raise ValueError(
                f"losses must not change what is handed out with the module; got a write of {self._written}: the module"
                " may hold what is private"
            )

    def _take(self) -> None:
        self.taken += 1
        self._live = None  # If a line below raises, it stays None, and nothing is restored
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
        # Whether the recorded state still holds: modules have the same entries, and tensors the same memory, with no
        # write counted by torch since.
        try:
            if self._live != self._noted:
                return False
        except RuntimeError:  # Two different tensors cannot be compared to one truth value
            return False
        return self._state == [_state(held.tensor) for held in self._held]


def _alike(live: Any, noted: Any) -> bool:
    if isinstance(live, set):
        return bool(live == noted)
    # Compares entries by identity, since comparing two tensors would give a tensor.
    return list(live) == list(noted) and all(live[name] is value for name, value in noted.items())


def _can_be_copied(buffer: Tensor) -> bool:
    return buffer.layout == torch.strided and not (buffer.is_meta or buffer.is_nested)


def _state(tensor: Tensor) -> tuple[int, int]:
    # Returns the address of the tensor's memory, and how many writes torch has counted (0 if it does not count)
    try:
        return tensor.data_ptr(), 0 if tensor.is_inference() else tensor._version
    except RuntimeError:  # A tensor subclass may have no memory of its own
        return 0, 0
