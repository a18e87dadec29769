"""Writes privacy certificates: an epsilon and a delta in a file that others can verify without trusting the accountant.

    certificate = privacy_certificate(step * 10_000, delta=1e-5)
    Path("certificate.json").write_text(json.dumps(certificate, indent=2))

`python -m dpzero_theory.privacy.checker certificate.json` confirms or refuses it. The checker is one file that shares
no code and no method with the accountant. It confirms the arithmetic: steps of this kind cost no more than is stated.
It cannot confirm that a run made such steps; `optim.verify` and the audit look at that.
"""

import math
from importlib import import_module
from typing import Any

from dpzero_theory import check
from dpzero_theory.privacy.accountant import epsilon_of_history
from dpzero_theory.privacy.step import Step, Steps, steps_of

_FORMAT = "dpzero privacy certificate 1"
_ROOM = 1e-3  # epsilon is stated larger by this share of itself: the checker's bounds exceed the accountant's
_LEAST_NOISE = 1 / 16  # for less noise the checker's bound on what a lattice costs does not hold
_LEAST_EPSILON, _MOST_EPSILON = 1e-3, 1e3  # the least and the largest epsilon that a certificate states
_BATCHES = ("full", "poisson", "cyclic-poisson")  # the samplings that the checker knows
_NOISE_LAWS = ("gaussian", "discrete-gaussian", "laplace")  # the noise laws that the checker knows


def privacy_certificate(history: Steps, delta: float) -> dict[str, Any]:
    """Returns a certificate that a history is (epsilon, delta)-differentially private, as a dictionary to be written as
    JSON. The command `python -m dpzero_theory.privacy.checker FILE` verifies the file without any code of this module.

    Args:
        history: steps, all with one relation, in at most 100 sequences of equal steps. Batches must be full, Poisson or
            cyclic Poisson. Noise must be "gaussian", "discrete-gaussian" or "laplace", with a multiplier above 1/16 and
            at most 1e6.
        delta: above 1e-30, at most 1/2.

    Returns:
        A dictionary: `history` describes each sequence of equal steps in words and numbers; `statement` has the epsilon
        and delta to be confirmed, an epsilon of at least 1e-3 that is a thousandth above the accountant's upper bound
        and rounded up to six digits; `bracket` has the accountant's lower and upper bound on epsilon at this delta;
        `method` and `version` say how they were computed; `format` names the file format.

    Raises:
        ValueError: the checker does not know such a history, or an argument is outside its range.
    """
    check.real("delta", delta, above=1e-30, at_most=0.5)
    releases = steps_of(history)
    if not 1 <= len(releases) <= 100:
        raise ValueError(f"history must have 1 to 100 parts to be checked; got {len(releases)}")
    parts = [_part(release) for release in releases]
    found = epsilon_of_history(releases, delta)
    stated = max(found.upper * (1 + _ROOM), _LEAST_EPSILON)
    if not stated <= _MOST_EPSILON:
        raise ValueError(f"history must cost an epsilon of at most {_MOST_EPSILON:g} to be checked; got {stated:g}")
    digits = 10.0 ** (5 - math.floor(math.log10(stated)))
    return {
        "format": _FORMAT,
        "version": f"dpzero_theory {import_module('dpzero_theory').__version__}",
        "history": parts,
        "statement": {"epsilon": math.ceil(stated * digits) / digits, "delta": delta},
        "bracket": {"lower": found.lower, "upper": found.upper},
        "method": found.method,
    }


def _part(release: Step) -> dict[str, Any]:
    name = release.sampling.word.partition(":")[0]
    if name not in _BATCHES or release.mechanism not in _NOISE_LAWS:
        rule = f"history must have batches {', '.join(_BATCHES)} and noise {', '.join(_NOISE_LAWS)} to be checked"
        other = "(epsilon_of_history states the cost of any history, without a certificate)"
        raise ValueError(f"{rule} {other}; got {release.sampling.word} and {release.mechanism}")
    check.real("noise_multiplier", release.noise, above=_LEAST_NOISE, at_most=1e6)
    check.integer("coordinates", release.coordinates, at_most=10**12)
    return {
        "steps": release.steps,
        "noise_multiplier": release.noise,
        "mechanism": release.mechanism,
        "sampling": release.sampling.word,
        "sample_rate": release.sampling.sample_rate,
        "relation": str(release.relation),
        "coordinates": release.coordinates,
    }
