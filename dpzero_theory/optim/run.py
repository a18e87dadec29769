"""A run on a torch module: the step, and what makes it survive.

    run = make_private_with_epsilon(...)        # optim.private
    run.run(); run.get_epsilon(delta)

One step, in the order that crash safety needs: pay for the release in the ledger (on disk), draw the secret batch,
evaluate every micro-batch at x +- lambda u, sum the clipped differences, add noise once, write what is released to the
transcript, move the weights. The transcript is on disk before the next payment, a checkpoint and the end. A crash loses
at most what was paid for at once (`paid_at_once`; the step in flight if it is 1): it stays paid for and its directions
are not used again, since direction numbers go by release numbers. On resumption the weights are those of a checkpoint,
or the initial ones, moved by the rest of the transcript.

An exception or an interrupt (Ctrl-C) at any point of a step leaves the module as it was found, unshifted, and its
weights those of a prefix of the transcript, with which the next step catches up; or, where the move itself or a write
was interrupted, the run refuses to go on until weights are loaded, or it is resumed. (Of two interrupts the second may
fall into the tidying up after the first.)

A run is one thread's at a time. What would step, move weights, take or load a checkpoint or close the files while one
of these is done, in another thread or in a signal's handler, is refused at once, and what is being done goes on as if
nobody had asked. What is spent and what is left may be asked for at any time.

Nothing else that depends on the records leaves a step: no loss is kept or logged, one that raises counts as 0 without
a word, and what evaluations leave in buffers is put back. The callback of `run` sees what was released. A batch's size
is secret too: watch no timings.
"""

import math
from collections.abc import Callable, Mapping
from functools import partial
from typing import TypeVar

import numpy as np
import torch
from numpy.typing import NDArray

from dpzero_theory.check import integer, real
from dpzero_theory.optim.files.checkpoint import Checkpoint
from dpzero_theory.optim.files.replay import Moves
from dpzero_theory.optim.files.transcript import Header, Record, Transcript, TranscriptError
from dpzero_theory.optim.losses.evaluation import Evaluation, on_host
from dpzero_theory.optim.plan import Plan
from dpzero_theory.optim.step.contributions import Sums
from dpzero_theory.optim.step.distributed import Ranks
from dpzero_theory.optim.step.estimator import two_point_difference
from dpzero_theory.optim.step.sampler import Batches
from dpzero_theory.optim.weights.layers import LayerError
from dpzero_theory.optim.weights.module import Weights
from dpzero_theory.privacy.accountant import epsilon_of_history
from dpzero_theory.privacy.ledger import BudgetSpentError, Ledger
from dpzero_theory.privacy.noise import NoiseSource
from dpzero_theory.privacy.schedule import Indices
from dpzero_theory.privacy.step import Release

T = TypeVar("T")
_TURN = "turn"


class Run:
    """A run of the algorithm that its plan names. Built by the functions of `optim.private`.

    header: plan, run key and fingerprint. weights: the run's initial ones along its directions, or a checkpoint is
    loaded before the first step. noise, batches: where the noise and the batches come from; the run is `private` if
    both are. ledger, transcript: open, on rank 0; None elsewhere, and where nothing is kept. kept: whether a ledger is
    kept, without which the run is not `private` either. micro_batch: records evaluated at a time. points_at_once:
    points x +- lambda u_k evaluated in one pass.
    """

    def __init__(
        self,
        header: Header,
        weights: Weights,
        evaluation: Evaluation,
        *,
        noise: NoiseSource,
        batches: Batches,
        ledger: Ledger | None,
        transcript: Transcript | None,
        kept: bool,
        micro_batch: int,
        points_at_once: int,
        ranks: Ranks,
    ) -> None:
        self.plan: Plan = header.plan
        self.weights = weights
        self.weights.untrained.begin()
        self._moves = Moves(self.plan, self.weights)
        self.private = kept and noise.private and batches.private
        self._header, self._evaluation = header, evaluation
        self._noise, self._batches, self._ledger, self._transcript = noise, batches, ledger, transcript
        self._ranks = ranks
        self._micro_batch = integer("micro_batch", micro_batch)
        self._points_at_once = integer("points_at_once", points_at_once)
        self._paid = range(0)
        self._position: int | None = None
        self._current = False
        self._busy: dict[str, object] = {}  # whose turn it is; `setdefault` asks and takes at once

    def step(self) -> Record:
        """One release and one move of the weights.

        A record whose loss raises counts as 0 (`_counted`).

        Raises BudgetSpentError when all T are made, LayerError, LedgerError, TranscriptError.
        """
        return self._alone(self._step)

    def run(self, callback: Callable[[Record], None] | None = None) -> None:
        """All steps that are left; `callback` is told what each released."""
        self.catch_up()
        while self.releases_left:
            record = self.step()
            if callback is not None:
                callback(record)
        self.weights.untrained.settle()
        self._require_equal_weights()

    def catch_up(self) -> None:
        """Move the weights by what the transcript holds beyond them; nothing to do except after a resumption.

        Raises TranscriptError where the weights are neither the initial ones nor those of a checkpoint of this run,
        where the transcript ends before the checkpoint, and in the middle of a step.
        """
        self._alone(self._catch_up)

    @property
    def releases_left(self) -> int:
        """How many steps may still be made."""
        return self._ranks.lead(self._left)

    @property
    def history(self) -> list[Release]:
        """What is spent, for `privacy.accountant.epsilon_of_history`, which gives epsilon's bracket."""
        return self._ranks.lead(lambda: self._ledger.history if self._ledger else [])

    def get_epsilon(self, delta: float) -> float:
        """An upper bound on epsilon at this delta of all that is spent; infinity if the run is not private.

        0 < delta < 1, or 0 with a pure law. Raises ValueError.
        """
        real("delta", delta, at_least=0.0, below=1.0)
        return epsilon_of_history(self.history, delta).upper if self.private else math.inf

    def state_dict(self) -> dict[str, torch.Tensor]:
        """A `Checkpoint` as tensors: the trainable weights, what is kept beside them, and where in the run they are.

        Released information only, in copies in host memory: later steps do not change them.

        Weights that are sharded are gathered, on rank 0 alone, for a file that every process loads.
        """
        return self._alone(self._taken)

    def load_state_dict(self, state: Mapping[str, torch.Tensor]) -> None:
        """Go to a checkpoint of this run; the next step first catches up with the transcript.

        Sharded or not need not be as in the run that wrote it. Raises ValueError for a checkpoint of another run.
        """
        found = Checkpoint.of(state)
        if found.key != self._header.key:
            raise ValueError(f"state must be of the run with key {self._header.key}; got {found.key}")
        integer("position", found.position, at_least=0, at_most=self.plan.steps)
        self._alone(lambda: self._load(found))

    def end_at(self, state: Mapping[str, torch.Tensor]) -> None:
        """Go to a checkpoint and stay there: the run makes no more steps. Errors as `load_state_dict`."""
        self.load_state_dict(state)
        self.close()
        self._current = True

    def begin_again(self) -> None:
        """Go on from the initial weights where only a checkpoint would have what was released, and there is none.

        The releases that were made stay paid for and are not used. Raises TranscriptError for other weights.
        """
        self._alone(self._forget)

    def close(self) -> None:
        """Give up the files; safe to repeat. Raises TranscriptError in the middle of a step."""
        self._alone(self._leave)

    def _alone(self, work: Callable[[], T]) -> T:
        """What `work` returns, which nothing else of the run comes between, from another thread or a signal's handler.

        Raises TranscriptError where it is the turn of something else. Whatever raises, the turn is given back.
        """
        mine = object()
        try:
            if self._busy.setdefault(_TURN, mine) is not mine:
                raise TranscriptError(
                    "a step is being made: do this when it is over, as in a callback that looks whether a signal came"
                    " (a run is one thread's at a time)"
                )
            found = work()
            self._busy.pop(_TURN)
            return found
        except BaseException:
            if self._busy.get(_TURN) is mine:
                self._busy.pop(_TURN)
            raise

    def _step(self) -> Record:
        self._catch_up()
        try:
            self._current = False  # until the weights are where the transcript is
            release, batch = self._ranks.lead(self._begin)
            total = self._total(release, batch)
            if self.plan.scalars:
                sums = self._ranks.lead(lambda: self._release(release, self.plan.noisy(total, self._noise)))
                record = Record(release, tuple(sums.tolist()))
                self._move(record)
            else:  # kept nowhere but in the weights: recorded once they have it
                self._move_by_vector(release, total)
                self._ranks.lead(lambda: self._release(release, total[:0]))
                record = Record(release, ())
            self._current = True
            return record
        except BaseException:
            self.weights.restore()
            raise

    def _catch_up(self) -> None:
        if self._current:
            return
        if self._position is None:
            self._require_initial()
            if self._ranks.lead(self._records) and not self.plan.scalars:
                raise TranscriptError(
                    f"releases of {self.plan.algorithm} are vectors and are not kept: load a checkpoint, or go on from"
                    " the initial weights without what was made (begin_again)"
                )
            self._position = 0
        position, records = self._position, self._ranks.lead(self._records)
        if self._transcript and position > (records[-1].release + 1 if records else 0):
            raise TranscriptError(
                f"the checkpoint is after release {position - 1}, which the transcript lacks: it was cut off, or rolled"
                " back with the ledger; put back the newest files, or load an earlier one"
            )
        for record in records if self.plan.scalars else ():
            if record.release >= position:
                self._move(record)
        self._require_equal_weights()
        self._current = True

    def _taken(self) -> dict[str, torch.Tensor]:
        self._catch_up()
        self._ranks.lead(lambda: self._transcript.sync() if self._transcript else None)
        self.weights.untrained.settle()
        position = self._position or 0  # known, after catching up
        kept = self.weights.state_dict()
        return Checkpoint(self._header.key, position, self.weights.values(), kept, self._moves.state_dict()).tensors()

    def _load(self, found: Checkpoint) -> None:
        self._position, self._current = None, False
        self.weights.load_values(found.weights)
        self.weights.load_state_dict(found.kept)
        self._moves.load_state_dict(found.update)
        self._position = found.position

    def _forget(self) -> None:
        self._require_initial()
        self._position, self._current = 0, self.plan.scalars == 0

    def _leave(self) -> None:
        self.weights.untrained.settle()
        for file in (self._ledger, self._transcript):
            if file is not None:
                file.close()

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

    def _records(self) -> list[Record]:
        return self._transcript.records() if self._transcript else []

    def _left(self) -> int:
        if self._ledger:
            return self._ledger.releases_left + len(self._paid)
        return self.plan.steps - (self._position or 0)

    def _begin(self) -> tuple[int, Indices]:
        if self._transcript:
            self._transcript.require_writable()
        if self._ledger:
            paid = self._paid or self._pay(self._ledger)
            self._paid = paid[1:]
            release = paid[0]
        elif self._left():
            release = self._position or 0
        else:
            raise BudgetSpentError(f"all {self.plan.steps} steps of the plan are made")
        return release, self._batches.draw(release)

    def _pay(self, ledger: Ledger) -> range:
        """For the next block; the ledger says how far the transcript is, on disk."""
        if self._transcript is None:
            return ledger.spend(self.plan.settings)
        self._transcript.sync()
        return ledger.spend(self.plan.settings, self._transcript.state)

    def _total(self, release: int, batch: Indices) -> Sums:
        """The sum over the batch, the micro-batches shared among the ranks.

        Where a forward needs all ranks, those without a micro-batch left evaluate one again and leave it out.
        """
        parts = [batch[first : first + self._micro_batch] for first in range(0, len(batch), self._micro_batch)]
        plan, rule = self.plan, self.plan.rule
        norm = 0 if plan.scalars else self.weights.squared_norm(release)
        slots: Sums = np.zeros((len(parts), plan.directions_per_step), rule.dtype)
        idle = -len(parts) % self._ranks.count if self.weights.collective else 0
        for index in range(self._ranks.rank, len(parts) + idle, self._ranks.count):
            differences = self._counted(release, parts[index % len(parts)])
            if index < len(parts):
                slots[index] = plan.contributions(differences, self.weights.d, norm)
        slots = self._ranks.add(slots)
        if rule.lattice:
            total: Sums = slots.sum(axis=0)
            return total
        return np.array([math.fsum(column) for column in slots.T])

    def _counted(self, release: int, records: Indices) -> NDArray[np.float64]:
        """As `_differences`, but 0 for a record whose loss or reading raises, as if its losses were NaN.

        Where something raises the records are evaluated one by one, so that nothing shows, and no other one is left
        out. Not where a forward needs all ranks: one that ends early on this rank leaves the others waiting.
        """
        try:
            return self._differences(release, records, self._points_at_once)
        except LayerError:
            raise
        except Exception:
            if self.weights.collective:
                raise
        return np.concatenate([self._by_itself(release, records[i : i + 1]) for i in range(len(records))])

    def _by_itself(self, release: int, record: Indices) -> NDArray[np.float64]:
        """Of one record, shape (1, K)."""
        try:
            return self._differences(release, record)
        except LayerError:
            raise
        except Exception:
            return np.zeros((1, self.plan.directions_per_step))

    def _differences(self, release: int, records: Indices, points_at_once: int = 1) -> NDArray[np.float64]:
        """Shape (records, K). Raises what the losses do."""
        batch, smoothing, count = self._evaluation.batch(records), self.plan.smoothing, self.plan.directions_per_step
        numbers = range(release * count, (release + 1) * count)
        points = [(number, shift) for number in numbers for shift in (smoothing, -smoothing)]
        ask = partial(self._evaluation.where_they_are, batch=batch)
        found = on_host(self.weights.evaluated(points, ask, points_at_once))
        pairs = zip(found[::2], found[1::2], strict=True)
        return np.stack([two_point_difference(plus, minus, smoothing) for plus, minus in pairs], axis=1)

    def _release(self, release: int, sums: Sums) -> Sums:
        """Into the transcript, on disk at the end of what was paid for at once; no numbers where it is a vector."""
        if self._transcript:
            self._transcript.append(release, sums, sync=not self._paid)
        return sums

    def _move(self, record: Record) -> None:
        self._position = None  # unknown while they move
        self._moves.make(record.release, record.sums)
        self._position = record.release + 1

    def _move_by_vector(self, release: int, total: Sums) -> None:
        """Rank 0 adds noise to the sum times the integer vector along u, and the weights move by that alone."""
        factor = self.plan.vector_factor(release, self.weights.squared_norm(release))

        def released(parameter: int, start: int, count: int) -> Sums:
            integers = self.weights.directions.integers(release, parameter, start, count)
            return self.plan.noisy(total * integers, self._noise)

        self._position = None
        self.weights.add_(lambda *place: torch.from_numpy(self._ranks.lead(lambda: released(*place)) * factor), release)
        self._position = release + 1
