"""What torch and Python keep for the thread while losses are computed in a pass of their own: modes, levels, filters.

`torch.vmap`, forward-mode differentiation and torch's modes each put something on a stack that lasts until they end.
An interrupt (Ctrl-C) between their last line and the line that takes it off again leaves it there, and every later
computation of the thread would then be wrong or refused.
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
    """A torch mode for functions, whose block ends in order although an interrupt has left torch's stack in disorder.

    torch takes a mode off its stack while the mode handles a function; an interrupt may leave it off.
    """

    def __exit__(self, *raised: object) -> None:
        if any(_get_function_stack_at(i) is self for i in range(_len_torch_function_stack())):
            while _pop_torch_function_stack() is not self:
                pass


class TorchState:
    """The modes for functions, functorch's and forward-mode differentiation's levels, and the filters for warnings, as
    they are when this object is made. `restore` brings them back."""

    def __init__(self) -> None:
        self._modes = _len_torch_function_stack()
        self._layers = torch._C._functorch.get_dynamic_layer_stack_depth()
        self._nesting = eager_transforms.JVP_NESTING
        self._dual = forward_ad._current_level
        self._filters = warnings.filters

    def restore(self) -> None:
        """Take off what this thread has put on since this object was made. Safe to repeat, and without effect in order.

        What all threads share (numbers of levels, filters) is put back where the exception that is handled is an
        interrupt, or came of one, and else left alone, as another thread may have changed it.
        """
        chain = list(_chain(sys.exception()))
        if not all(isinstance(raised, Exception) for raised in chain):
            # torch's own context managers may be suspended in frames of the interrupt's traceback, and would put a mode
            # back, or end a level, when the traceback is thrown away; without these frames they do so now
            for raised in chain:
                traceback.clear_frames(raised.__traceback__)
            # the interrupt may also have come between torch's two records of a level, one in C++ and one in Python
            with suppress(RuntimeError):
                torch._C._exit_dual_level(level=self._dual + 1)
            forward_ad._current_level, eager_transforms.JVP_NESTING = self._dual, self._nesting
            if warnings.filters is not self._filters:
                warnings.filters = self._filters
                with warnings.catch_warnings():  # so that what is kept about earlier filters is not used any more
                    pass
        while _len_torch_function_stack() > self._modes:
            _pop_torch_function_stack()
        torch._C._functorch.pop_dynamic_layer_stack_and_undo_to_depth(self._layers)


def _chain(raised: BaseException | None) -> Iterator[BaseException]:
    """The exception `raised`, the one in whose handling it was raised, and so on."""
    while raised is not None:
        yield raised
        raised = raised.__context__
