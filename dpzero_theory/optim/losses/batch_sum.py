"""The sum over a batch of what its records contribute, evaluated by micro-batches that the ranks share among them."""

import math
from functools import partial

import numpy as np
from numpy.typing import NDArray

from dpzero_theory.optim.losses.evaluation import Evaluation, on_host
from dpzero_theory.optim.plan import Plan
from dpzero_theory.optim.step.contributions import Sums
from dpzero_theory.optim.step.distributed import Ranks
from dpzero_theory.optim.step.estimator import two_point_difference
from dpzero_theory.optim.weights.layers import LayerError
from dpzero_theory.optim.weights.module import Weights
from dpzero_theory.privacy.schedule import Indices


class BatchSum:
    """Evaluates the records of a batch at x +- lambda u_1, ..., x +- lambda u_K, and sums their clipped differences.

    micro_batch: how many records are evaluated at a time. points_at_once: how many of the 2 K points in one pass.
    """

    def __init__(
        self, plan: Plan, weights: Weights, evaluation: Evaluation, ranks: Ranks, micro_batch: int, points_at_once: int
    ) -> None:
        self._plan, self._weights, self._evaluation, self._ranks = plan, weights, evaluation, ranks
        self._micro_batch, self._points_at_once = micro_batch, points_at_once

    def total(self, release: int, batch: Indices) -> Sums:
        """The sum over the batch, shape (K,), on every rank.

        Each rank evaluates some of the micro-batches. Where a forward needs all ranks, those without a micro-batch left
        evaluate one again and leave it out.
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
        if rule.lattice:
            total: Sums = slots.sum(axis=0)
            return total
        return np.array([math.fsum(column) for column in slots.T])

    def differences(self, release: int, records: Indices, points_at_once: int = 1) -> NDArray[np.float64]:
        """The differences (f_i(x + lambda u_k) - f_i(x - lambda u_k))/(2 lambda), shape (records, K).

        f_i is the loss of record i, and u_k are the K directions of the release. Raises what the losses, or the reading
        of the records, raise.
        """
        batch, smoothing, count = self._evaluation.batch(records), self._plan.smoothing, self._plan.directions_per_step
        numbers = range(release * count, (release + 1) * count)
        points = [(number, shift) for number in numbers for shift in (smoothing, -smoothing)]
        ask = partial(self._evaluation.where_they_are, batch=batch)
        found = on_host(self._weights.evaluated(points, ask, points_at_once))
        pairs = zip(found[::2], found[1::2], strict=True)
        return np.stack([two_point_difference(plus, minus, smoothing) for plus, minus in pairs], axis=1)

    def _counted(self, release: int, records: Indices) -> NDArray[np.float64]:
        """As `differences`, but 0 for a record whose loss or reading raises, as if its losses were NaN.

        Where something raises, the records are evaluated one by one, so that nothing shows and no other record is left
        out. But where a forward needs all ranks the error is raised: one that ends early leaves the others waiting.
        """
        try:
            return self.differences(release, records, self._points_at_once)
        except LayerError:
            raise
        except Exception:
            if self._weights.collective:
                raise
        return np.concatenate([self._by_itself(release, records[i : i + 1]) for i in range(len(records))])

    def _by_itself(self, release: int, record: Indices) -> NDArray[np.float64]:
        """The differences of one record, shape (1, K); 0 where it raises."""
        try:
            return self.differences(release, record)
        except LayerError:
            raise
        except Exception:
            return np.zeros((1, self._plan.directions_per_step))
