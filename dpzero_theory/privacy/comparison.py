"""The cost of a run, or its noise for a target, from other accountants: dp-accounting, Opacus and prv-accountant.

The question is about add-remove with full batches or Poisson sampling, which all of them cover. An accountant is
imported only when it is asked. If one is not installed, or fails, its answer says so, with the extra that installs it.
"""

import importlib
import math
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any


@dataclass(frozen=True)
class Comparison:
    """The answer of one accountant: a noise multiplier for a target epsilon, or the epsilon of a given noise
    multiplier.

    accountant: its name. value: the answer, or None if there is none. seconds, cpu_seconds: the wall-clock and the
    processor time that it took, in seconds. status: `ok`, or what went wrong.
    """

    accountant: str
    value: float | None
    seconds: float
    cpu_seconds: float
    status: str


def _event(noise: float, sample_rate: float, steps: int) -> Any:
    dp = importlib.import_module("dp_accounting")
    inner = dp.GaussianDpEvent(noise)
    return dp.SelfComposedDpEvent(inner if sample_rate == 1 else dp.PoissonSampledDpEvent(sample_rate, inner), steps)


def _dp_accounting(kind: str, name: str, *, epsilon: float | None, noise: float | None, **k: Any) -> float:
    dp = importlib.import_module("dp_accounting")
    make = getattr(importlib.import_module(f"dp_accounting.{kind}"), name)
    if noise is not None:
        accountant = make()
        accountant.compose(_event(noise, k["sample_rate"], k["steps"]))
        return float(accountant.get_epsilon(k["delta"]))
    bracket = dp.LowerEndpointAndGuess(0.0, 2.0)
    found = dp.calibrate_dp_mechanism(
        make, lambda s: _event(s, k["sample_rate"], k["steps"]), epsilon, k["delta"], bracket, tol=1e-6
    )
    return float(found)


def _prv(*, epsilon: float | None, noise: float | None, delta: float, sample_rate: float, steps: int) -> float:
    dpsgd = importlib.import_module("prv_accountant.dpsgd")
    if noise is not None:
        accountant = dpsgd.DPSGDAccountant(noise, sample_rate, steps, eps_error=0.01, delta_error=delta / 1000)
        return float(accountant.compute_epsilon(delta, steps)[2])
    return float(dpsgd.find_noise_multiplier(sample_rate, steps, epsilon, delta, eps_error=0.01))


def _opacus(*, epsilon: float | None, noise: float | None, delta: float, sample_rate: float, steps: int) -> float:
    if noise is not None:
        accountants = importlib.import_module("opacus.accountants")
        accountant = accountants.RDPAccountant()
        accountant.history = [(noise, sample_rate, steps)]
        return float(accountant.get_epsilon(delta))
    utils = importlib.import_module("opacus.accountants.utils")
    return float(
        utils.get_noise_multiplier(
            target_epsilon=epsilon, target_delta=delta, sample_rate=sample_rate, steps=steps, accountant="rdp"
        )
    )


ACCOUNTANTS: dict[str, Callable[..., float]] = {
    "dp-accounting PLD": partial(_dp_accounting, "pld", "PLDAccountant"),
    "dp-accounting RDP": partial(_dp_accounting, "rdp", "RdpAccountant"),
    "Opacus RDP": _opacus,
    "prv-accountant": _prv,
}
"""The accountants by name. Each is a function of delta, sample_rate, steps, epsilon and noise, of which one of the last
two is None, and returns the noise multiplier at that epsilon or the epsilon at that noise."""


def compare(
    accountant: str,
    *,
    delta: float,
    sample_rate: float,
    steps: int,
    epsilon: float | None = None,
    noise: float | None = None,
) -> Comparison:
    """Ask one accountant for the noise multiplier at `epsilon`, or for the epsilon at the multiplier `noise`.

    Args:
        accountant: a key of `ACCOUNTANTS`.
        delta: 0 < delta < 1.
        sample_rate: q in (0, 1]; 1 is full batches.
        steps: T >= 1.
        epsilon, noise: one of them, > 0; the other one is None. This is not checked.

    Returns:
        The answer, with the time it took. An accountant that is not installed, not known, or fails gives an answer
            without a value, whose status says why; nothing is raised.
    """
    started, working = time.perf_counter(), time.process_time()
    value, status = None, "ok"
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            value = ACCOUNTANTS[accountant](
                epsilon=epsilon, noise=noise, delta=delta, sample_rate=sample_rate, steps=steps
            )
        if not math.isfinite(value):
            value, status = None, "not finite"
    except ImportError:
        status = "not installed: pip install 'dpzero-theory[compare]'"
    except Exception as error:  # the other package's failure is part of the answer
        status = f"{type(error).__name__}: {error}".splitlines()[0][:100]
    return Comparison(accountant, value, time.perf_counter() - started, time.process_time() - working, status)
