"""Several points in one pass, and derivatives of losses along directions u at the weights x.

**Several points.** Operations that read a weight W are given W + shift_p u_p for every point p at once.

The losses run once, under `torch.vmap` over the points. What does not depend on a trainable parameter, such as the
frozen layers below the first trained one, is computed once for all points. The rest is computed for all of them by
batched kernels, whose sums may be rounded otherwise than those of one point. `Stacked` hands the stack of a parameter's
values, in place of the parameter, to each of torch's functions. Whatever else reads a parameter's memory (a view that
was kept, a script) would see x, and is refused by `Unread`, which every operation on tensors passes.

**Derivatives**, by forward-mode differentiation.

A trainable parameter W is handed to torch's functions as a dual number, W with the tangent u, and each function then
computes its derivative beside its value; what does not depend on a trainable parameter is computed once, as ever.
`Duals` makes the dual number where a function reads the parameter, and it dies with the function, so memory grows by
the largest parameter and by one tangent beside each activation. With several directions in one pass (`torch.vmap` over
the tangents) values are computed once, and the tangents by batched kernels.

A loss without derivatives is refused: where an operation has no forward derivative, and where a loss does not depend on
the weights by operations that can be differentiated (a 0-1 loss), or reads a weight without its derivative (`.data`).
Attention runs by its plain kernel, as the fused ones have no forward derivative. What the losses detach later counts as
constant, which differences of losses do not do.
"""

import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from importlib import import_module
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd import forward_ad
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree
from torch.utils._python_dispatch import _disable_current_modes

from dpzero_theory.optim.weights.shifted import Place, Shift, Shifted, few_rows, looked_up

NONE = "difference must be 'forward' or 'central' for these losses"
"""The rule that losses without derivatives break, with which the message that refuses them begins."""
_CONSTANT: tuple[Any, ...] = (Tensor.detach, Tensor.data.__get__)  # type: ignore[attr-defined]
"""Functions whose result counts as constant, though it changes with the tensor."""


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


class _Linear(torch.autograd.Function):
    """functional.linear, of whose derivative only those products are formed that are not 0.

    torch's own derivative multiplies by a matrix of zeros where the input, or the weight, is frozen.
    """

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        return functional.linear(x, weight, bias)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Tensor) -> None:
        ctx.set_materialize_grads(False)
        ctx.save_for_forward(*inputs[:2])

    @staticmethod
    def jvp(ctx: Any, x_tangent: Any, weight_tangent: Any, bias_tangent: Any) -> Any:
        x, weight = ctx.saved_tensors
        terms = [] if x_tangent is None else [functional.linear(x_tangent, weight)]
        if weight_tangent is not None:
            terms.append(functional.linear(x, weight_tangent))
        if bias_tangent is not None:
            terms.append(bias_tangent.expand(*x.shape[:-1], weight.shape[0]))
        return sum(terms[1:], terms[0])


def _called(func: Any, args: Sequence[Any], named: Mapping[str, Any]) -> Any:
    """func(*args, **named), where `_Linear` takes the place of functional.linear."""
    return _linear(*args, **named) if func is functional.linear else func(*args, **named)


def _linear(input: Tensor, weight: Tensor, bias: Tensor | None = None) -> Any:
    return _Linear.apply(input, weight, bias)  # type: ignore[no-untyped-call]


class Duals(TorchFunctionMode):
    """A torch mode in which functions get dual numbers (a value with its derivative) in place of parameters.

    Args:
        places: where each parameter lies in memory, by the parameter's `id`.
        shift: gives the tangent of each parameter, which is its part of the direction u.
        unread: a set of parameters' names, from which each name is removed when a function reads the parameter.
    """

    def __init__(self, places: Mapping[int, Place], shift: Shift, unread: set[str]) -> None:
        super().__init__()
        self._places, self._shift, self._unread = places, shift, unread

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func is functional.embedding:
            place = self._places.get(id(args[1]))
            renormed = args[3:4] or [kwargs.get("max_norm")]
            if place is not None and renormed[0] is None and few_rows(args[1], args[0]):
                return func(*self._looked_up(place, args[0]))
        elif func in _CONSTANT and (place := self._places.get(id(args[0]))):
            raise ValueError(f"{NONE}: {place.name} is read without its derivative (detach, or .data)")
        elif func.__name__ == "__get__":  # func reads an attribute of a tensor; few attributes are tensors
            found = func(*args, **kwargs)
            if not isinstance(found, Tensor):
                return found
        if kwargs:
            kwargs = {name: self._replaced(value) for name, value in kwargs.items()}
        return _called(func, list(map(self._replaced, args)), kwargs)

    def _replaced(self, value: Any) -> Any:
        if isinstance(value, Tensor):
            return value if (place := self._places.get(id(value))) is None else self._dual(place)
        if type(value) in (list, tuple):
            return type(value)(map(self._replaced, value))
        return value

    def _dual(self, place: Place) -> Tensor:
        with _disable_current_modes():
            pair = place.tensor.clone(memory_format=torch.contiguous_format), self._shift.tangent(place)
        return self._joined(place, *pair)

    def _looked_up(self, place: Place, rows: Tensor) -> tuple[Tensor, Tensor]:
        """Return, for each look-up of an embedding, the index of its row among the rows that are looked up at all, and
        the dual numbers of those rows.

        place: of the embedding's matrix. rows: the row number of each look-up.
        """
        with _disable_current_modes():
            distinct, which = looked_up(rows)
            pair = place.tensor.index_select(0, distinct), self._shift.rows_of_tangent(place, distinct)
        return which, self._joined(place, *pair)

    def _joined(self, place: Place, values: Tensor, tangent: Tensor) -> Tensor:
        self._unread.discard(place.name)
        found: Tensor = forward_ad.make_dual(values, tangent)  # type: ignore[no-untyped-call]
        return found


def derivative(
    ask: Callable[[], Tensor],
    parameters: Sequence[nn.Parameter],
    places: Sequence[Place],
    shift: Shift,
    unread: set[str],
) -> Tensor:
    """Return the derivative of the tensor `ask()` at the weights, along the direction of `shift`; of the same shape.

    An entry is NaN where that of `ask()` itself is not finite.

    Args:
        parameters: the trainable ones, with respect to which the derivative is taken.
        places: where each of them lies in memory, in the same order.
        unread: a set of parameters' names, from which those that `ask` reads are removed.

    Raises:
        ValueError: losses without derivatives.
    """
    by_parameter = {id(parameter): place for parameter, place in zip(parameters, places, strict=True)}
    with _differentiable(), forward_ad.dual_level():
        with Duals(by_parameter, shift, unread):
            found = ask()
        value, tangent = forward_ad.unpack_dual(found)  # type: ignore[no-untyped-call]
    if tangent is None:
        raise ValueError(f"{NONE}: they do not depend on the weights by operations that can be differentiated")
    return _where_finite(value, tangent)


def derivatives(
    ask: Callable[[], Tensor], parameters: Sequence[nn.Parameter], values: Sequence[Tensor], stacks: Sequence[Tensor]
) -> tuple[Tensor, ...]:
    """Return the derivatives of the tensor `ask()` along several directions, computed in one pass; one for each.

    An entry is NaN where that of `ask()` is not finite.

    Args:
        parameters: the trainable ones, with respect to which derivatives are taken.
        values: a copy of each parameter; the derivatives are taken at these values, and the parameters themselves are
            not changed.
        stacks: for each parameter its tangents (its parts of the directions), stacked along a first axis.

    Raises:
        ValueError: losses without derivatives.
    """

    def at(*duals: Tensor) -> Tensor:
        with Stacked(dict(zip(map(id, parameters), duals, strict=True)), _called):
            return ask()

    def along(*tangents: Tensor) -> Tensor:
        return _where_finite(*torch.func.jvp(at, tuple(values), tangents))

    with _differentiable():
        return in_one_pass(along, stacks)


def _where_finite(value: Tensor, tangent: Tensor) -> Tensor:
    return torch.where(value.isfinite(), tangent, torch.nan)


@cache
def _ready() -> None:
    """Import the module that torch imports at the first dual number, without its deprecation warnings, which concern
    torch alone."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        import_module("torch._decomp.decompositions_for_jvp")


@contextmanager
def _differentiable() -> Iterator[None]:
    """Inside the block attention runs by its plain kernel, the only one with a forward derivative. Another operation
    that has none raises ValueError, which names it."""
    _ready()
    try:
        with sdpa_kernel(SDPBackend.MATH):
            yield
    except (RuntimeError, NotImplementedError) as error:
        said = " ".join(str(error).split())
        if not any(word in said for word in ("forward AD", "forward mode AD", "jvp", "forward-mode")):
            raise
        raise ValueError(f"{NONE}: {said:.200}") from error
