"""From released numbers to weights: how a run's releases move a module, while it goes and when it is replayed."""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
from torch import Tensor, nn

from dpzero_theory import check
from dpzero_theory.optim.files.transcript import Header, TranscriptError, read
from dpzero_theory.optim.plan import Plan
from dpzero_theory.optim.weights.directions import Directions, wide
from dpzero_theory.optim.weights.module import Weights
from dpzero_theory.optim.weights.shards import collected, piece


def directions_of(header: Header) -> Directions:
    """Return the random directions u_0, u_1, ... of the run with this header, whose public key determines them."""
    return Directions(bytes.fromhex(header.key), header.plan.direction)


def weights_of(header: Header, module: nn.Module) -> Weights:
    """Return the trainable weights of a module, to be moved along the directions of the run with this header.

    Raises ValueError for a module whose weights are not supported.
    """
    return Weights(module, directions_of(header), precision=header.precision, groups=header.plan.groups)


def replay(path: str | os.PathLike[str], module: nn.Module) -> Header:
    """Move the weights of a module as the run in the folder at `path`, or in the file of it alone, did.

    module: with the weights that the run began with. Returns what the run was begun with. Raises TranscriptError for
    other initial weights, or a run that released vectors, which are kept nowhere, LedgerError for a damaged file, and
    OSError.
    """
    header, records = read(Path(path))
    weights = weights_of(header, module)
    require_initial(header, weights)
    if not header.plan.scalars:
        raise TranscriptError(f"{path}: releases of {header.plan.algorithm} are vectors and are not kept")
    moves = Moves(header.plan, weights)
    for record in records:
        moves.make(*record)
    return header


def require_initial(header: Header, weights: Weights) -> None:
    """Raise TranscriptError unless the weights are those with which the run of this header began."""
    found = weights.fingerprint()
    if found != header.fingerprint:
        raise TranscriptError(f"weights must have fingerprint {header.fingerprint[:16]}; got {found[:16]}")


class Moves:
    """Moves weights by releases, from the initial weights on or from those of a checkpoint whose state is loaded.

    Beside the weights it keeps the numbers that the plan's update rule needs (none, momentum, or Adam's means), in
    float32, or in float64 where weights are float64, and sharded as the weights are.
    """

    def __init__(self, plan: Plan, weights: Weights) -> None:
        self._plan, self._weights, self._update = plan, weights, plan.update_rule
        self._kept = [[_empty(held) for held, _ in weights.pieces()] for _ in self._update.kept]

    def make(self, release: int, sums: Sequence[float]) -> None:
        """Move the weights by one release, as the plan says. release: its number, 0 to T - 1. sums: its K released
        numbers, noise included.

        Raises ValueError inside an evaluation, where weights must not move.
        """
        plan = self._plan
        if plan.plain:
            self._weights.move_(plan.along(release, sums, -plan.step_size(release)))
            return
        alpha, decay = plan.step_size(release), plan.weight_decay

        def amount(index: int, here: slice, estimate: Tensor, weight: Tensor) -> Tensor:
            kept = [tensors[index][here] for tensors in self._kept]
            step_size, smoothing = self._weights.factors[index]
            found = self._update.direction(estimate.div_(smoothing), kept, release)
            if decay:
                found.add_(weight.mul(decay))
            return found.mul_(-alpha * step_size)

        self._weights.move_(plan.along(release, sums), amount)

    def state_dict(self) -> dict[str, Tensor]:
        """Return the numbers that the update rule keeps, in host memory; of sharded parameters on rank 0 alone.

        Their keys are NAME.PARAMETER, such as `momentum.layer.weight`.
        """
        found = {
            f"{word}.{name}": collected(held.view(piece(of)[0].shape), of)
            for word, tensors in zip(self._update.kept, self._kept, strict=True)
            for name, held, of in zip(self._weights.names, tensors, self._weights.parameters, strict=True)
        }
        return {name: tensor for name, tensor in found.items() if tensor is not None}

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Put back the numbers of the update rule. state: what `state_dict` returned. Raises ValueError for other names
        or sizes."""
        weights = self._weights
        names = {f"{word}.{name}" for word in self._update.kept for name in weights.names}
        if set(state) != names:
            raise ValueError(f"state must hold {sorted(names)} for the update; got {sorted(state)}")
        for word, tensors in zip(self._update.kept, self._kept, strict=True):
            for name, held, (_, origin), size in zip(
                weights.names, tensors, weights.pieces(), weights.sizes, strict=True
            ):
                found = state[f"{word}.{name}"]
                check.integer(f"size of {word}.{name}", found.numel(), at_least=size, at_most=size)
                held.copy_(found.reshape(-1)[origin : origin + held.numel()])

    def forget(self) -> None:
        """Set the numbers that the update rule keeps to zero, as at the start; the weights stay as they are."""
        for tensors in self._kept:
            for tensor in tensors:
                tensor.zero_()


def _empty(held: Tensor) -> Tensor:
    return torch.zeros(held.numel(), dtype=wide(held.dtype), device=held.device)
