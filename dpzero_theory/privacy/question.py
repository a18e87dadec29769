"""One question to the accountant. Of noise, epsilon, delta, steps, batch and n five are given, and the sixth is
sought."""

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
    """A question to the accountant: of the six numbers in `SOUGHT` the one that is None is to be found.

    epsilon, delta: the privacy target, or, if one of them is sought, the value at which the other is computed.
    noise_multiplier: s > 0, noise on a batch's sum over the clip. steps: the number of releases. n: the number of
    records. batch: the (expected) number of records of a batch, which is n with full batches. drawing: how batches are
    drawn and which data sets are neighbours. group: the number of records in which neighbours may differ, 1 unless
    whole users are protected.
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
        """The word for how batches are drawn, such as `poisson`."""
        word = self.drawing["sampling"]
        return word if isinstance(word, str) else word.word

    @property
    def relation(self) -> str:
        """The name of the neighbouring relation."""
        return self.drawing["relation"]

    @property
    def sought(self) -> str:
        """The name of the number that is to be found."""
        return next(name for name in SOUGHT if getattr(self, name) is None)

    @property
    def sample_rate(self) -> float | None:
        """The sample rate batch/n, or None if n or batch is not known."""
        return None if self.n is None or self.batch is None else self.batch / self.n

    def release(self) -> Release:
        """The steps that the question is about. Every number but epsilon and delta must be known. Raises ValueError for
        a number outside its range."""
        return Release(self.noise_multiplier, self.steps, **self.drawing, sample_rate=self.sample_rate)  # type: ignore[arg-type]

    def answered(self, bracket: Bracket) -> "Question":
        """The same question with the number that was sought filled in, with the `value` of its `bracket`."""
        value: Any = int(bracket.value) if self.sought in ("steps", "batch", "n") else bracket.value
        return replace(self, **{self.sought: value})

    def answer(self) -> Bracket:
        """The bracket of the number that is sought; its `value` is the end that is safe for privacy. Raises ValueError
        for a number outside its range, or where there is no answer."""
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
        """The bracket of delta at `epsilon`, whose `value` is a delta at which `group_epsilon` answers at most
        `epsilon`.

        `group_epsilon` and `group_delta` search separately, so that this value may be a little above the upper end that
        `group_delta` gives.
        """
        history = [self.release()]

        def beyond(delta: float) -> float:
            if not 0 < delta < 1:
                return 0.0
            return group_epsilon(history, delta, size=self.group, n=self.n).upper / epsilon - 1

        bracket = group_delta(history, epsilon, size=self.group, n=self.n)
        return settled(bracket, beyond) if epsilon > 0 else replace(bracket, value=bracket.upper)


def sweep_row(question: Question, variable: str) -> dict[str, float | str]:
    """Return one row of a sweep, a dictionary: the value of the variable in this question under its name, the answer
    under the name of the number that is sought, the ends of its bracket ("lower", "upper"), and "method".

    variable: the name of the variable. Where there is no answer (no noise is needed, or no number of steps meets the
    target) the numbers are NaN and the method is replaced by the reason.
    """
    first = {variable: getattr(question, variable)}
    try:
        bracket = question.answer()
    except ValueError as error:
        return first | {question.sought: math.nan, "lower": math.nan, "upper": math.nan, "method": str(error)}
    return first | {
        question.sought: bracket.value,
        "lower": bracket.lower,
        "upper": bracket.upper,
        "method": bracket.method,
    }
