"""Several points in one pass: operations that read a weight W are given W + shift_p u_p for every point p at once.

The losses run once, under `torch.vmap` over the points. What does not depend on a trainable parameter, such as the
frozen layers below the first trained one, is computed once for all points. The rest is computed for all of them by
batched kernels, whose sums may be rounded otherwise than those of one point. `Stacked` hands the stack of a parameter's
values, in place of the parameter, to each of torch's functions. Whatever else reads a parameter's memory (a view that
was kept, a script) would see x, and is refused by `Unread`, which every operation on tensors passes.
"""

import warnings
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree

from dpzero_theory.optim.weights.shifted import Place, Shifted

_RULE = "points_at_once must be 1 for these losses"


class Unread(Shifted):  # type: ignore[no-untyped-call]
    """A torch mode that raises ValueError for operations that read or write the memory of a trainable parameter."""

    def _touched(self, value: Tensor) -> list[Place]:
        if places := super()._touched(value):
            raise ValueError(f"{_RULE}: {places[0].name} is read by other means than torch's functions on it")
        return places


class Stacked(TorchFunctionMode):
    """A torch mode in which functions get other tensors in place of parameters.

    Args:
        of: the tensor to use in place of each parameter, by the parameter's `id`.
        call: if given, is called with (function, arguments by position, arguments by name) in place of the function
            itself.
    """

    def __init__(self, of: dict[int, Tensor], call: Callable[..., Any] | None = None) -> None:
        super().__init__()
        self._of, self._call = of, call

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        args, kwargs = _pytree.tree_map(self._replaced, (args, kwargs or {}))
        return func(*args, **kwargs) if self._call is None else self._call(func, args, kwargs)

    def _replaced(self, value: Any) -> Any:
        return self._of.get(id(value), value)


def at_all(
    parameters: Sequence[nn.Parameter], stacks: Sequence[Tensor], ask: Callable[[], Tensor]
) -> tuple[Tensor, ...]:
    """Return what `ask()` gives at each of several points, computed in one pass: one tensor for each point.

    Args:
        stacks: for each of the parameters its values at the points, stacked along a first axis.

    Raises:
        ValueError: losses that cannot be computed in one pass.
    """

    def at(*values: Tensor) -> Tensor:
        with Stacked({id(parameter): value for parameter, value in zip(parameters, values, strict=True)}):
            return ask()

    return in_one_pass(at, stacks)


def in_one_pass(at: Callable[..., Tensor], stacks: Sequence[Tensor]) -> tuple[Tensor, ...]:
    """Return what `at` gives for the first entries of all stacks, for the second ones and so on, by one `torch.vmap`.

    Raises ValueError where torch cannot compute the function in this way.
    """
    try:
        with warnings.catch_warnings(), sdpa_kernel(SDPBackend.MATH):  # vmap does not support fused attention
            # vmap warns where it would evaluate the points one after the other
            warnings.filterwarnings("error", "There is a performance drop", UserWarning)
            found: Tensor = torch.vmap(at)(*stacks)
    except (RuntimeError, UserWarning) as error:
        raise ValueError(f"{_RULE}: {' '.join(str(error).split()):.200}") from error
    return found.unbind()
