"""A run on a torch module: the step, and what makes the run survive crashes and interrupts.

    run = make_private_with_epsilon(...)        # optim.private
    run.run(); run.get_epsilon(delta)

A step does the following, in the order that crash safety needs. It pays for the release in the ledger (on disk), draws
the secret batch, evaluates every micro-batch at x +- lambda u, sums the clipped differences, adds noise once, writes
what is released to the transcript, and moves the weights. The transcript is on disk before the next payment, before a
checkpoint and at the end. A crash loses at most what was paid for at once (`paid_at_once`; with 1, the step that was
being made): those releases stay paid for, and their directions are not used again, since directions are numbered as
releases are. A resumed run has the weights of a checkpoint, or the initial ones, moved by the rest of the transcript.

An exception or an interrupt (Ctrl-C) at any point of a step leaves the module unshifted, with the weights of a
beginning of the transcript, and the next step catches up with the rest. Where the move itself or a write was
interrupted, the run refuses to go on until weights are loaded, or until it is resumed. A run is used by one thread.

Nothing else that depends on the records leaves a step. No loss is kept or logged, one that raises counts as 0 and
nothing is said, and what evaluations leave in buffers is put back. The callback of `run` sees what was released. A
batch's size is secret too, so nobody should publish how long steps took.
"""

import math
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from dpzero_theory.check import integer, real
from dpzero_theory.optim.files.folder import Folder
from dpzero_theory.optim.files.transcript import Checkpoint, Header, Record, TranscriptError, read
from dpzero_theory.optim.losses.evaluation import BatchSum
from dpzero_theory.optim.plan import Plan
from dpzero_theory.optim.step.algorithm import Sums
from dpzero_theory.optim.step.distributed import Ranks
from dpzero_theory.optim.weights.directions import Directions, wide
from dpzero_theory.optim.weights.module import Weights
from dpzero_theory.optim.weights.shards import collected, piece
from dpzero_theory.privacy.noise import NoiseSource
from dpzero_theory.privacy.schedule import Indices
from dpzero_theory.privacy.step import Step


class Run:
    """A run of the algorithm that its plan names, made by the functions of `optim.private`.

    Args:
        header: what the run was begun with: plan, key, fingerprint of the initial weights.
        weights: the trainable weights, with their initial values unless a checkpoint is loaded before the first step.
        sums: evaluates batches of the records, and sums their clipped differences.
        noise: where the noise comes from.
        batches: a function from a release's number to the numbers of the records of its batch.
        files: the run's open file; None on other ranks than 0.
        ranks: the processes of the run.

    Attributes:
        private: whether releases are paid for, with noise and batches from the operating system and not from a seed.
    """

    def __init__(
        self,
        header: Header,
        weights: Weights,
        sums: BatchSum,
        *,
        noise: NoiseSource,
        batches: Callable[[int], Indices],
        files: Folder | None,
        ranks: Ranks,
    ) -> None:
        self.plan: Plan = header.plan
        self.weights = weights
        self.weights.untrained.begin()
        self.weights.guarded = False  # the start has looked at the losses
        self.sums = sums
        self._moves = Moves(self.plan, weights)
        self.private = header.private and noise.private
        self._header, self._ranks = header, ranks
        self._files: Any = files  # rank 0 alone has it
        self._noise, self._batches = noise, batches
        self._position: int | None = None  # how many releases the weights have; None if unknown
        self._current = False  # whether the weights have all that the transcript holds

    def step(self) -> Record:
        """Make one release and move the weights by it. Returns what was released.

        A record whose loss raises counts as 0 (`losses.evaluation`).

        Raises BudgetSpentError when all T releases are made, LedgerError where the release cannot be paid for, and
        TranscriptError where `catch_up` raises it or the release cannot be recorded.
        """
        if not self._current:
            self.catch_up()
        self._current = False  # True again once the weights have this release too
        release, batch = self._ranks.lead(self._begin)
        total = self.sums.total(release, batch)
        if self.plan.scalars:
            sums = self._ranks.lead(lambda: self._files.write(release, self.plan.noisy(total, self._noise)))
            record = Record(release, tuple(sums.tolist()))
            self._move(record)
        else:  # a vector release is stored in the weights only; the transcript gets its number once they have it
            self._move_by_vector(release, total)
            self._ranks.lead(lambda: self._files.write(release, total[:0]))
            record = Record(release, ())
        self._current = True
        return record

    def run(self, callback: Callable[[Record], None] | None = None) -> None:
        """Make all steps that are left, after the weights have caught up with the transcript (`catch_up`).

        Raises what `step` raises, and RuntimeError where the weights of several ranks differ at the end.

        Args:
            callback: if given, is called after each step with what the step released; if it ends the run by an
                exception because of what it saw, the run has cost what its plan costs (`get_epsilon`).
        """
        self.catch_up()
        while self.releases_left:
            record = self.step()
            if callback is not None:
                callback(record)
        self.weights.untrained.settle()
        self._require_equal_weights()

    def catch_up(self) -> None:
        """Move the weights by what the transcript holds beyond them, which is nothing except after a resumption.

        Raises TranscriptError where the weights are neither the initial ones nor those of a checkpoint of this run,
        where the transcript ends before the checkpoint, and where releases are vectors, which it does not hold, and no
        checkpoint is loaded.
        """
        if self._current:
            return
        if self._position is None:
            self._require_initial()
            if self._ranks.lead(lambda: self._files.records()) and not self.plan.scalars:
                raise TranscriptError(
                    f"releases of {self.plan.algorithm} are vectors and are not kept: load a checkpoint, or go on from"
                    " the initial weights without what was made (begin_again)"
                )
            self._position = 0
        position, (records, kept) = self._position, self._ranks.lead(lambda: (self._files.records(), self._files.kept))
        if kept and position > (records[-1].release + 1 if records else 0):
            raise TranscriptError(
                f"the checkpoint is after release {position - 1}, which the run's file lacks: it was rolled back; put"
                " back the newest file, or load an earlier checkpoint"
            )
        for record in records if self.plan.scalars else ():
            if record.release >= position:
                self._move(record)
        self._require_equal_weights()
        self._current = True

    @property
    def releases_left(self) -> int:
        """How many steps may still be made: those of the plan that are not made and, in a run with a ledger, not paid
        for by an earlier process that crashed."""
        left: int = self._ranks.lead(lambda: self._files.left(self._position or 0))
        return left

    @property
    def history(self) -> list[Step]:
        """The releases that are paid for. Their epsilon is what the run costs only if their number was fixed without
        looking at what they released; `get_epsilon` says what may be claimed."""
        return self._ranks.lead(lambda: self._files.history)

    def get_epsilon(self, delta: float) -> float:
        """Return the epsilon that the run may claim at delta; infinity if the run is not private.

        Once a release is paid for it is that of the whole plan, since a run may be stopped because of what it has
        released. With stopping="fixed" it is that of the releases paid for.

        Args:
            delta: 0 < delta < 1, or 0 for a noise law with a pure epsilon.

        Raises:
            ValueError: a delta out of range.
        """
        real("delta", delta, at_least=0.0, below=1.0)
        spent = sum(release.steps for release in self.history)
        return self.plan.claimed(spent, delta).upper if self.private else math.inf

    def state_dict(self) -> dict[str, torch.Tensor]:
        """Return a `Checkpoint` as tensors by name: the trainable weights, the further bits of half-precision weights,
        what the update rule keeps (such as momentum), and how many releases have moved the weights.

        It holds released information only, in copies in host memory that later steps do not change. Weights that are
        sharded are gathered, on rank 0 alone, for a file that every process loads.
        """
        self.catch_up()
        self._ranks.lead(lambda: self._files.file.sync())
        self.weights.untrained.settle()
        position = self._position or 0  # `_catch_up` has set `_position`; `or 0` is for the type checker
        kept = self.weights.state_dict()
        return Checkpoint(self._header.key, position, self.weights.values(), kept, self._moves.state_dict()).tensors()

    def load_state_dict(self, state: Mapping[str, torch.Tensor]) -> None:
        """Load a checkpoint of this run.

        The next step first moves the weights by what the transcript holds beyond the checkpoint.

        The weights may be sharded here and whole in the run that wrote the checkpoint, or the other way round.

        Args:
            state: what `state_dict` returned, of this process or an earlier one.

        Raises:
            ValueError: a checkpoint of another run.
        """
        found = Checkpoint.of(state)
        if found.key != self._header.key:
            raise ValueError(f"state must be of the run with key {self._header.key}; got {found.key}")
        integer("position", found.position, at_least=0, at_most=self.plan.steps)
        self._position, self._current = None, False
        self.weights.load_values(found.weights)
        self.weights.load_state_dict(found.kept)
        self._moves.load_state_dict(found.update)
        self._position = found.position

    def end_at(self, state: Mapping[str, torch.Tensor]) -> None:
        """Load the checkpoint `state`, as `state_dict` returned it, and end the run there: its files are closed, and it
        makes no more steps. The weights stay those of the checkpoint, without the releases after it.

        Raises ValueError for a checkpoint of another run.
        """
        self.load_state_dict(state)
        self.close()
        self._current = True

    def begin_again(self) -> None:
        """Go on from the initial weights without the releases that were made, which stay paid for.

        This is for dpgd-0th, whose releases no transcript holds, where there is no checkpoint to load. Raises
        TranscriptError if the weights are not the initial ones.
        """
        self._require_initial()
        self._position, self._current = 0, self.plan.scalars == 0

    def close(self) -> None:
        """Close the run's file. Safe to repeat."""
        self.weights.untrained.settle()
        if self._files is not None:
            self._files.file.close()

    def _begin(self) -> tuple[int, Indices]:
        release = self._files.begin(self._position or 0)
        return release, self._batches(release)

    def _require_equal_weights(self) -> None:
        if self._ranks.count > 1:
            self._ranks.require_equal("weights", self.weights.fingerprint())

    def _require_initial(self) -> None:
        if self.weights.fingerprint() != self._header.fingerprint:
            raise TranscriptError(
                "the weights are not this run's initial ones: load a checkpoint (load_state_dict), or those"
            )
        self.weights.forget()
        self._moves.forget()

    def _move(self, record: Record) -> None:
        self._position = None  # how many releases the weights have is unknown while they move
        self._moves.make(record.release, record.sums)
        self._position = record.release + 1

    def _move_by_vector(self, release: int, total: Sums) -> None:
        """Move the weights by a release that is a vector: total v + noise, where v is the integer vector along u.

        Rank 0 draws the noise, and the weights move by a public multiple of that sum alone. release: its number. total:
        the sum over the whole batch, shape (1,).
        """
        factor = self.plan.vector_factor(release, self.weights.squared_norm(release))

        def released(parameter: int, start: int, count: int) -> Sums:
            integers = self.weights.integers(release, parameter, start, count)
            return self.plan.noisy(total * integers, self._noise)

        self._position = None
        self.weights.add_(lambda *place: torch.from_numpy(self._ranks.lead(lambda: released(*place)) * factor))
        self._position = release + 1


def directions_of(header: Header) -> Directions:
    """Return the random directions u_0, u_1, ... of the run with this header, whose public key determines them."""
    return Directions(bytes.fromhex(header.key), header.plan.direction)


def weights_of(header: Header, module: nn.Module) -> Weights:
    """Return the trainable weights of a module, to be moved along the directions of the run with this header.

    Raises ValueError for a module whose weights are not supported.
    """
    return Weights(module, directions_of(header), precision=header.precision)


def replay(path: str | os.PathLike[str], module: nn.Module) -> Header:
    """Move the weights of a module as the run in the folder at `path`, or in the file of it alone, did.

    Returns what the run was begun with. Raises TranscriptError for other initial weights, or a run that released
    vectors, which are kept nowhere, LedgerError for a damaged file, and OSError.

    Args:
        module: with the weights that the run began with.
    """
    header, records, _ = read(Path(path))
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
        """Move the weights by one release, as the plan says.

        Args:
            release: its number, 0 to T - 1.
            sums: its K released numbers, noise included.

        Raises:
            ValueError: a call inside an evaluation, where weights must not move.
        """
        plan = self._plan
        alpha, decay = plan.step_size(release), plan.weight_decay
        if plan.plain:
            self._weights.move_(plan.along(release, sums, -alpha))
            return

        def amount(index: int, here: slice, estimate: Tensor, weight: Tensor) -> Tensor:
            found = self._update.direction(estimate, [tensors[index][here] for tensors in self._kept], release)
            if decay:
                found.add_(weight.mul(decay))
            return found.mul_(-alpha)

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
        """Put back the numbers of the update rule.

        Args:
            state: what `state_dict` returned.

        Raises:
            ValueError: other names or sizes.
        """
        weights = self._weights
        names = {f"{word}.{name}" for word in self._update.kept for name in weights.names}
        if set(state) != names:
            raise ValueError(f"state must hold {sorted(names)} for the update; got {sorted(state)}")
        for word, tensors in zip(self._update.kept, self._kept, strict=True):
            for name, held, (_, origin), size in zip(
                weights.names, tensors, weights.pieces(), weights.sizes, strict=True
            ):
                found = state[f"{word}.{name}"]
                integer(f"size of {word}.{name}", found.numel(), at_least=size, at_most=size)
                held.copy_(found.reshape(-1)[origin : origin + held.numel()])

    def forget(self) -> None:
        """Set the numbers that the update rule keeps to zero, as at the start; the weights stay as they are."""
        for tensors in self._kept:
            for tensor in tensors:
                tensor.zero_()


def _empty(held: Tensor) -> Tensor:
    return torch.zeros(held.numel(), dtype=wide(held.dtype), device=held.device)
