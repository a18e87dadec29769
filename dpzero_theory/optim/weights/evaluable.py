"""Parameters that are evaluated at x + shift u without ever being written.

Inside `Evaluable.shifted` every operation that reads a trainable parameter W reads a fresh tensor W + shift u instead,
which dies with the operation. So nothing has to be restored, in any precision and whatever the loss function raises,
and memory grows by the largest parameter only. The replacement (`weights.shifted`) goes by memory, and it is made where
every operation on tensors passes: tied weights, views, fused kernels, scripted modules and weights handed over in lists
are all seen. Compiled modules run uncompiled inside. Under `fully_shard` (FSDP2) what reads the shards is the gathering
of the weights, so that a forward computes with W + shift u (`weights.shards`). What the replacement cannot see is
memory that is read without an operation (`numpy`, `tolist`, a custom kernel): `require_used` then names the parameter.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial

import torch
from torch import Tensor, nn

from dpzero_theory import check
from dpzero_theory.optim.weights.directions import Directions
from dpzero_theory.optim.weights.groups import Group, factors
from dpzero_theory.optim.weights.parameters import Parameters
from dpzero_theory.optim.weights.shifted import Scratch, Shift, Shifted
from dpzero_theory.optim.weights.stacked import Unread, at_all, stack_of
from dpzero_theory.optim.weights.untrained import Untrained


class Evaluable(Parameters):
    """The trainable parameters x of a module, evaluated beside x along random directions.

    Args:
        module: as of `Parameters`, whose errors it raises.
        directions: the directions u_0, u_1, ... of the run.
        groups: parameters with factors of their own for the step size and the smoothing; see `weights.groups`.
        low: the bits beside half-precision weights (`precision.Rounding.low`), which belong to x.

    Attributes:
        factors: (factor of the step size, factor of the smoothing) of each parameter.
        untrained: the module's buffers and frozen parameters, as evaluations must leave them.
    """

    def __init__(
        self, module: nn.Module, directions: Directions, groups: Sequence[Group], low: Mapping[int, Tensor]
    ) -> None:
        super().__init__(module)
        self.directions = directions
        self.factors = factors(groups, self.names)
        self._low = low
        self._unread = {place.name for group in self.places().values() for place in group}
        self._scratch = Scratch()
        self.untrained = Untrained(module, parameters=not self.collective, passed_over=self._passed_over)
        self._mode: Shifted | None = None
        self._before: tuple[bool, list[nn.Module]] = False, []  # (gradients enabled?, submodules in training mode)

    @contextmanager
    def shifted(self, number: int, shift: float) -> Iterator[None]:
        """Evaluate the module at x + shift u_number: without gradients, in eval mode, the weights unwritten.

        What an evaluation leaves in buffers is put back, and it may not write frozen parameters (`weights.untrained`).
        Outputs must be used up inside: a view of a weight (not a result computed from it) that leaves the context is
        a view of x. In half precision x + shift u is rounded to nearest, so that a coordinate with |shift u| below half
        the spacing of its numbers may not change. Raises ValueError when a parameter is written inside.

        An interrupt (Ctrl-C) that falls into the few lines of this function itself is made good by `restore`.
        """
        by = self._shift(number, shift)
        with self._reading(partial(Shifted, by, scratch=self._scratch, unread=self._unread)):
            yield

    def evaluated(
        self, points: Sequence[tuple[int, float]], function: Callable[[nn.Module], Tensor], at_once: int = 1
    ) -> list[Tensor]:
        """function(module) at x + shift u_number, for each pair (number, shift) of the points.

        at_once: how many points are evaluated in one pass, see `weights.stacked`. The results are the same up to
        rounding. Raises ValueError where it must be 1.
        """
        found: list[Tensor] = []
        if at_once == 1:
            for point in points:
                with self.shifted(*point):
                    found.append(function(self.module))
            return found
        if self.collective:
            raise ValueError("points_at_once must be 1 where the module is sharded")
        for first in range(0, len(points), at_once):
            shifts = [self._shift(*point) for point in points[first : first + at_once]]
            places = {place.index: place for group in self.places().values() for place in group}
            stacks = [stack_of(shifts, places[index]) for index in places]
            with self._reading(partial(Unread, shifts[0], scratch=self._scratch, unread=set())):
                read = [self.parameters[index] for index in places]
                found += at_all(read, stacks, partial(function, self.module))
        return found

    def _shift(self, number: int, shift: float) -> Shift:
        scale = check.real("shift", shift) * self._factor(number)
        return Shift(self.directions, number, scale, self._low, [smoothing for _, smoothing in self.factors])

    @contextmanager
    def _reading(self, reads: Callable[..., Shifted]) -> Iterator[None]:
        """Inside the block operations read weights through the mode that `reads` makes; no gradients, eval mode."""
        if self._mode is not None:
            raise ValueError("shifted contexts must not be nested")
        self.reshard()
        self.untrained.begin()
        mode = reads(self.places(), guarded=self.untrained.guarded)
        self._before = torch.is_grad_enabled(), [part for part in self.untrained.parts if part.training]
        try:
            self._mode = mode
            if self._before[1]:
                self.module.eval()
            torch.clear_autocast_cache()  # autocast keeps half-precision copies of weights: here of x
            torch.set_grad_enabled(False)
            mode.begin()
            yield
        finally:
            if self._mode is mode:
                self.restore()

    def restore(self) -> None:
        """End a `shifted` that an interrupt has left open; nothing to do otherwise. Safe to repeat."""
        if self._mode is None:
            return
        self._mode.retire()
        grad, training = self._before
        torch.set_grad_enabled(grad)
        torch.clear_autocast_cache()
        self.reshard()
        for part in training:
            part.training = True
        self.untrained.put_back(written=self._mode.written)
        self._mode = None

    def require_used(self) -> None:
        """Raise ValueError naming the trainable parameters that no evaluation inside `shifted` has read so far."""
        if self._unread:
            names = ", ".join(sorted(self._unread))
            raise ValueError(f"the losses must read every trainable parameter (freeze the others); not read: {names}")

    def _factor(self, number: int) -> float:
        check.integer("number", number, at_least=0, at_most=2**64 - 1)
        return self.directions.factor(number, self.sizes, self.parameters[0].device)

    def _look_again(self) -> None:
        """Parameters have other memory than before, perhaps inside `shifted`."""
        if self._mode is not None:
            self._mode.places = self.places()

    def _passed_over(self, parameter: nn.Parameter) -> bool:
        """Whether new memory of a frozen parameter is no change of it, as where its layer is read for each call."""
        return False
