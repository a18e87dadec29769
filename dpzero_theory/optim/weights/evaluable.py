"""Parameters that are evaluated at x + shift u without ever being written.

Inside `Evaluable.shifted` every operation that reads a trainable parameter W reads a fresh tensor W + shift u instead,
which dies with the operation. So nothing has to be restored, in any precision and whatever the loss function raises,
and memory grows by the largest parameter only. The replacement (`weights.shifted`) goes by memory, and it is made where
every operation on tensors passes: tied weights, views, fused kernels, scripted modules and weights handed over in lists
are all seen. Compiled modules run uncompiled inside. Under `fully_shard` (FSDP2) what reads the shards is the gathering
of the weights, so that a forward computes with W + shift u (`weights.shards`). What the replacement cannot see is
memory that is read without an operation (`numpy`, `tolist`, a custom kernel): `require_used` then names the parameter.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial

import torch
from torch import Tensor, nn

from dpzero_theory.difference import Point
from dpzero_theory.optim.weights.copies import Ahead, Scratch, Shift
from dpzero_theory.optim.weights.derivatives import NONE, derivative, derivatives, tangents_of, values_of
from dpzero_theory.optim.weights.directions import Directions
from dpzero_theory.optim.weights.groups import Group, factors
from dpzero_theory.optim.weights.parameters import Parameters
from dpzero_theory.optim.weights.places import Place
from dpzero_theory.optim.weights.shifted import Shifted
from dpzero_theory.optim.weights.stacked import Unread, at_all, stack_of
from dpzero_theory.optim.weights.untrained import Untrained


class Evaluable(Parameters):
    """The trainable parameters x of a module, which can be evaluated at points x + shift u along random directions u.

    Args:
        module: the module, of which the parameters with requires_grad are x. It must be as `Parameters` demands.
        directions: the directions u_0, u_1, ... of the run.
        groups: parameters with factors of their own for the step size and the smoothing; see `weights.groups`.
        low: by a parameter's index, the 16 further bits of its half-precision weights that precision "master" keeps
            (`precision.Rounding.low`). They belong to x.

    Attributes:
        factors: (factor of the step size, factor of the smoothing) of each parameter.
        untrained: puts the module's buffers back after each evaluation, and guards its frozen parameters.

    Raises:
        ValueError: a parameter that `Parameters` does not support, or a group that matches no parameter.
    """

    def __init__(
        self, module: nn.Module, directions: Directions, groups: Sequence[Group], low: Mapping[int, Tensor]
    ) -> None:
        super().__init__(module)
        self.directions = directions
        self.factors = factors(groups, self.names)
        self._smoothings = [smoothing for _, smoothing in self.factors]
        self._low = low
        self._unread = {place.name for group in self.places().values() for place in group}
        largest = max(p.numel() * p.element_size() for p in self.parameters)
        on_gpu = any(p.device.type == "cuda" for p in self.parameters)
        self._scratch, self._ahead = Scratch(), Ahead(largest) if on_gpu else None
        self.untrained = Untrained(module, parameters=not self.collective)
        self._mode: Shifted | None = None

    @contextmanager
    def shifted(self, number: int, shift: float) -> Iterator[None]:
        """A context manager in whose block the module computes with the weights x + shift u_number: without gradients,
        in eval mode, the weights unwritten. The shift of a parameter in a group is multiplied by the group's smoothing
        factor.

        What an evaluation leaves in buffers is put back, and it may not write frozen parameters (`weights.untrained`).
        Outputs must be used up inside: a view of a weight (not a result computed from it) that leaves the context is
        a view of x. In half precision x + shift u is rounded to nearest, so that a coordinate with |shift u| below half
        the spacing of its numbers may not change. Raises ValueError when a parameter is written inside.
        """
        by = self._shift(number, shift)
        with self._reading(partial(Shifted, by, scratch=self._scratch, ahead=self._ahead, unread=self._unread)):
            yield

    def at(self, point: Point, function: Callable[[nn.Module], Tensor]) -> Tensor:
        """Return function(module) with the weights at a point (number, shift), which means x + shift u_number.

        Where the shift is None, return the derivative of function(module) along u_number at x instead (see
        `weights.derivatives`). Raises ValueError for a function that has no derivative.
        """
        number, shift = point
        if shift is None:
            return self._derivatives([number], function)[0]
        with self.shifted(number, shift):
            return function(self.module)

    def evaluated(
        self, points: Sequence[Point], function: Callable[[nn.Module], Tensor], at_once: int = 1
    ) -> list[Tensor]:
        """Return function(module) at each of the points, as `at` does; a list in the order of the points.

        points: either all with a shift, or all with None for derivatives. at_once: how many points are evaluated in one
        pass (see `weights.stacked`), which changes the results by rounding only. Raises ValueError where these losses
        need at_once = 1.
        """
        if at_once == 1:
            return [self.at(point, function) for point in points]
        if self.collective:
            raise ValueError("points_at_once must be 1 where the module is sharded")
        found: list[Tensor] = []
        for first in range(0, len(points), at_once):
            group = points[first : first + at_once]
            shifted = [(number, shift) for number, shift in group if shift is not None]
            if len(shifted) < len(group):
                found += self._derivatives([number for number, _ in group], function)
                continue
            shifts = [self._shift(*point) for point in shifted]
            parameters, places = self._placed()
            stacks = [stack_of(shifts, place) for place in places]
            with self._reading(partial(Unread, shifts[0], scratch=self._scratch, ahead=self._ahead, unread=set())):
                found += at_all(parameters, stacks, partial(function, self.module))
        return found

    def _derivatives(self, numbers: Sequence[int], function: Callable[[nn.Module], Tensor]) -> Sequence[Tensor]:
        """Return the derivatives of function(module) at x along the directions with these numbers, in one pass."""
        if self.collective:
            raise ValueError(f"{NONE}: the module is sharded")
        shifts, ask = [self._shift(number, 1.0) for number in numbers], partial(function, self.module)
        parameters, places = self._placed()
        reading = partial(Unread, shifts[0], scratch=self._scratch, ahead=self._ahead, unread=set())
        if len(shifts) == 1:
            with self._reading(reading):
                return [derivative(ask, parameters, places, shifts[0], self._unread)]
        values, stacks = list(map(values_of, places)), [tangents_of(shifts, place) for place in places]
        with self._reading(reading):
            return derivatives(ask, parameters, values, stacks)

    def _placed(self) -> tuple[list[nn.Parameter], list[Place]]:
        """Return the parameters of which this process holds some coordinates, and where in memory each of them lies."""
        places = [place for group in self.places().values() for place in group]
        return [self.parameters[place.index] for place in places], places

    def _shift(self, number: int, shift: float) -> Shift:
        if not (isinstance(shift, float | int) and math.isfinite(shift)):
            raise ValueError(f"shift must be a finite number; got {shift!r:.40}")
        return Shift(self.directions, number, shift * self._factor(number), self._low, self._smoothings)

    @contextmanager
    def _reading(self, reads: Callable[..., Shifted]) -> Iterator[None]:
        """Inside the block the module is in eval mode, gradients are off, and operations read weights through a mode.

        reads: makes that torch mode, which hands shifted weights to operations, from the places of the parameters.
        """
        if self._mode is not None:
            raise ValueError("shifted contexts must not be nested")
        self.reshard()
        self.untrained.begin()
        mode = reads(self.places(), guarded=self.untrained.guarded)
        training = [part for part in self.untrained.parts if part.training]
        try:
            self._mode = mode
            if training:
                self.module.eval()
            torch.clear_autocast_cache()  # autocast may have kept half-precision copies of the unshifted weights
            with torch.no_grad(), mode:
                yield
        finally:
            self._mode = None
            if self._ahead is not None:
                self._ahead.forget()
            torch.clear_autocast_cache()
            self.reshard()
            for part in training:
                part.training = True
            self.untrained.put_back(written=mode.written)

    def require_used(self) -> None:
        """Raise ValueError naming the trainable parameters that no evaluation inside `shifted` has read so far."""
        if self._unread:
            names = ", ".join(sorted(self._unread))
            raise ValueError(f"the losses must read every trainable parameter (freeze the others); not read: {names}")

    def _factor(self, number: int) -> float:
        if not (isinstance(number, int) and 0 <= number < 2**64):
            raise ValueError(f"number must be an integer with 0 <= number < 2^64; got {number!r:.40}")
        return self.directions.factor(number, self.sizes, self.parameters[0].device)
