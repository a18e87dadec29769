"""DPZero on a torch module: the step, and what makes a run survive.

    run = make_private_with_epsilon(...)        # optim.private
    run.run(); run.get_epsilon(delta)

One step, in the order that crash safety needs: pay for the release in the ledger (on disk), draw the secret batch,
evaluate every micro-batch at x +- lambda u, sum the clipped differences, add noise once, write what is released to the
transcript (on disk), move the weights. A crash loses at most the step in flight, whose release stays paid for and
whose direction is not used again: direction numbers go by release numbers. On resumption the weights are those of a
checkpoint, or the initial ones, moved by the rest of the transcript.

Nothing else that depends on the records leaves a step: no loss is kept or logged. The callback of `run` sees what was
released. A batch's size is secret too: watch no timings.
"""

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import nn

from dpzero_theory.check import integer, real
from dpzero_theory.optim.distributed import Ranks
from dpzero_theory.optim.estimator import two_point_difference
from dpzero_theory.optim.mechanism import LatticeSum, Mechanism, ScalarSum, Sums, add_noise_, per_record
from dpzero_theory.optim.plan import Plan
from dpzero_theory.optim.sampler import Batches, Indices
from dpzero_theory.optim.transcript import Header, Record, Transcript, TranscriptError
from dpzero_theory.privacy.certified.pairs import Group
from dpzero_theory.privacy.gaussian import noise_std_of
from dpzero_theory.privacy.ledger import BudgetSpentError, Ledger
from dpzero_theory.privacy.noise import NoiseSource
from dpzero_theory.privacy.releases import Accountant

__all__ = ["DPZero", "Fetch", "Losses"]

Losses = Callable[[nn.Module, Any], object]
"""(module, batch) -> a tensor of shape (batch,): entry i the loss of record i, and of no other record.

The batch comes as it was collated: to bring it to the module's device is the function's business. Where the module is
sharded, each process evaluates its own micro-batches, and the function must make as many forwards for each."""
Fetch = Callable[[Indices], Any]
"""Numbers of records -> the batch that `Losses` takes."""


class DPZero:
    """A run of Algorithm 2 (or 1, or MeZO: `Plan.algorithm`). Built by the functions of `optim.private`.

    header: plan, run key and fingerprint. module: at the run's initial weights, or a checkpoint is loaded before the
    first step. noise, batches: where the noise and the batches come from; the run is `private` if both are. ledger,
    transcript: open, on rank 0; None elsewhere, and where nothing is kept. accountant: epsilon of the ledger's history;
    None where no ledger is kept, which is not `private` either. micro_batch: records evaluated at a time.
    """

    def __init__(
        self,
        header: Header,
        module: nn.Module,
        losses: Losses,
        fetch: Fetch,
        *,
        noise: NoiseSource,
        batches: Batches,
        ledger: Ledger | None,
        transcript: Transcript | None,
        accountant: Accountant | None,
        micro_batch: int,
        ranks: Ranks,
    ) -> None:
        self.plan: Plan = header.plan
        self.weights = header.weights(module)
        self.private = accountant is not None and noise.private and batches.private
        self._header, self._losses, self._fetch = header, losses, fetch
        self._noise, self._batches, self._ledger, self._transcript = noise, batches, ledger, transcript
        self._accountant, self._ranks = accountant, ranks
        self._micro_batch = integer("micro_batch", micro_batch)
        self._mechanism: Mechanism = _mechanism(header.plan, noise, self.weights.d)
        self._position = 0 if self.weights.fingerprint() == header.fingerprint else None
        self._current = False

    def step(self) -> Record:
        """One release and one move of the weights.

        Raises BudgetSpentError when all T are made, ValueError where the losses are not one for each record,
        LedgerError, TranscriptError.
        """
        self.catch_up()
        release, batch = self._ranks.lead(self._begin)
        total = self._total(release, batch)
        sums = self._ranks.lead(lambda: self._release(release, total))
        record = Record(release, tuple(sums.tolist()))
        self._move(record)
        return record

    def run(self, callback: Callable[[Record], None] | None = None) -> None:
        """All steps that are left; `callback` is told what each released."""
        self.catch_up()
        while self.releases_left:
            record = self.step()
            if callback is not None:
                callback(record)
        self._ranks.require_equal("weights", self.weights.fingerprint())

    def catch_up(self) -> None:
        """Move the weights by what the transcript holds beyond them; nothing to do except after a resumption.

        Raises TranscriptError where the weights are neither the initial ones nor those of a checkpoint of this run.
        """
        if self._current:
            return
        if self._position is None:
            raise TranscriptError("the weights are not this run's initial ones: load a checkpoint (load_state_dict)")
        position, transcript = self._position, self._transcript
        for record in self._ranks.lead(lambda: transcript.records() if transcript else []):
            if record.release >= position:
                if not self.plan.scalars:
                    if position == 0:
                        raise TranscriptError(
                            f"releases of {self.plan.algorithm} are vectors and are not kept: load a checkpoint"
                        )
                    break
                self._move(record)
        self._ranks.require_equal("weights", self.weights.fingerprint())
        self._current = True

    @property
    def releases_left(self) -> int:
        """How many steps may still be made."""
        return self._ranks.lead(self._left)

    @property
    def history(self) -> list[Group]:
        """What is spent, for `privacy.accountant.epsilon_of_history`, which gives epsilon's bracket."""
        return self._ranks.lead(lambda: self._ledger.history if self._ledger else [])

    def get_epsilon(self, delta: float) -> float:
        """An upper bound on epsilon at this delta of all that is spent; infinity if the run is not private.

        0 < delta < 1. Raises ValueError.
        """
        real("delta", delta, above=0.0, below=1.0)
        return self._accountant(self.history, delta) if self.private and self._accountant else math.inf

    def state_dict(self) -> dict[str, Any]:
        """A checkpoint: the trainable weights and where in the run they are. Released information only.

        Weights that are sharded are gathered, on rank 0 alone, for a file that every process loads.
        """
        self.catch_up()
        return {
            "key": self._header.key,
            "position": self._position,
            "parameters": self.weights.values(),
            "weights": self.weights.state_dict(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go to a checkpoint of this run; the next step first catches up with the transcript.

        Sharded or not need not be as in the run that wrote it. Raises ValueError for a checkpoint of another run.
        """
        if state["key"] != self._header.key:
            raise ValueError(f"state must be of the run with key {self._header.key}; got {state['key']}")
        self.weights.load_values(state["parameters"])
        self.weights.load_state_dict(state["weights"])
        self._position = integer("position", state["position"], at_least=0)
        self._current = False

    def close(self) -> None:
        """Give up the files; safe to repeat."""
        for file in (self._ledger, self._transcript):
            if file is not None:
                file.close()

    def _left(self) -> int:
        return self._ledger.releases_left if self._ledger else self.plan.steps - (self._position or 0)

    def _begin(self) -> tuple[int, Indices]:
        if self._ledger:
            release = self._ledger.spend(self.plan.settings())[0]
        elif self._left():
            release = self._position or 0
        else:
            raise BudgetSpentError(f"all {self.plan.steps} steps of the plan are made")
        return release, self._batches.draw()

    def _total(self, release: int, batch: Indices) -> Sums:
        """The sum over the batch, the micro-batches shared among the ranks.

        Where a forward needs all ranks, those without a micro-batch left evaluate one again and leave it out.
        """
        parts = [batch[first : first + self._micro_batch] for first in range(0, len(batch), self._micro_batch)]
        columns = self.plan.directions_per_step
        slots: Sums = np.zeros((len(parts), columns), np.dtype(np.int64 if self.plan.discrete else np.float64))
        idle = -len(parts) % self._ranks.count if self.weights.collective else 0
        for index in range(self._ranks.rank, len(parts) + idle, self._ranks.count):
            differences = self._differences(release, parts[index % len(parts)])
            if index < len(parts):
                slots[index] = self._mechanism.contributions(differences)
        slots = self._ranks.add(slots)
        if self.plan.discrete:
            total: Sums = slots.sum(axis=0)
            return total
        return np.array([math.fsum(column) for column in slots.T])

    def _differences(self, release: int, records: Indices) -> NDArray[np.float64]:
        """Shape (records, K)."""
        batch, smoothing, columns = self._fetch(records), self.plan.smoothing, []
        for number in range(release * self.plan.directions_per_step, (release + 1) * self.plan.directions_per_step):
            with self.weights.shifted(number, smoothing):
                plus = per_record(self._losses(self.weights.module, batch), len(records))
            with self.weights.shifted(number, -smoothing):
                minus = per_record(self._losses(self.weights.module, batch), len(records))
            columns.append(two_point_difference(plus, minus, smoothing))
        return np.stack(columns, axis=1)

    def _release(self, release: int, total: Sums) -> Sums:
        """Noise, then the transcript."""
        sums = self._mechanism.release(total)
        if self._transcript:
            self._transcript.append(release, sums[: self.plan.scalars])
        return sums

    def _move(self, record: Record) -> None:
        self.weights.move_(self.plan.moves(record.release, record.sums))
        if self.plan.algorithm == "dpgd-0th":
            std = noise_std_of(self.plan.noise_multiplier, self.plan.clip, self.plan.expected_batch)
            add_noise_(
                self.weights,
                -self.plan.step_size(record.release),
                lambda count: self._ranks.lead(lambda: self._noise.gaussian(std, count)),
            )
        self._position = record.release + 1


def _mechanism(plan: Plan, noise: NoiseSource, d: int) -> Mechanism:
    if plan.algorithm == "dpzero":
        return LatticeSum(plan, noise)
    return ScalarSum(plan.clip / math.sqrt(d) if plan.algorithm == "dpgd-0th" else math.inf)
