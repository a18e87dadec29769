"""One question to the accountant: five of noise, epsilon, delta, steps, batch and n are given, the sixth is sought."""

import math
from dataclasses import dataclass, replace
from typing import Any

from dpzero_theory.privacy.bracket import Bracket
from dpzero_theory.privacy.calibration import settled
from dpzero_theory.privacy.group import group_delta, group_epsilon, group_noise
from dpzero_theory.privacy.solve import fewest_records, largest_batch, most_steps
from dpzero_theory.privacy.step import Drawing, Release

SOUGHT = ("noise_multiplier", "epsilon", "delta", "steps", "batch", "n")


@dataclass(frozen=True)
class Question:
    """A question to the accountant: the one of `SOUGHT` that is None is to be found.

    epsilon, delta: the target, or the point of the curve. noise_multiplier, steps: as of `Release`. n: the number of
    records. batch: the (expected) number of records of a batch, n with sampling full. drawing: sampling and relation.
    group: the number of records in which neighbours differ (`group`).
    """

    epsilon: float | None
    noise_multiplier: float | None
    delta: float | None
    steps: int | None
    n: int | None
    batch: int | None
    drawing: Drawing
    group: int = 1

    @property
    def sampling(self) -> str:
        """The word for how batches are drawn."""
        word = self.drawing["sampling"]
        return word if isinstance(word, str) else word.word

    @property
    def relation(self) -> str:
        """The name of the relation."""
        return self.drawing["relation"]

    @property
    def sought(self) -> str:
        """The name of the number to find."""
        return next(name for name in SOUGHT if getattr(self, name) is None)

    @property
    def sample_rate(self) -> float | None:
        """q, if n and batch are known; else None."""
        return None if self.n is None or self.batch is None else self.batch / self.n

    def release(self) -> Release:
        """The releases, once every number is known."""
        return Release(self.noise_multiplier, self.steps, **self.drawing, sample_rate=self.sample_rate)  # type: ignore[arg-type]

    def answered(self, found: Bracket) -> "Question":
        """The same question with its answer filled in."""
        value: Any = int(found.value) if self.sought in ("steps", "batch", "n") else found.value
        return replace(self, **{self.sought: value})

    def answer(self) -> Bracket:
        """The bracket of the number to find; `value` is its safe side. Raises ValueError."""
        target: dict[str, Any] = {"target_epsilon": self.epsilon, "target_delta": self.delta}
        noise: dict[str, Any] = {"noise_multiplier": self.noise_multiplier}
        steps: dict[str, Any] = {"steps": self.steps}
        drawn = self.drawing
        sizes: dict[str, Any] = {name: getattr(self, name) for name in ("n", "batch") if name != self.sought}
        group: dict[str, Any] = {"group": self.group}
        match self.sought:
            case "noise_multiplier":
                return group_noise(**target, **steps, **drawn, sample_rate=self.sample_rate, size=self.group, n=self.n)
            case "epsilon":
                assert self.delta is not None
                return group_epsilon([self.release()], self.delta, size=self.group, n=self.n)
            case "delta":
                assert self.epsilon is not None
                return self._delta(self.epsilon)
            case "steps":
                return most_steps(**target, **noise, **drawn, sample_rate=self.sample_rate, **group, n=self.n)
            case "batch":
                return largest_batch(**target, **noise, **steps, **drawn, **sizes, **group)
            case _:
                return fewest_records(**target, **noise, **steps, **drawn, **sizes, **group)

    def _delta(self, epsilon: float) -> Bracket:
        """The bracket of delta, whose `value` is a delta at which `group_epsilon` answers at most `epsilon`.

        The two functions search separately, so that it may be a little above the upper end of delta at `epsilon`.
        """
        history = [self.release()]

        def beyond(delta: float) -> float:
            if not 0 < delta < 1:
                return 0.0
            return group_epsilon(history, delta, size=self.group, n=self.n).upper / epsilon - 1

        found = group_delta(history, epsilon, size=self.group, n=self.n)
        return settled(found, beyond) if epsilon > 0 else replace(found, value=found.upper)


def sweep_row(question: Question, variable: str) -> dict[str, float | str]:
    """One row of a sweep: the variable's value, the answer with its bracket and the method.

    An answer that does not exist (no noise is needed, no number of steps meets the target) is a row with its reason.
    """
    first = {variable: getattr(question, variable)}
    try:
        found = question.answer()
    except ValueError as error:
        return first | {question.sought: math.nan, "lower": math.nan, "upper": math.nan, "method": str(error)}
    return first | {question.sought: found.value, "lower": found.lower, "upper": found.upper, "method": found.method}
