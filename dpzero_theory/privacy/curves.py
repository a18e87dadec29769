"""Curves of certified answers: epsilon over the number of steps, and delta over epsilon."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from dpzero_theory import check
from dpzero_theory.check import Array
from dpzero_theory.privacy.accountant import delta_of_history, epsilon_of_history
from dpzero_theory.privacy.bracket import Bracket
from dpzero_theory.privacy.step import Release, Steps


@dataclass(frozen=True)
class Curve:
    """Certified brackets of a function of x. For each x there are the two ends, `lower` and `upper`, and the `value` of
    a `Bracket`.

    All four are arrays of shape (points,).
    """

    x: Array
    lower: Array
    value: Array
    upper: Array


def _curve(x: Array, found: Sequence[Bracket]) -> Curve:
    """The curve with one bracket of `found` for each entry of `x`."""
    columns = np.array([(b.lower, b.value, b.upper) for b in found], dtype=np.float64).reshape(-1, 3)
    return Curve(x, *columns.T)


def epsilon_over_steps(release: Release, steps: ArrayLike, delta: float) -> Curve:
    """The least epsilon at `delta` after T releases, for every T in `steps`.

    Args:
        release: the kind of release; its own number of steps is ignored.
        steps: integers >= 1, shape (points,), or a single one.
        delta: 0 < delta < 1, or 0 where the noise has pure epsilon, as Laplace noise has.

    Returns:
        A curve whose x is `steps`; its upper ends are the epsilons to state.

    Raises:
        ValueError: an argument outside its range.
    """
    counts = [check.integer("steps", number) for number in np.atleast_1d(check.real_array("steps", steps))]
    check.real("delta", delta, at_least=0, below=1)
    found = [epsilon_of_history([release.with_steps(count)], delta) for count in counts]
    return _curve(np.array(counts, dtype=np.float64), found)


def delta_over_epsilon(history: Steps, epsilon: ArrayLike) -> Curve:
    """The least delta with which a history is (epsilon, delta)-DP, for every entry of `epsilon`.

    Args:
        history: steps, such as `step * 1000`, all with one relation.
        epsilon: numbers >= 0, shape (points,), or a single one.

    Returns:
        A curve whose x is `epsilon`; its upper ends are the deltas to state.

    Raises:
        ValueError: an argument outside its range.
    """
    levels = np.atleast_1d(check.real_array("epsilon", epsilon, at_least=0))
    return _curve(levels, [delta_of_history(history, float(level)) for level in levels])
