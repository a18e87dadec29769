"""A run on a torch module: the step, and what makes the run survive crashes and interrupts.

A step does the following, in the order that crash safety needs. It pays for the release in the run's file (on disk),
draws the secret batch, evaluates every micro-batch at the points of the difference rule, sums the clipped differences,
adds noise once, writes what is released into the file, and moves the weights. It is on disk before the next payment,
before a checkpoint and at the end. A crash loses at most the releases that were paid for together (`paid_at_once`):
they stay paid for, and their directions are not used again, since directions are numbered as releases are. A resumed
run has the weights of a checkpoint, or the initial ones, moved by the later releases in the file.

After an exception or an interrupt (Ctrl-C) at any point of a step the module has weights that the run had after one of
its releases, and the next step first catches up with the later ones. If the move itself or a write was interrupted, the
run refuses to go on until weights are loaded, or until it is resumed. A run is used by one thread.

Nothing else that depends on the records leaves a step. No loss is kept or logged, a loss that raises counts as 0
without a message (but is raised in a sharded module), and buffers that an evaluation wrote are put back. A batch's size
is secret too, so nobody should publish how long steps took.
"""

import itertools
import math
import sys
import time
from collections.abc import Callable, Mapping
from typing import Any

import torch

from dpzero_theory.check import integer, real
from dpzero_theory.optim.files.transcript import Checkpoint, Header, Record, TranscriptError
from dpzero_theory.optim.losses.evaluation import BatchSum
from dpzero_theory.optim.plan import Plan
from dpzero_theory.optim.step.algorithm import Sums
from dpzero_theory.optim.step.distributed import Ranks
from dpzero_theory.optim.verdict import LOSS_AT_START, Descent
from dpzero_theory.optim.weights.module import Weights
from dpzero_theory.privacy.ledger import BudgetSpentError, Ledger
from dpzero_theory.privacy.noise import NoiseSource
from dpzero_theory.privacy.schedule import Indices
from dpzero_theory.privacy.step import Step

_REFRESH = 0.5
"""The least time between two lines of progress, in seconds."""


def watched() -> bool:
    """Whether standard error is shown by a terminal or a notebook, where progress is of use."""
    return sys.stderr.isatty() or "ipykernel" in sys.modules


class Run:
    """A run of the algorithm that its plan names, made by the functions of `optim.private`.

    Args:
        header: what the run was begun with, a `Header`: `plan`, the public settings; `key`, from which directions are
            computed; the initial weights' fingerprint; whether the run is private; and others.
        weights: the trainable weights of the module.
        sums: an object that evaluates a batch of records and sums their clipped differences.
        noise: the source of the noise of the releases.
        batches: a function from a release's number, from 0, to the numbers of the records in its batch, an array of
            integers.
        file: the run's open file; None on ranks other than 0.
        ranks: the processes of the run.

    Attributes:
        plan: the public settings of the run.
        weights, sums: as given.
        private: whether noise and batches come from the operating system, and not from a seed. Then each release is
            paid for: before its noise is drawn, the file says that it counts towards the budget.
    """

    def __init__(
        self,
        header: Header,
        weights: Weights,
        sums: BatchSum,
        *,
        noise: NoiseSource,
        batches: Callable[[int], Indices],
        file: Ledger | None,
        ranks: Ranks,
    ) -> None:
        self.plan: Plan = header.plan
        self.weights = weights
        self.weights.untrained.begin()
        # The start has refused losses that read weights behind torch's functions, so steps need not look for them
        self.weights.guarded = False
        self.sums = sums
        self.private = header.private and noise.private
        self._header, self._ranks = header, ranks
        self._file: Any = file  # Only rank 0 has the file
        self._noise, self._batches = noise, batches
        self._paid = range(0)  # The releases that this process has paid for and not made yet
        self._position: int | None = None  # How many releases have moved the weights; None if unknown
        self._current = False  # Whether all releases in the file have moved the weights

    def step(self) -> Record:
        """Make one release, move the weights by it, and return what was released, a `Record` (of the run's file).

        A data record whose loss raises counts as 0, except in a sharded module, where the step raises the exception.

        Raises:
            BudgetSpentError: no release of the plan is left (`releases_left`).
            LedgerError: the run's file cannot be written, before the release, to count it towards the budget, or after
                it, to record it.
            TranscriptError: the weights cannot catch up with the run's file (`catch_up`).
            ValueError: an evaluation has written a frozen parameter or a buffer of more than 2^22 elements (smaller
                ones are put back), or `catch_up` raises it.
        """
        if not self._current:
            self.catch_up()
        self._current = False  # A step that fails leaves it False, so that the next one catches up first
        release, batch = self._ranks.lead(self._begin)
        total = self.sums.total(release, batch)
        record = self._ranks.lead(lambda: self._write(release, self.plan.noisy(total, self._noise)))
        self._move(record)
        self._current = True
        return record

    def run(
        self,
        callback: Callable[[Record], None] | None = None,
        *,
        progress: bool | None = None,
        loss_at_start: float = LOSS_AT_START,
    ) -> None:
        """Make all steps that are left, after the weights have caught up with the run's file (`catch_up`).

        Args:
            callback: a function that is called after each step with what the step released; None for none. If it ends
                the run by an exception because of what it saw, the run has cost what its plan costs (`get_epsilon`).
            progress: whether a line on standard error says how many steps are made and about how long the rest takes;
                None shows it in a terminal and in a notebook. At the end a line says whether the run has learned.
            loss_at_start: about what the mean loss was before training, a public guess by which a run that diverges is
                known (`verdict.Descent`). A warning says so as soon as it is seen.

        Raises:
            ValueError: the weights of several ranks differ at the end.
            Exception: what `step` and the callback raise.
        """
        records = self._ranks.lead(self._records)
        self._catch_up(records)
        descent = Descent(self.plan, loss_at_start, records)
        shown = self._ranks.rank == 0 and (watched() if progress is None else progress)
        told, started = -math.inf, time.monotonic()
        for made in itertools.count():
            left, now = self.releases_left, time.monotonic()
            if shown and (now - told > _REFRESH or not left):
                told = now
                rest = f", about {left * (now - started) / made:,.0f} s left" if made and left else ""
                # Spaces overwrite the end of the line before, which may have been longer
                line = f"\r{self.plan.steps - left:,} of {self.plan.steps:,} steps{rest:32}"
                print(line, end="" if left else "\n", file=sys.stderr, flush=True)
            if not left:
                break
            record = self.step()
            descent.watch(record)
            if callback is not None:
                callback(record)
        if shown:
            print(descent.verdict, file=sys.stderr)
        self.weights.untrained.settle()
        self._ranks.require_same("weights must be the same", self.weights.fingerprint)

    def descent(self, loss_at_start: float = LOSS_AT_START) -> Descent:
        """Return a `Descent` that has seen all releases so far; its attribute `verdict` says whether the run learns.
        `loss_at_start` is a public guess of the mean loss before training, above 0."""
        return Descent(self.plan, loss_at_start, self._ranks.lead(self._records))

    def catch_up(self) -> None:
        """Move the weights by the releases in the run's file that they do not have yet, as after a resumption.

        Raises:
            TranscriptError: the weights are neither the initial ones nor those of a checkpoint of this run, or the file
                ends before the checkpoint.
            ValueError: the weights of several ranks differ afterwards.
        """
        if not self._current:
            self._catch_up(self._ranks.lead(self._records))

    def _catch_up(self, records: list[Record]) -> None:
        if self._current:
            return
        if self._position is None:
            if self.weights.fingerprint() != self._header.fingerprint:
                raise TranscriptError(
                    "the weights are not this run's initial ones: load a checkpoint (load_state_dict), or those"
                )
            self._position = 0
        position = self._position
        if position > (records[-1].release + 1 if records else 0) and self._ranks.lead(
            lambda: self._file.path.exists()
        ):
            raise TranscriptError(
                f"the checkpoint is after release {position - 1}, which the run's file lacks: it was rolled back; put"
                " back the newest file, or load an earlier checkpoint"
            )
        for record in records:
            if record.release >= position:
                self._move(record)
        self._ranks.require_same("weights must be the same", self.weights.fingerprint)
        self._current = True

    @property
    def releases_left(self) -> int:
        """How many steps may still be made: those of the plan, less those that were made and those that an earlier
        process counted towards the budget, and did not make because it crashed."""
        return self._ranks.lead(self._left)

    @property
    def history(self) -> list[Step]:
        """The releases that count towards the budget by now, as `dpzero_theory.epsilon` takes them: those that were
        made, and those for which the file was told so beforehand, even if a crash came before they were made. Empty for
        a run that is not private. `get_epsilon` says what may be claimed."""
        return self._ranks.lead(lambda: self._file.history if self._header.private else [])

    def get_epsilon(self, delta: float) -> float:
        """Return the epsilon that the run may claim at delta: 0 before its first step, then that of the whole plan,
        since a run may be stopped because of what it has released. Infinity if the run is not private.

        Where the number of steps made depends on nothing that they released, `dpzero_theory.epsilon` of `history` holds
        too. Raises ValueError unless 0 < delta < 1, or delta is 0 and the noise has a pure epsilon.
        """
        real("delta", delta, at_least=0.0, below=1.0)
        if not self.private:
            return math.inf
        return self.plan.epsilon(delta).upper if self.history else 0.0

    def state_dict(self) -> dict[str, torch.Tensor]:
        """Return a checkpoint as tensors by name: each trainable weight under "weights." and its name, under
        "run.position" how many releases have moved them, and under "run.key" the run's public key.

        The weights catch up with the file first (`catch_up`). By the key `load_state_dict` refuses a checkpoint of
        another run. A checkpoint holds released information only, in copies in host memory. Every process must call
        the method. Sharded weights are gathered on rank 0, whose checkpoint is the one to save; others lack them.
        """
        self.catch_up()
        self._ranks.lead(lambda: self._file.sync())
        self.weights.untrained.settle()
        return Checkpoint(self.weights.values(), self._header.key, self._position).tensors()

    def load_state_dict(self, state: Mapping[str, torch.Tensor]) -> None:
        """Load a checkpoint of this run, which `state_dict` returned in this process or an earlier one.

        The next step first moves the weights by the later releases in the run's file. The weights may be sharded here
        and whole in the run that wrote the checkpoint, or the other way round. Raises ValueError for a checkpoint of
        another run or of other weights (names, shapes, types).
        """
        found = Checkpoint.of(state)
        if found.key != self._header.key:
            raise ValueError(f"state must be of the run with key {self._header.key}; got {found.key}")
        position = integer("position", found.position, at_least=0, at_most=self.plan.steps)
        self._position, self._current = None, False
        self.weights.load_values(found.weights)
        self._position = position

    def close(self) -> None:
        """Put back the module's buffers if an evaluation changed them, and close the run's file. Safe to repeat."""
        self.weights.untrained.settle()
        if self._file is not None:
            self._file.close()

    def _left(self) -> int:
        if not self._header.private:
            return self.plan.steps - (self._position or 0)
        return int(self._file.releases_left) + len(self._paid)

    def _begin(self) -> tuple[int, Indices]:
        # The number of the next release, now paid for, and the numbers of the records in its batch.
        if self._header.private:
            paid = self._paid or self._file.spend()
            self._paid, release = paid[1:], paid[0]
        elif not self._left():
            raise BudgetSpentError(f"all {self.plan.steps} steps of the plan are made")
        else:
            release = self._position or 0
        return release, self._batches(release)

    def _write(self, release: int, sums: Sums) -> Record:
        # While a further release is paid for, a later row, `state_dict` or `close` brings this row to disk.
        record = Record(release, tuple(sums.tolist()))
        self._file.record(release, self.plan.row.pack(*record.sums), durable=not self._paid)
        return record

    def _records(self) -> list[Record]:
        return [Record(number, self.plan.row.unpack(sums)) for number, sums in self._file.records()]

    def _move(self, record: Record) -> None:
        self._position = None  # A move that is interrupted leaves weights that belong to no release
        self.weights.move_(self.plan.moves(*record))
        self._position = record.release + 1
