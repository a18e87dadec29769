"""The sum over a batch of what its records contribute, evaluated by micro-batches that the ranks share among them."""

import math
from functools import partial

import numpy as np
from numpy.typing import NDArray

from dpzero_theory.optim.losses.evaluation import Evaluation, in_step, on_host
from dpzero_theory.optim.plan import Plan
from dpzero_theory.optim.step.algorithm import Sums
from dpzero_theory.optim.step.distributed import Ranks
from dpzero_theory.optim.weights.module import Weights
from dpzero_theory.privacy.schedule import Indices


class BatchSum:
    """Evaluates the records of a batch at the points of the plan's difference rule, and sums their clipped differences.

    plan: says which points, and how differences are clipped. weights: those of the module that is evaluated.
    evaluation: reads records and gives their losses. ranks: the processes, among which micro-batches are dealt out.
    micro_batch: how many records are evaluated at a time. points_at_once: how many of the points in one pass.
    """

    def __init__(
        self, plan: Plan, weights: Weights, evaluation: Evaluation, ranks: Ranks, micro_batch: int, points_at_once: int
    ) -> None:
        self._plan, self._weights, self._evaluation, self._ranks = plan, weights, evaluation, ranks
        self._micro_batch, self._points_at_once = micro_batch, points_at_once
        self._secret = b""

    def keep(self, secret: bytes) -> None:
        """Set the run's secret bytes, from which the records of a data set that draws them anew in each step are drawn
        (`records.DrawnData`). Other data sets do not need it."""
        self._secret = secret

    def total(self, release: int, batch: Indices) -> Sums:
        """Return the sum of what the records of a batch contribute to a release, shape (K,), on every rank. Noise is
        not added here. release: the release's number, which determines its K directions. batch: the numbers of the
        records. Each rank evaluates some of the micro-batches. Where a forward needs all ranks, those without a
        micro-batch left evaluate one again and leave out its result.
        """
        parts = [batch[first : first + self._micro_batch] for first in range(0, len(batch), self._micro_batch)]
        plan, rule = self._plan, self._plan.rule
        norm = 0 if plan.scalars else self._weights.squared_norm(release)
        slots: Sums = np.zeros((len(parts), plan.directions_per_step), rule.dtype)
        idle = -len(parts) % self._ranks.count if self._weights.collective else 0
        for index in range(self._ranks.rank, len(parts) + idle, self._ranks.count):
            differences = self._counted(release, parts[index % len(parts)])
            if index < len(parts):
                slots[index] = plan.contributions(differences, self._weights.d, norm)
        slots = self._ranks.add(slots)
        if rule.levels:
            total: Sums = slots.sum(axis=0)
            return total
        return np.array([math.fsum(column) for column in slots.T])

    def differences(self, release: int, records: Indices, points_at_once: int = 1) -> NDArray[np.float64]:
        """Return how fast the losses of some records change along the K directions of a release, shape (records, K),
        not clipped. The numbers come from the plan's difference rule, for example central differences of the losses.

        release: the release's number. records: the records' numbers. points_at_once: how many points are evaluated in
        one pass. Raises what the losses, or the reading of the records, raise.
        """
        rule, smoothing, count = self._plan.difference_rule, self._plan.smoothing, self._plan.directions_per_step
        points = rule.at(range(release * count, (release + 1) * count), smoothing)
        moment = self._secret + release.to_bytes(8, "little") if self._secret else b""
        with in_step(release):
            ask = partial(self._evaluation.where_they_are, batch=self._evaluation.batch(records, moment))
            return rule.combine(on_host(self._weights.evaluated(points, ask, points_at_once)), smoothing)

    def _counted(self, release: int, records: Indices) -> NDArray[np.float64]:
        """Return the differences of some records, shape (records, K), with 0 for a record whose loss or reading raises.

        release: the release's number. records: the records' numbers.

        Where something raises, the records are evaluated one by one, so that nobody sees the error and no other record
        is left out. But where a forward needs all ranks the error is raised: a rank that ends a forward early would
        leave the others waiting.
        """
        try:
            return self.differences(release, records, self._points_at_once)
        except Exception:
            if self._weights.collective:
                raise
        return np.concatenate([self._by_itself(release, records[i : i + 1]) for i in range(len(records))])

    def _by_itself(self, release: int, record: Indices) -> NDArray[np.float64]:
        """Return the differences of one record along the K directions of the release with this number, shape (1, K);
        zeros if its loss or reading raises. record: its number, in an array of shape (1,)."""
        try:
            return self.differences(release, record)
        except Exception:
            return np.zeros((1, self._plan.directions_per_step))
