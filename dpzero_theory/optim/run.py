"""A run on a torch module: the step, and what makes the run survive crashes and interrupts.

    run = make_private_with_epsilon(...)        # optim.private
    run.run(); run.get_epsilon(delta)

A step does the following, in the order that crash safety needs. It pays for the release in the run's file (on disk),
draws the secret batch, evaluates every micro-batch at the points of the difference rule, sums the clipped differences,
adds noise once, records what is released, and moves the weights. The record is on disk before the next payment, before
a checkpoint and at the end. A crash loses at most what was paid for at once (`paid_at_once`; with 1, the step that was
being made): those releases stay paid for, and their directions are not used again, since directions are numbered as
releases are. A resumed run has the weights of a checkpoint, or the initial ones, moved by the rest of the records.

An exception or an interrupt (Ctrl-C) at any point of a step leaves the module unshifted, with the weights of a
beginning of the transcript, and the next step catches up with the rest. Where the move itself or a write was
interrupted, the run refuses to go on until weights are loaded, or until it is resumed. A run is used by one thread.

Nothing else that depends on the records leaves a step. No loss is kept or logged, one that raises counts as 0 and
nothing is said, and what evaluations leave in buffers is put back. The callback of `run` sees what was released. A
batch's size is secret too, so nobody should publish how long steps took.
"""

import math
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn

from dpzero_theory.check import integer, real
from dpzero_theory.optim.files.folder import Folder
from dpzero_theory.optim.files.transcript import Checkpoint, Header, Record, TranscriptError, read
from dpzero_theory.optim.losses.evaluation import BatchSum
from dpzero_theory.optim.plan import Plan
from dpzero_theory.optim.step.algorithm import Sums
from dpzero_theory.optim.step.distributed import Ranks
from dpzero_theory.optim.weights.directions import Directions
from dpzero_theory.optim.weights.module import Weights
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
        self.private = header.private and noise.private
        self._header, self._ranks = header, ranks
        self._files: Any = files  # rank 0 alone has it
        self._noise, self._batches = noise, batches
        self._position: int | None = None  # how many releases the weights have; None if unknown
        self._current = False  # whether the weights have all that the transcript holds

    def step(self) -> Record:
        """Make one release and move the weights by it. Returns what was released.

        A record whose loss raises counts as 0 (`losses.evaluation`).

        Raises:
            BudgetSpentError: all T releases are made.
            LedgerError: the release cannot be paid for or recorded.
            TranscriptError: as `catch_up`.
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

        Args:
            callback: if given, is called after each step with what the step released; if it ends the run by an
                exception because of what it saw, the run has cost what its plan costs (`get_epsilon`).

        Raises:
            RuntimeError: the weights of several ranks differ at the end; or what `step` raises.
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

        Raises:
            TranscriptError: the weights are neither the initial ones nor those of a checkpoint of this run; the
                transcript ends before the checkpoint; or releases are vectors, and no checkpoint is loaded.
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
        """How many steps may still be made: those of the plan that are not made and, in a private run, not paid for by
        an earlier process that crashed."""
        left: int = self._ranks.lead(lambda: self._files.left(self._position or 0))
        return left

    @property
    def history(self) -> list[Step]:
        """The releases that are paid for. `get_epsilon` says what may be claimed of them."""
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
        """Return a checkpoint as tensors by name: the trainable weights, and how many releases have moved them.

        It holds released information only, in copies in host memory that later steps do not change. Weights that are
        sharded are gathered, on rank 0 alone, for a file that every process loads.
        """
        self.catch_up()
        self._ranks.lead(lambda: self._files.file.sync())
        self.weights.untrained.settle()
        position = self._position or 0  # `catch_up` has set `_position`; `or 0` is for the type checker
        return Checkpoint(self._header.key, position, self.weights.values(), self.weights.state_dict()).tensors()

    def load_state_dict(self, state: Mapping[str, torch.Tensor]) -> None:
        """Load a checkpoint of this run. The next step first moves the weights by what the transcript holds beyond it.

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
        self._position = found.position

    def end_at(self, state: Mapping[str, torch.Tensor]) -> None:
        """Load a checkpoint, and end the run there: its file is closed, and it makes no more steps.

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

    def _move(self, record: Record) -> None:
        self._position = None  # how many releases the weights have is unknown while they move
        move(self.plan, self.weights, record)
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


def move(plan: Plan, weights: Weights, record: Record) -> None:
    """Move weights by one release: x <- x - alpha g, where g is the mean over K directions of (released average) u.

    That is post-processing, which costs no privacy. Raises ValueError inside an evaluation.
    """
    weights.move_(plan.along(record.release, record.sums, -plan.step_size(record.release)))


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

    Args:
        path: the folder or the file.
        module: with the weights that the run began with.

    Returns:
        What the run was begun with.

    Raises:
        TranscriptError: other initial weights, or a run that released vectors, which are kept nowhere.
        LedgerError, OSError: a damaged file, or none.
    """
    header, records, _ = read(Path(path))
    weights = weights_of(header, module)
    require_initial(header, weights)
    if not header.plan.scalars:
        raise TranscriptError(f"{path}: releases of {header.plan.algorithm} are vectors and are not kept")
    for record in records:
        move(header.plan, weights, record)
    return header


def require_initial(header: Header, weights: Weights) -> None:
    """Raise TranscriptError unless the weights are those with which the run of this header began."""
    found = weights.fingerprint()
    if found != header.fingerprint:
        raise TranscriptError(f"weights must have fingerprint {header.fingerprint[:16]}; got {found[:16]}")
