"""This package's accountant as a `dp_accounting.PrivacyAccountant`, and dp-accounting's events as histories.

    from dpzero_theory.privacy.dp_accounting import CertifiedAccountant
    CertifiedAccountant().compose(event).get_epsilon(1e-5)

It can replace `PLDAccountant` in code written for dp-accounting, also in calls of `calibrate_dp_mechanism`. Importing
this module needs dp-accounting (extra `compare`).

An event's `noise_multiplier` is the noise's standard deviation divided by the per-record clip, for every relation, as
in dp-accounting's PLD accountant. dp-accounting's RDP accountant counts the change under replace-one as one clip
instead of two, so its multipliers are half as large as the stated epsilon needs.
"""

import math
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from dp_accounting import NeighboringRelation
from dp_accounting.privacy_accountant import PrivacyAccountant

from dpzero_theory import check
from dpzero_theory.privacy.accountant import delta_of_history, epsilon_of_history
from dpzero_theory.privacy.mechanism import MECHANISMS, DiscreteGaussian
from dpzero_theory.privacy.relation import Relation
from dpzero_theory.privacy.sampling import FixedSize, FullBatch, Poisson, Sampling, TruncatedPoisson
from dpzero_theory.privacy.stated import approximate, concentrated, gaussian_mixture
from dpzero_theory.privacy.step import Step, step_of

_RELATIONS = {  # the relations of this package, by the names of `dp_accounting.NeighboringRelation`
    "ADD_OR_REMOVE_ONE": Relation.ADD_REMOVE,
    "REPLACE_ONE": Relation.REPLACE_ONE,
    "REPLACE_SPECIAL": Relation.ZERO_OUT,
}
_Refusal = PrivacyAccountant.CompositionErrorDetails


class _Unsupported(ValueError):
    def __init__(self, event: object, kind: str) -> None:
        super().__init__(f"event must be built from Gaussian, Laplace, sampled and composed ones; got {kind}")
        self.event = event


def history_from_event(event: object, relation: str) -> list[Step]:
    """Converts a `dp_accounting.DpEvent` to a list of steps.

    Supported events, if the installed dp-accounting has them: GaussianDpEvent, LaplaceDpEvent (of one number),
    DiscreteLaplaceDpEvent, DiscreteGaussianDpEvent (with a whole sensitivity), MixtureOfGaussiansDpEvent (not under
    replace-one), ZCDpEvent, EpsilonDeltaDpEvent, RandomizedResponseDpEvent (under replace-one only),
    ExponentialMechanismDpEvent and PermuteAndFlipDpEvent (all three as any epsilon-private mechanism),
    PoissonSampledDpEvent of one of the first four events, SampledWithoutReplacementDpEvent of a GaussianDpEvent,
    TruncatedSubsampledGaussianDpEvent, NoOpDpEvent, and SelfComposedDpEvent and ComposedDpEvent of such events. A noise
    multiplier is the noise divided by the per-record clip, for every relation.

    Args:
        event: the event; its kind is read from the names of its class and fields.
        relation: "replace-one", "add-remove" or "zero-out" (dp-accounting's REPLACE_SPECIAL).

    Returns:
        A list of `Step` objects, empty if the event reveals nothing.

    Raises:
        ValueError: the event is of another kind, a field is outside its range, or the event protects nothing
            (NonPrivateDpEvent, or noise of 0).
    """
    history = list(_parts(event, Relation(relation), 1))
    if None in history:
        raise ValueError(f"event must protect its records; got {event!r}, whose noise is none")
    return [release for release in history if release is not None]


def _parts(event: Any, relation: Relation, count: int) -> Iterator[Step | None]:
    # The steps that `count` repetitions of the event stand for; None for a part that protects nothing
    kind = type(event).__name__
    match kind:
        case "NoOpDpEvent":
            return
        case "NonPrivateDpEvent":
            yield None
        case "ComposedDpEvent":
            for part in event.events:
                yield from _parts(part, relation, count)
        case "SelfComposedDpEvent":
            yield from _parts(event.event, relation, count * event.count)
        case "PoissonSampledDpEvent":
            rate = event.sampling_probability
            made = _release(event, event.event, relation, count, Poisson(rate) if rate else FullBatch())
            if rate:  # with the rate 0 no record is ever used, which costs nothing
                yield made
        case "SampledWithoutReplacementDpEvent":
            if type(event.event).__name__ != "GaussianDpEvent":
                raise _Unsupported(event, f"{kind} of {type(event.event).__name__}")
            drawn: Sampling = FixedSize(event.sample_size / event.source_dataset_size)
            yield _release(event, event.event, relation, count, drawn)
        case "TruncatedSubsampledGaussianDpEvent":
            n, largest, rate = event.dataset_size, event.truncated_batch_size, event.sampling_probability
            if 0 not in (n, largest, rate):  # with a 0 no record is ever used, which costs nothing
                drawn = FullBatch() if largest >= n else FixedSize(largest / n)
                if rate < 1:
                    drawn = TruncatedPoisson(rate, largest, n)
                noise = event.noise_multiplier
                yield step_of(noise, count, sampling=drawn, relation=relation) if noise else None
        case "ZCDpEvent":
            yield concentrated(event.rho, event.xi, steps=count, relation=relation)
        case "EpsilonDeltaDpEvent" | "ExponentialMechanismDpEvent" | "PermuteAndFlipDpEvent":
            e, d = event.epsilon, getattr(event, "delta", 0.0)
            if e or d:  # with 0 and 0 the event reveals nothing
                yield approximate(e, d, steps=count, relation=relation) if d != 1 and e != math.inf else None
        case "MixtureOfGaussiansDpEvent":
            if relation.replaces:
                raise _Unsupported(event, f"{kind} with replace-one")
            if any(event.sensitivities):  # a sum that does not move reveals nothing
                moved = event.standard_deviation, event.sensitivities, event.sampling_probs
                yield gaussian_mixture(*moved, steps=count, relation=relation) if event.standard_deviation else None
        case "RandomizedResponseDpEvent":
            if not relation.replaces:
                raise _Unsupported(event, f"{kind} with {relation}, not replace-one")
            # With the event's probability p the answer is uniform among all k categories, the true one included.
            k, p = event.num_buckets, event.noise_parameter
            yield approximate(math.log1p(k * (1 - p) / p), steps=count, relation=relation) if p else None
        case _:
            yield _release(event, event, relation, count, FullBatch())


def _release(whole: Any, noisy: Any, relation: Relation, count: int, drawn: Sampling) -> Step | None:
    # `count` steps with the noise of the event `noisy`, or None for no noise; errors name `whole`, which contains it
    kind, unit, numbers = type(noisy).__name__, getattr(noisy, "sensitivity", 1), 1
    if unit % 1:
        raise _Unsupported(whole, f"{kind} with a sensitivity of {unit!r}, which is not whole")
    match kind:
        case "GaussianDpEvent" | "LaplaceDpEvent":
            law, noise = kind.removesuffix("DpEvent").lower(), noisy.noise_multiplier
        case "DiscreteLaplaceDpEvent":
            law, noise = MECHANISMS["laplace"].on(unit).name, noisy.noise_parameter and 1 / noisy.noise_parameter / unit
        case "DiscreteGaussianDpEvent":
            law, noise = MECHANISMS["discrete-gaussian"].on(int(unit)).name, noisy.sigma / unit
            # The dimension None means an unknown one, so that the largest, which costs most, is taken.
            numbers = noisy.dimension or DiscreteGaussian.coordinates
        case _:
            raise _Unsupported(whole, kind if whole is noisy else f"{type(whole).__name__} of {kind}")
    if not noise:
        return None
    return step_of(noise, count, sampling=drawn, relation=relation, mechanism=law, coordinates=numbers)


class CertifiedAccountant(PrivacyAccountant):  # type: ignore[misc]
    """A dp-accounting accountant that returns upper bounds with all errors of their computation included.
    `history_from_event` lists the supported events.

    Args:
        neighboring_relation: dp-accounting's relation; its REPLACE_SPECIAL is "zero-out" in this package.
        value_discretization_interval, orders: ignored; they set the accuracy of dp-accounting's own accountants.

    Raises:
        ValueError: dp-accounting does not have this relation.
    """

    def __init__(
        self,
        neighboring_relation: Any = NeighboringRelation.ADD_OR_REMOVE_ONE,
        value_discretization_interval: float | None = None,
        *,
        orders: object = None,
    ) -> None:
        name = getattr(neighboring_relation, "name", neighboring_relation)
        self._relation = _RELATIONS[check.choice("neighboring_relation", name, _RELATIONS)]
        super().__init__(neighboring_relation)
        self._steps: Counter[Step] = Counter()
        self._unprotected = False

    @property
    def history(self) -> tuple[Step, ...]:
        """All steps composed so far, equal ones merged, without events that protect nothing (epsilon is infinite)."""
        return tuple(replace(step, steps=count) for step, count in self._steps.items())

    def _maybe_compose(self, event: Any, count: int, do_compose: bool) -> Any:
        try:
            found = list(_parts(event, self._relation, count if do_compose else max(count, 1)))
        except _Unsupported as error:
            return _Refusal(error.event, str(error))
        if do_compose:
            self._unprotected |= None in found
            for step in filter(None, found):
                self._steps[replace(step, steps=1)] += step.steps
        return None

    def get_epsilon(self, target_delta: float) -> float:
        """Returns an upper bound on epsilon at `target_delta`, which is 0, 1, or in [1e-30, 1). It is 0 if no event was
        composed or `target_delta` is 1, and infinite if an event protects nothing. At `target_delta` = 0 it is finite
        only if all noise is Laplace, although other events may have a finite epsilon there. Raises ValueError for
        another `target_delta`, or for one above 0 that the true delta exceeds at every epsilon."""
        delta = check.real("target_delta", target_delta, at_least=0, at_most=1)
        if self._unprotected:
            return math.inf
        if not self._steps or delta == 1:
            return 0.0
        if delta == 0 and any("laplace" not in step.mechanism for step in self._steps):
            return math.inf
        return epsilon_of_history(self.history, delta).upper

    def get_delta(self, target_epsilon: float) -> float:
        """Returns an upper bound on delta at `target_epsilon` >= 0: 0 if no event was composed, and 1 if an event
        protects nothing. Raises ValueError for a negative `target_epsilon` once an event was composed."""
        if self._unprotected:
            return 1.0
        if not self._steps or target_epsilon == math.inf:
            return 0.0
        return delta_of_history(self.history, target_epsilon).upper
