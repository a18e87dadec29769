"""The class `Run`, which makes the steps of a training run, and continues them after crashes and interrupts.

A step does the following, in this order: it writes into the run's file that one more step counts towards the privacy
budget, draws the secret batch, evaluates the records' losses at shifted weights, sums their clipped differences, adds
noise, writes the noisy sums into the file, and moves the weights by them. A step that a crash prevents after it was
counted stays counted, and is skipped. A resumed run starts from the initial weights or a checkpoint, and first moves
them by the noisy sums in the file.

After an exception or Ctrl-C within a step, the next step first brings the weights up to date with the file. If the
write or the move itself was interrupted, the run raises until weights are loaded or it is resumed. Use one thread only.

A step reveals nothing of the records but the noisy sums. No loss is kept or logged; a record whose loss raises an
exception contributes 0 (in a sharded module the step raises it); and buffers that an evaluation changed are restored.
The batch's size is secret, so do not publish how long steps took.
"""

import itertools
import math
import sys
import time
from collections.abc import Callable, Mapping
from typing import Any

import torch

from dpzero_theory.check import Array, integer, real
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
"""The least time between two updates of the progress line, in seconds."""


def watched() -> bool:
    """Whether somebody sees standard error: it is a terminal, or the process belongs to a notebook."""
    return sys.stderr.isatty() or "ipykernel" in sys.modules


class Run:
    """A training run, private or not, as the functions `make_...` of `optim.private` return it.

    Args:
        header: what was fixed when the run began: the `Plan`, the public key of the random directions, a hash of the
            initial weights, whether the run is private, and more (`Header`).
        weights: the trainable weights of the module.
        sums: an object that evaluates the losses of a batch and returns the sums of its records' clipped differences.
        noise: the source of the noise that is added to these sums.
        batches: a function from the index of a step, from 0, to an integer array, the indices of its batch's records.
        file: the open file of the run, in memory if the run has no folder; None on ranks other than 0.
        ranks: the processes that make the run together.

    Attributes:
        plan: the public settings of the run.
        weights, sums: the arguments.
        private: whether the noise and the batches come from the operating system; if False, they come from a seed.
        public: None, or the pair of a function that returns the losses of public records at the present weights, an
            array of shape (records,), and its result before training.
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
        # The start of the run has refused losses that read weights in unsupported ways, so steps need not check again
        self.weights.guarded = False
        self.sums = sums
        self.private = header.private and noise.private
        self._header, self._ranks = header, ranks
        self._file: Any = file  # Only rank 0 has the file
        self._noise, self._batches = noise, batches
        self._paid = range(0)  # Indices of steps that were counted in advance, but not made yet
        self._position: int | None = None  # 1 + the index of the last step that moved the weights; None if unknown
        self._current = False  # Whether every step in the file has moved the weights
        self.public: tuple[Callable[[], Array], Array] | None = None

    def step(self) -> Record:
        """Make one step, and return a `Record`: the step's index and the noisy sums by which it has moved the weights.

        A record whose loss raises an exception contributes 0, but in a sharded module the step raises the exception.

        Raises:
            BudgetSpentError: the plan has no step left.
            LedgerError: the run's file cannot be written.
            TranscriptError: the weights cannot be brought up to date with the run's file (`catch_up`).
            ValueError: the losses have written a frozen parameter or a buffer of more than 2^22 elements (smaller
                buffers are restored instead), or the weights differ between processes.
        """
        if not self._current:
            self.catch_up()
        self._current = False  # If this step fails, this stays False, and the next step catches up first
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
        loss_at_start: float | None = None,
    ) -> None:
        """Make all remaining steps.

        Args:
            callback: a function that is called after each step with the step's `Record`, its index and noisy sums; None
                calls nothing. If it stops the run by an exception that depends on these sums, the run still costs what
                the whole plan costs, as `get_epsilon` says.
            progress: whether to show on standard error how many steps are made and how long the others will take, and
                at the end whether the run has learned. None shows this only in a terminal or a notebook.
            loss_at_start: a public guess of the mean loss before training, > 0. None stands for the mean loss of the
                public records by which the settings were chosen, at least 2. If the estimated decrease of the loss
                is far above it, a warning says that the run diverges (`verdict.Descent`).

        Raises:
            ValueError: the weights differ between processes at the end.
            Exception: any exception of `step` or of the callback.
        """
        records = self._ranks.lead(self._records)
        self._catch_up(records)
        descent = Descent(self.plan, self._guess(loss_at_start), records)
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
        if self._ranks.rank == 0:
            self.conclude(descent, shown=shown)
        self.weights.untrained.settle()
        self._ranks.require_same("weights must be the same", self.weights.fingerprint)

    def conclude(self, descent: Descent, *, shown: bool) -> None:
        """Print to standard error how the run has ended: if `shown`, the verdict on `descent`, which holds the run's
        steps, and the losses of public records before and after it, if settings="auto" chose the settings by them.
        If these say that the model is worse, the verdict "learns" is left out."""
        lines, found = [], descent.verdict
        if self.public is not None:
            losses, before = self.public
            after = losses()
            lower = float((after < before).mean())
            worse = not after.mean() <= before.mean() and lower <= 0.5  # A mean of NaN is worse
            shown = shown and not (worse and found.word == "learns")
            means = f"{before.mean():.4g} before, {after.mean():.4g} after, lower for {lower:.0%} of them"
            lines = [f"mean loss of public records: {means}{', so this run has made the model worse' * worse}"]
        for line in [str(found)] * shown + lines:
            print(line, file=sys.stderr)

    def _guess(self, loss_at_start: float | None) -> float:
        if loss_at_start is not None:
            return loss_at_start
        known = float(self.public[1].mean()) if self.public is not None else 0.0
        return max(known, LOSS_AT_START) if known < math.inf else LOSS_AT_START

    def descent(self, loss_at_start: float | None = None) -> Descent:
        """Return a `Descent` that has taken in all steps made so far. Its property `verdict` says whether the run
        learns. `loss_at_start` is as in `run`."""
        return Descent(self.plan, self._guess(loss_at_start), self._ranks.lead(self._records))

    def catch_up(self) -> None:
        """Move the weights by those steps in the run's file that have not moved them yet, as after a resumption.

        Raises:
            TranscriptError: the weights are neither the initial ones nor a checkpoint, or the file has fewer steps.
            ValueError: the weights differ between processes afterwards.
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
        """How many steps can still be made. These are the steps of the plan, less those that were made, and less those
        that were counted towards the privacy budget but lost in a crash."""
        return self._ranks.lead(self._left)

    @property
    def history(self) -> list[Step]:
        """The steps that count towards the privacy budget so far, an argument for `dpzero_theory.epsilon`: those made,
        and those counted in advance, even if a crash prevented them. Empty for a run that is not private."""
        return self._ranks.lead(lambda: self._file.history if self._header.private else [])

    def get_epsilon(self, delta: float) -> float:
        """Return the epsilon that may be claimed for the run at `delta`: 0 before the first step, from then on the cost
        of the whole plan, and infinity for a run that is not private.

        The whole plan counts, since the decision to stop a run early may depend on what its steps released. If it does
        not, `dpzero_theory.epsilon(run.history, delta)` may be claimed too. Raises ValueError unless 0 < delta < 1
        (with Laplace noise 0 <= delta < 1).
        """
        real("delta", delta, at_least=0.0, below=1.0)
        if not self.private:
            return math.inf
        return self.plan.epsilon(delta).upper if self.history else 0.0

    def state_dict(self) -> dict[str, torch.Tensor]:
        """Return a checkpoint, tensors by name: "weights.NAME" is the trainable parameter NAME, "run.position" 1 +
        the index of the last step that moved the weights (0 if none did), and "run.key" the run's public key.

        The tensors are copies in host memory, as private as the run's steps. The method first brings the weights up to
        date (`catch_up`). Every process must call it. Sharded parameters are gathered on rank 0, and only its
        checkpoint holds them, so save that one.
        """
        self.catch_up()
        self._ranks.lead(lambda: self._file.sync())
        self.weights.untrained.settle()
        return Checkpoint(self.weights.values(), self._header.key, self._position).tensors()

    def load_state_dict(self, state: Mapping[str, torch.Tensor]) -> None:
        """Load a checkpoint of this run, which `state_dict` returned in this process or an earlier one.

        The next step first moves the weights by the later steps in the run's file. Whether the module is sharded may
        differ from the run that wrote the checkpoint. Raises ValueError for a checkpoint of another run, or for weights
        with other names, shapes or types than the module's.
        """
        found = Checkpoint.of(state)
        if found.key != self._header.key:
            raise ValueError(f"state must be of the run with key {self._header.key}; got {found.key}")
        position = integer("position", found.position, at_least=0, at_most=self.plan.steps)
        self._position, self._current = None, False
        self.weights.load_values(found.weights)
        self._position = position

    def close(self) -> None:
        """Restore the module's buffers if an evaluation has changed them, and close the run's file. Safe to repeat."""
        self.weights.untrained.settle()
        if self._file is not None:
            self._file.close()

    def _left(self) -> int:
        if not self._header.private:
            return self.plan.steps - (self._position or 0)
        return int(self._file.releases_left) + len(self._paid)

    def _begin(self) -> tuple[int, Indices]:
        # Returns the index of the next step, now counted towards the budget, and the indices of its batch's records.
        if self._header.private:
            paid = self._paid or self._file.spend()
            self._paid, release = paid[1:], paid[0]
        elif not self._left():
            raise BudgetSpentError(f"all {self.plan.steps} steps of the plan are made")
        else:
            release = self._position or 0
        return release, self._batches(release)

    def _write(self, release: int, sums: Sums) -> Record:
        # The row need not reach the disk yet if more steps are already counted: then a later call brings it there.
        record = Record(release, tuple(sums.tolist()))
        self._file.record(release, self.plan.row.pack(*record.sums), durable=not self._paid)
        return record

    def _records(self) -> list[Record]:
        return [Record(number, self.plan.row.unpack(sums)) for number, sums in self._file.records()]

    def _move(self, record: Record) -> None:
        self._position = None  # If the move is interrupted, the weights belong to no step
        self.weights.move_(self.plan.moves(*record))
        self._position = record.release + 1
