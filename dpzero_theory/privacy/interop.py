"""Histories from the events of the package dp-accounting, without importing it."""

from dpzero_theory.privacy.release import Release


def history_from_event(event: object, relation: str) -> list[Release]:
    """The history that a `dp_accounting.DpEvent` describes.

    Understood: GaussianDpEvent, PoissonSampledDpEvent and SampledWithoutReplacementDpEvent of one, and
    SelfComposedDpEvent, ComposedDpEvent and NoOpDpEvent around them.

    Args:
        event: the event; recognised by the names of its class and fields.
        relation: `replace-one` or `add-remove`. dp-accounting's Gaussian multiplier is over the sensitivity of
            the sum; here it is over the clip. They agree for add-remove; for replace-one a multiplier z of
            dp-accounting is 2 z here if its sensitivity was taken as 2 C, so convert before calling.

    Raises:
        ValueError: an event of another kind, or a field outside its range.
    """
    return _expand(event, relation, 1)


def _expand(event: object, relation: str, count: int) -> list[Release]:
    kind = type(event).__name__
    if kind == "NoOpDpEvent":
        return []
    if kind == "ComposedDpEvent":
        return [g for part in event.events for g in _expand(part, relation, count)]  # type: ignore[attr-defined]
    if kind == "SelfComposedDpEvent":
        return _expand(event.event, relation, count * event.count)  # type: ignore[attr-defined]
    if kind == "GaussianDpEvent":
        return [Release(event.noise_multiplier, count, sampling="full", relation=relation)]  # type: ignore[attr-defined]
    if kind in ("PoissonSampledDpEvent", "SampledWithoutReplacementDpEvent"):
        inner = event.event  # type: ignore[attr-defined]
        if type(inner).__name__ == "GaussianDpEvent":
            if kind == "PoissonSampledDpEvent":
                sampling, rate = "poisson", event.sampling_probability  # type: ignore[attr-defined]
            else:
                sampling, rate = "fixed-size", event.sample_size / event.source_dataset_size  # type: ignore[attr-defined]
            return [Release(inner.noise_multiplier, count, sampling=sampling, relation=relation, sample_rate=rate)]
        kind = f"{kind} of {type(inner).__name__}"
    raise ValueError(f"event must be built from Gaussian, sampled Gaussian and composed events; got {kind}")
