"""Puts torch's state back after an evaluation that was interrupted: its modes, its levels and the warnings' filters.

Inside `torch.vmap`, forward-mode differentiation or a torch mode, an entry stands on a stack of torch's, which the end
of the block takes off. If an interrupt (Ctrl-C) comes when the block is over and the entry is still there, nothing
takes it off any more, and later computations of the same thread are wrong or refused.
"""

import sys
import traceback
import warnings
from collections.abc import Iterator
from contextlib import suppress

import torch
from torch._C import _get_function_stack_at, _len_torch_function_stack, _pop_torch_function_stack
from torch._functorch import eager_transforms
from torch.autograd import forward_ad
from torch.overrides import TorchFunctionMode


class Mode(TorchFunctionMode):
    """A torch mode for functions that can also be left when an interrupt has taken it off torch's stack of modes.

    While a mode handles a function, torch takes it off that stack; an interrupt at this moment may leave it off.
    """

    def __exit__(self, *raised: object) -> None:
        if any(_get_function_stack_at(i) is self for i in range(_len_torch_function_stack())):
            while _pop_torch_function_stack() is not self:
                pass


class TorchState:
    """A record of torch's state when this object is made, which `restore` brings back.

    It holds how many modes for functions there are, the levels of functorch (`torch.vmap`, `torch.func.jvp`) and of
    forward-mode differentiation, and the list of filters of the module `warnings`.
    """

    def __init__(self) -> None:
        self._modes = _len_torch_function_stack()
        self._layers = torch._C._functorch.get_dynamic_layer_stack_depth()
        self._nesting = eager_transforms.JVP_NESTING
        self._dual = forward_ad._current_level
        self._filters = warnings.filters

    def restore(self) -> None:
        """End the modes and levels of this thread that were begun since this object was made. Safe to repeat.

        If all of them have ended by themselves, this does nothing. What all threads share (the numbers of the levels,
        the filters of warnings) is put back only while an interrupt is handled, or an exception that was raised because
        of one. In all other cases it was put back already, or another thread has changed it.
        """
        chain = list(_chain(sys.exception()))
        if not all(isinstance(raised, Exception) for raised in chain):
            # The interrupt's traceback may keep torch's own context managers alive, half-way. They end when it is
            # deleted, and would then end a level, or put back a mode, of a later evaluation. Cleared now, they end now.
            for raised in chain:
                traceback.clear_frames(raised.__traceback__)
            # torch counts levels twice, in C++ and in Python; the interrupt may have come between the two
            with suppress(RuntimeError):
                torch._C._exit_dual_level(level=self._dual + 1)
            forward_ad._current_level, eager_transforms.JVP_NESTING = self._dual, self._nesting
            if warnings.filters is not self._filters:
                warnings.filters = self._filters
                with warnings.catch_warnings():  # makes Python forget which warnings the earlier filters let pass
                    pass
        while _len_torch_function_stack() > self._modes:
            _pop_torch_function_stack()
        torch._C._functorch.pop_dynamic_layer_stack_and_undo_to_depth(self._layers)


def _chain(raised: BaseException | None) -> Iterator[BaseException]:
    """The exception `raised`, the one in whose handling it was raised, and so on."""
    while raised is not None:
        yield raised
        raised = raised.__context__
