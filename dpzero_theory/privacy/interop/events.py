"""Conversion of dp-accounting's events to histories and back. dp-accounting is imported only to make an event.

Conventions. `noise_multiplier` of an event is the noise's standard deviation over the per-record clip, for every
relation, in this package and in dp-accounting's PLD accountant. With replace-one the sum changes by up to two clips;
both take account of that themselves, so that the same multiplier is used on both sides. dp-accounting's RDP accountant
takes the change under replace-one as one clip. A multiplier that it calibrated for replace-one (GaussianDpEvent,
SampledWithoutReplacementDpEvent) therefore stands for noise half as large as the stated epsilon needs;
`tests/privacy/interop/test_events.py` shows it.
"""

import importlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from fractions import Fraction
from typing import Any

from dpzero_theory.privacy.mechanism import MECHANISMS, Laplace
from dpzero_theory.privacy.relation import Relation
from dpzero_theory.privacy.sampling import FixedSize, FullBatch, Poisson, Sampling, TruncatedPoisson
from dpzero_theory.privacy.stated import (
    Stated,
    concentrated,
    gaussian_mixture,
    randomised_response,
)
from dpzero_theory.privacy.step import Step, Steps, step_of, steps_of

RELATIONS = {
    "ADD_OR_REMOVE_ONE": Relation.ADD_REMOVE,
    "REPLACE_ONE": Relation.REPLACE_ONE,
    "REPLACE_SPECIAL": Relation.ZERO_OUT,
}
"""The relations of this package, by the names of `dp_accounting.NeighboringRelation`."""


class UnsupportedEvent(ValueError):
    """An event, or a part of one, that is not accounted.

    event: the part that is not accounted. kind: words for it, for the message.
    """

    def __init__(self, event: object, kind: str) -> None:
        super().__init__(f"event must be built from Gaussian, Laplace, sampled and composed ones; got {kind}")
        self.event = event


def history_from_event(event: object, relation: str) -> list[Step]:
    """The history that a `dp_accounting.DpEvent` describes.

    These events are understood: GaussianDpEvent, LaplaceDpEvent, DiscreteLaplaceDpEvent, RandomizedResponseDpEvent,
    MixtureOfGaussiansDpEvent (not under replace-one), ZCDpEvent, PoissonSampledDpEvent of a Gaussian or Laplace event,
    SampledWithoutReplacementDpEvent of a Gaussian event, TruncatedSubsampledGaussianDpEvent, and SelfComposedDpEvent,
    ComposedDpEvent and NoOpDpEvent around them. A Laplace event stands for the release of one number. A noise
    multiplier is taken as the noise over the per-record clip, for every relation.

    Args:
        event: the event; it is recognised by the names of its class and fields.
        relation: `replace-one`, `add-remove` or `zero-out` (dp-accounting's REPLACE_SPECIAL).

    Raises:
        UnsupportedEvent: an event of another kind.
        ValueError: a field outside its range; an event that protects nothing (NonPrivateDpEvent, no noise).
    """
    history = list(parts(event, relation, 1))
    if None in history:
        raise ValueError(f"event must protect its records; got {event!r}, whose noise is none")
    return [release for release in history if release is not None]


def parts(event: Any, relation: str, count: int) -> Iterator[Step | None]:
    """The releases that `count` repetitions of a dp-accounting event stand for, with None for a part that protects
    nothing.

    relation: the name of a `Relation`. Raises UnsupportedEvent for an event that is not accounted.
    """
    kind = type(event).__name__
    match kind:
        case "NoOpDpEvent":
            return
        case "NonPrivateDpEvent":
            yield None
        case "ComposedDpEvent":
            for part in event.events:
                yield from parts(part, relation, count)
        case "SelfComposedDpEvent":
            yield from parts(event.event, relation, count * event.count)
        case "PoissonSampledDpEvent":
            if event.sampling_probability != 0 or type(event.event).__name__ not in _NOISE:
                yield _release(event, event.event, relation, count, lambda: Poisson(event.sampling_probability))
        case "SampledWithoutReplacementDpEvent":
            if type(event.event).__name__ != "GaussianDpEvent":
                raise UnsupportedEvent(event, f"{kind} of {type(event.event).__name__}")
            rate = event.sample_size / event.source_dataset_size
            yield _release(event, event.event, relation, count, lambda: FixedSize(rate))
        case "TruncatedSubsampledGaussianDpEvent":
            yield from _truncated(event, relation, count)
        case "ZCDpEvent":
            yield concentrated(event.rho, event.xi, steps=count, relation=relation)
        case "MixtureOfGaussiansDpEvent":
            yield from _mixture(event, relation, count)
        case "RandomizedResponseDpEvent":
            yield _answers(event, relation, count)
        case _:
            yield _release(event, event, relation, count, FullBatch)


def _truncated(event: Any, relation: str, count: int) -> Iterator[Step | None]:
    """The releases that `count` repetitions of a TruncatedSubsampledGaussianDpEvent stand for, or None for noise of 0.

    relation: the name of a `Relation`. There are none if no record is ever used. If every record is drawn, the batches
    are full or of fixed size.
    """
    n, largest, rate = event.dataset_size, event.truncated_batch_size, event.sampling_probability
    if 0 in (n, largest, rate):
        return
    if rate == 1:
        drawn: Sampling = FullBatch() if largest >= n else FixedSize(largest / n)
    else:
        drawn = TruncatedPoisson(rate, largest, n)
    if event.noise_multiplier == 0:
        yield None
    else:
        yield step_of(event.noise_multiplier, count, sampling=drawn, relation=relation)


def _mixture(event: Any, relation: str, count: int) -> Iterator[Step | None]:
    """The releases that `count` repetitions of a MixtureOfGaussiansDpEvent stand for; none if it shows nothing, or None
    if it has no noise. relation: the name of a `Relation`, which must not be `replace-one`."""
    if Relation(relation) is Relation.REPLACE_ONE:
        raise UnsupportedEvent(event, f"{type(event).__name__} with replace-one")
    if not any(event.sensitivities):
        return
    if event.standard_deviation == 0:
        yield None
    else:
        moved = event.standard_deviation, event.sensitivities, event.sampling_probs
        yield gaussian_mixture(*moved, steps=count, relation=relation)


def _answers(event: Any, relation: str, count: int) -> Step | None:
    """The releases that `count` repetitions of a RandomizedResponseDpEvent stand for.

    relation: the name of a `Relation`, which must be `replace-one`. With the event's probability p the answer is any of
    the k categories, the true one among them. None is returned for p = 0, where the answer is always the true category.
    """
    if Relation(relation) is not Relation.REPLACE_ONE:
        raise UnsupportedEvent(event, f"{type(event).__name__} with {relation}, not replace-one")
    categories, random = event.num_buckets, event.noise_parameter
    return randomised_response(categories, 1 - random + random / categories, steps=count) if random else None


_NOISE: dict[str, tuple[Callable[[Any], str], Callable[[Any], float]]] = {
    "GaussianDpEvent": (lambda _: "gaussian", lambda event: event.noise_multiplier),
    "LaplaceDpEvent": (lambda _: "laplace", lambda event: event.noise_multiplier),
    "DiscreteLaplaceDpEvent": (
        lambda event: f"{Laplace.family}:{event.sensitivity}",
        lambda event: event.noise_parameter and 1 / (event.noise_parameter * event.sensitivity),
    ),
}
"""For each noise event of dp-accounting, two functions of the event. The first gives this package's name of the noise
law, and the second its noise multiplier, which is 0 if there is no noise."""


def _release(whole: Any, noisy: Any, relation: str, count: int, drawn: Callable[[], Sampling]) -> Step | None:
    kind = type(noisy).__name__
    if kind not in _NOISE:
        raise UnsupportedEvent(whole, kind if whole is noisy else f"{type(whole).__name__} of {kind}")
    mechanism, multiplier = _NOISE[kind]
    noise = multiplier(noisy)
    if noise == 0:
        return None
    return step_of(noise, count, sampling=drawn(), relation=relation, mechanism=mechanism(noisy))


def merged(releases: Iterable[Step]) -> tuple[Step, ...]:
    """The same history with all releases of equal kind counted together, in the order of their first appearance.

    It may be used for full, Poisson and fixed-size batches, whose cost does not depend on the order of the releases.
    """
    steps: Counter[Step] = Counter()
    for r in releases:
        steps[replace(r, steps=1)] += r.steps
    return tuple(replace(step, steps=count) for step, count in steps.items())


def event_from_history(history: Steps) -> Any:
    """The `dp_accounting.DpEvent` of a history, for an accountant that was made with the history's relation.

    Gaussian noise is converted with full, Poisson (truncated or not) and fixed-size batches, Laplace noise with full
    and Poisson ones, and so are randomised response, mixtures of Gaussians and zCDP statements. A discrete Gaussian
    release becomes a Gaussian event; the probabilities of the two differ by a factor of at most e^G with the G of
    `discrete.discrete_gap`.

    Raises:
        ValueError: a sampling or noise law that no event describes, or an argument that is not a history.
        ImportError: dp-accounting is not installed (extra `compare`).
    """
    dp = importlib.import_module("dp_accounting")
    events = []
    for r in steps_of(history):
        event = _noise(dp, r)
        if r.sampling.sample_rate < 1:
            event = _sampled(dp, r, event)
        events.append(dp.SelfComposedDpEvent(event, r.steps))
    return dp.ComposedDpEvent(events)


def _noise(dp: Any, release: Step) -> Any:
    law = MECHANISMS[release.mechanism]
    if isinstance(law, Laplace) and law.levels:
        return dp.dp_event.DiscreteLaplaceDpEvent(1 / (release.noise * law.levels), law.levels)
    if isinstance(law, Stated):
        if law.family == "randomised-response":
            categories, truth = law.numbers
            return dp.dp_event.RandomizedResponseDpEvent((1 - truth) * categories / (categories - 1), categories)
        if law.family == "gaussian-mixture":
            scatter, *shifts = law.numbers
            return dp.dp_event.MixtureOfGaussiansDpEvent(scatter, *map(list, zip(*shifts, strict=True)))
        if law.family == "zcdp":
            return dp.dp_event.ZCDpEvent(*law.numbers)
    if law.name == "laplace":
        return dp.LaplaceDpEvent(release.noise)
    if law.name in ("gaussian", "discrete-gaussian"):
        return dp.GaussianDpEvent(release.noise)
    raise ValueError(f"history must have Gaussian or Laplace noise; got {law.name}")


def _sampled(dp: Any, release: Step, event: Any) -> Any:
    rate = release.sampling.sample_rate
    if release.sampling.word == "poisson":
        return dp.PoissonSampledDpEvent(rate, event)
    kind = release.sampling
    if isinstance(kind, TruncatedPoisson):
        return dp.TruncatedSubsampledGaussianDpEvent(kind.n, rate, kind.largest, release.noise)
    if release.sampling.word == "fixed-size":
        simple = Fraction(rate).limit_denominator(10**9)
        size, n = (simple if float(simple) == rate else Fraction(rate)).as_integer_ratio()
        return dp.SampledWithoutReplacementDpEvent(n, size, event)
    raise ValueError(f"history must have full, poisson or fixed-size batches; got {release.sampling.word}")
