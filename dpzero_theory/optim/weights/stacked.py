"""Several points in one pass: operations that read W see W + shift_p u_p of every point p at once.

The losses run once, under `torch.vmap` over the points. What does not depend on a trainable parameter, such as the
frozen layers below the first trained one, is computed once for all of them; the rest is computed for all of them by
batched kernels, whose sums may be rounded otherwise than those of one point. `Stacked` hands each of torch's functions,
in place of a parameter of the module, the stack of its values. Whatever else reads a parameter's memory (a view that
was kept, a script) would see x, and is refused by `Unread`: every operation on tensors passes there.
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
    """Hands functions stacks instead of parameters. of: the stack of each parameter, by its id."""

    def __init__(self, of: dict[int, Tensor]) -> None:
        super().__init__()
        self._of = of

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        args, kwargs = _pytree.tree_map(self._replaced, (args, kwargs or {}))
        return func(*args, **kwargs)

    def _replaced(self, value: Any) -> Any:
        return self._of.get(id(value), value)


def stack_of(shifts: Sequence[Shift], place: Place) -> Tensor:
    """x + scale u of a parameter for each of the shifts, along a first axis."""
    return torch.stack([shift.whole(place) for shift in shifts])


def at_all(
    parameters: Sequence[nn.Parameter], stacks: Sequence[Tensor], ask: Callable[[], Tensor]
) -> tuple[Tensor, ...]:
    """What `ask()`, a tensor, is where the parameters are each entry of the stacks; what cannot be is refused."""

    def at(*values: Tensor) -> Tensor:
        with Stacked({id(parameter): value for parameter, value in zip(parameters, values, strict=True)}):
            return ask()

    try:
        with warnings.catch_warnings(), sdpa_kernel(SDPBackend.MATH):  # fused attention takes no stacks
            warnings.filterwarnings("error", "There is a performance drop", UserWarning)  # one point after the other
            found: Tensor = torch.vmap(at)(*stacks)
    except (RuntimeError, UserWarning) as error:
        raise ValueError(f"{_RULE}: {' '.join(str(error).split()):.200}") from error
    return found.unbind()
