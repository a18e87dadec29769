"""The weights of a torch Module, which a run evaluates at x + shift u and moves along u.

Weights are written by `Weights.move_`, `Weights.add_` and `load_values` alone; an evaluation writes none (`evaluable`).
"""

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial

from torch import Tensor, nn

from dpzero_theory.optim.weights.directions import Directions, wide
from dpzero_theory.optim.weights.evaluable import Evaluable
from dpzero_theory.optim.weights.groups import Group
from dpzero_theory.optim.weights.precision import Rounding

_BLOCK = 1 << 17
"""How many coordinates of a released vector are added at a time, which bounds the memory that `add_` needs."""

Scales = Sequence[tuple[int, float]]
"""Pairs (number of a direction, amount times the direction's factor, see `Directions.factor`)."""
Through = Callable[[int, slice, Tensor, Tensor], Tensor]
"""A function (parameter's index, coordinates of what this process holds of it, the sum of amount u there, the weights
there) -> what is added to the weights. Momentum and Adam are such functions."""


class Weights(Evaluable):
    """The trainable parameters x of a module, which a run evaluates at points beside x and moves along directions.

    Args:
        module: the module, of which the parameters with requires_grad are x.
        directions: the random directions u_0, u_1, ... of the run.
        groups: parameters with factors of their own for the step size and the smoothing; see `weights.groups`.
        precision: how moves are rounded in half precision, one of `precision.PRECISIONS`.

    Raises:
        ValueError: an unknown precision, a group that matches no parameter, or a parameter that `Parameters` does not
            support.
    """

    def __init__(
        self, module: nn.Module, directions: Directions, *, precision: str = "nearest", groups: Sequence[Group] = ()
    ) -> None:
        self._rounding = Rounding(precision)
        super().__init__(module, directions, groups, self._rounding.low)
        self._rounding.begin([held for held, _ in self.pieces()])

    def move_(self, amounts: Sequence[tuple[int, float]], through: Through | None = None) -> None:
        """Move the weights: x <- x + the sum of amount u_number over the pairs (number, amount).

        The new weights are a function of the old ones and `amounts` alone. The sum is formed in float32 in the order
        given, and added at once. Stochastic rounding takes its random bits from the first number. through: a function
        such as momentum; if given, what it makes of the sum is added in place of the sum. Raises ValueError for an
        amount that is not finite, and inside `shifted`.
        """
        if self._mode is not None:
            raise ValueError("move_ must not be called inside shifted")
        for _, amount in amounts:
            if not (isinstance(amount, float | int) and math.isfinite(amount)):
                raise ValueError(f"amount must be a finite number; got {amount!r:.40}")
        scales = [(number, amount * self._factor(number)) for number, amount in amounts]
        if not scales:
            return
        self._make(scales, through)
        self.reshard()

    def add_(self, values: Callable[[int, int, int], Tensor], number: int) -> None:
        """Add a vector with one number for each weight to the weights, one block of coordinates after the other.

        values: a function (index of a parameter, first coordinate, count) -> these coordinates of the vector, float64.
        number: of the direction from which stochastic rounding takes its random bits. Sums are rounded as by `move_`.
        A process whose shard does not hold the coordinates asks for them too, so that all processes ask for the same.
        """
        for index, (size, (held, origin)) in enumerate(zip(self.sizes, self.pieces(), strict=True)):
            flat = held.contiguous().view(-1)
            for start in range(0, size, _BLOCK):
                found = values(index, start, min(_BLOCK, size - start))
                first, last = max(start, origin), min(start + len(found), origin + len(flat))
                if first < last:
                    delta = found[first - start : last - start].to(wide(flat.dtype)).to(flat.device)
                    self._add(flat, index, origin, slice(first - origin, last - origin), delta, number)
            if not held.is_contiguous():
                held.copy_(flat.view(held.shape))
        self.reshard()

    def squared_norm(self, number: int) -> int:
        """Return ||v||^2, where v is the vector of integers along u_number; see `Directions.integers`."""
        return self.directions.squared_norm(number, self.sizes, self.parameters[0].device)

    def state_dict(self) -> dict[str, Tensor]:
        """Return the 16 further bits of each half-precision weight, by the parameter's name, in host memory.

        They are what `values` leaves out of a checkpoint. The mapping is empty unless the precision is "master".
        """
        return self._rounding.state_dict(self.names, self.parameters)

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Put back the further bits of half-precision weights that `state_dict` returned.

        They belong to the weights of the same moment, which `load_values` puts back. Raises ValueError for other names
        or shapes.
        """
        self._rounding.load_state_dict(state, self.names, self.parameters)

    def forget(self) -> None:
        """Set the further bits of half-precision weights to zero, as at the start; the weights stay as they are."""
        self._rounding.forget()

    def _make(self, scales: Scales, through: Through | None) -> None:
        pieces = [  # detached, so that no gradients are recorded
            (held, index, origin) for index, (held, origin) in enumerate(self.pieces()) if held.numel()
        ]
        if through is None and len(scales) == 1 and all(self._rounding.is_plain(held.dtype) for held, _, _ in pieces):
            self.directions.add_all_(pieces, *scales[0])
            return
        for held, index, origin in pieces:
            self._move(held, index, origin, scales, through)

    def _move(self, weight: Tensor, index: int, origin: int, scales: Scales, through: Through | None) -> None:
        if self._rounding.is_plain(weight.dtype) and len(scales) == 1 and through is None:
            self.directions.add_(weight, scales[0][0], index, scales[0][1], origin)
            return
        if not weight.is_contiguous():
            copy = weight.contiguous()
            self._move(copy, index, origin, scales, through)
            weight.copy_(copy)
            return
        flat = weight.view(-1)
        pieces = [
            self.directions.blocks(number, index, origin, flat.numel(), scale, wide(weight.dtype), flat.device)
            for number, scale in scales
        ]
        for (here, delta), *others in zip(*pieces, strict=True):
            for _, values in others:
                delta.add_(values)
            if through is not None:
                delta = through(index, here, delta, self._rounding.value(flat, index, here, wide(weight.dtype)))
            self._add(flat, index, origin, here, delta, scales[0][0])

    def _add(self, flat: Tensor, index: int, origin: int, here: slice, delta: Tensor, number: int) -> None:
        """Add delta to flat[here], rounded as the precision says.

        flat: what this process holds of the parameter `index`, from its coordinate `origin` on. number: of the
        direction whose random bits stochastic rounding takes.
        """
        bits = partial(self.directions.uniform, number, index, origin + here.start, delta.numel(), flat.device)
        self._rounding.add_(flat, index, here, delta, bits)
