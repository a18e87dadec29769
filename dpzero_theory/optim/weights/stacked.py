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

from dpzero_theory.optim.weights.shifted import Place, Shift, Shifted

_RULE = "points_at_once must be 1 for these losses"


class Unread(Shifted):  # type: ignore[no-untyped-call]
    """Refuses operations that read or write the memory of a trainable parameter."""

    def _touched(self, value: Tensor) -> list[Place]:
        if places := super()._touched(value):
            raise ValueError(f"{_RULE}: {places[0].name} is read by other means than torch's functions on it")
        return places


class Stacked(TorchFunctionMode):
    """Hands stacks instead of parameters to torch's functions. of: the stack of each parameter, by its `id`."""

    def __init__(self, of: dict[int, Tensor]) -> None:
        super().__init__()
        self._of = of

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        args, kwargs = _pytree.tree_map(self._replaced, (args, kwargs or {}))
        return func(*args, **kwargs)

    def _replaced(self, value: Any) -> Any:
        return self._of.get(id(value), value)


def stack_of(shifts: Sequence[Shift], place: Place) -> Tensor:
    """The values x + scale u of a parameter at each of the shifts, along a first axis."""
    return torch.stack([shift.whole(place) for shift in shifts])


def at_all(
    parameters: Sequence[nn.Parameter], stacks: Sequence[Tensor], ask: Callable[[], Tensor]
) -> tuple[Tensor, ...]:
    """The tensor that `ask()` returns where the parameters have the values of each entry of the stacks.

    Raises ValueError for losses that cannot be computed so.
    """

    def at(*values: Tensor) -> Tensor:
        with Stacked({id(parameter): value for parameter, value in zip(parameters, values, strict=True)}):
            return ask()

    try:
        with warnings.catch_warnings(), sdpa_kernel(SDPBackend.MATH):  # vmap does not support fused attention
            # vmap warns where it would evaluate the points one after the other
            warnings.filterwarnings("error", "There is a performance drop", UserWarning)
            found: Tensor = torch.vmap(at)(*stacks)
    except (RuntimeError, UserWarning) as error:
        raise ValueError(f"{_RULE}: {' '.join(str(error).split()):.200}") from error
    return found.unbind()
