"""Lower bounds on epsilon where the exact value is known: how often they exceed it, and how far they are below.

    python -m benchmarks.lower_bounds [--quick] [--out DIR]

Each mechanism releases one number. With relation replace-one it is +1/2 or -1/2, with Gaussian noise of standard
deviation 1/mu, with Laplace noise of pure epsilon, or by randomised response of pure epsilon. With relation add-remove
it is 1 or 0, with Gaussian noise of standard deviation 1/mu, and the record is in the batch with probability RATE only.

A row is for 200 audits of one mechanism by one method, at 95% confidence and delta 1e-5, each with the same number of
runs, or of canaries in one run. The row has the number of bounds above the exact value, the bounds' quartiles and 5%
and 95% quantiles, and the seconds that an audit takes. The methods are those of `audit.bounds` and `audit.sequential`,
and, on the same scores, those of jax_privacy.auditing if it is installed (`pip install jax_privacy`; if it is not, its
rows say so). A method whose name ends in gdp bounds the smallest mu for which the mechanism is mu-GDP. Its bound is
written as the epsilon of that mu at delta, and compared with the epsilon of the true smallest mu. The method "one run,
independent" is the idea of Xiang et al. (arXiv 2509.08704): the guesses that a run releases are those of the largest
scores, and how many of them may be right is computed for independent signs. jax_privacy's one-run
audit by f-DP takes a second and is made for the Gaussian mechanism only.
"""

import importlib.util
import time
from argparse import Namespace
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache

import numpy as np
from scipy import optimize, special, stats

from benchmarks.kit.experiment import Cell, Experiment, flag
from benchmarks.kit.rows import OK, read_rows
from dpzero_theory.audit import bounds, sequential
from dpzero_theory.check import Array
from dpzero_theory.privacy.gaussian import epsilon_from_gdp

KEY = ("mechanism", "strength", "method", "size")
DELTA, CONFIDENCE, REPEATS = 1e-5, 0.95, 200
RUNS, FEWER = (1000, 4000, 16000), (1000, 4000)
RATE = 0.25
_UNLIKELY = 1e-3
"""If every bound is above the truth with probability 5%, then a count of such bounds fails the experiment if a count so
large, or larger, has less than this probability."""
_JAX = "jax_privacy"
_LARGEST_GDP, _GRID, _SIMULATED = 4.0, 81, 400
"""The largest mu for which right guesses of independent signs are simulated, the number of values up to it, and the
number of simulations of each."""


@dataclass(frozen=True)
class Mechanism:
    """A mechanism that releases one number about a secret sign, and whose privacy is known exactly.

    strength is mu, or the pure epsilon. noisy(signs, generator, strength) returns a noisy score for each sign +1 or -1.
    exact(strength) is the mechanism's epsilon at DELTA. smallest(strength) is the smallest mu for which the mechanism
    is mu-GDP.
    """

    name: str
    strength: float
    noisy: Callable[[Array, np.random.Generator, float], Array]
    exact: Callable[[float], float]
    smallest: Callable[[float], float]

    def truth(self, gdp: bool) -> float:
        """Return the value that a valid lower bound on epsilon must not exceed: the exact epsilon at DELTA, or, if
        `gdp`, the epsilon at DELTA of the smallest mu for which the mechanism is mu-GDP."""
        return _from_gdp(self.smallest(self.strength)) if gdp else self.exact(self.strength)

    def scores(self, signs: Array, rng: np.random.Generator) -> Array:
        return self.noisy(signs, rng, self.strength)


def _gaussian(signs: Array, rng: np.random.Generator, mu: float) -> Array:
    return np.asarray(signs / 2 + rng.normal(size=signs.size) / mu)


def _laplace(signs: Array, rng: np.random.Generator, epsilon: float) -> Array:
    return np.asarray(signs / 2 + rng.laplace(size=signs.size) / epsilon)


def _response(signs: Array, rng: np.random.Generator, epsilon: float) -> Array:
    """Return randomised response: each sign divided by 2, and flipped with probability 1/(1 + e^epsilon)."""
    return np.where(rng.random(signs.size) < special.expit(-epsilon), -signs, signs) / 2


def _laplace_epsilon(epsilon: float) -> float:
    """Return the epsilon at DELTA of the Laplace mechanism of pure `epsilon`, from its delta(e) = 1 - exp((e -
    epsilon)/2) for 0 <= e <= epsilon."""
    return max(0.0, epsilon + 2 * float(np.log1p(-DELTA)))


def _response_epsilon(epsilon: float) -> float:
    """Return the epsilon at DELTA of randomised response of pure `epsilon`, from its delta(e) = p - e^e (1 - p), where
    p = 1/(1 + e^-epsilon) is the probability of the true answer."""
    right = float(special.expit(epsilon))
    return float(np.log((right - DELTA) / (1 - right)))


def _subsampled(signs: Array, rng: np.random.Generator, mu: float) -> Array:
    """Return the scores of the subsampled Gaussian mechanism. A score is Gaussian noise of standard deviation 1/mu,
    plus 1/2 if the sign is +1 and its record is drawn (with probability RATE), minus 1/2 otherwise."""
    drawn = (signs > 0) & (rng.random(signs.size) < RATE)
    return np.asarray(drawn - 0.5 + rng.normal(size=signs.size) / mu)


def _subsampled_epsilon(mu: float) -> float:
    """Return the epsilon at DELTA of the subsampled Gaussian mechanism: that at which the larger of delta(P, Q) and
    delta(Q, P) is DELTA.

    Its two laws are P = (1 - RATE) N(0, 1) + RATE N(mu, 1) and Q = N(0, 1). For each epsilon e, the sets {P > e^e Q}
    and {Q > e^e P} are half-lines that begin at the z where the density ratio 1 - RATE + RATE exp(mu z - mu^2/2) is
    e^e, or e^-e.
    """

    def excess(epsilon: float) -> float:
        found = 0.0
        for sign in (1.0, -1.0):
            weight = (np.exp(sign * epsilon) - 1 + RATE) / RATE
            z = (np.log(weight) / mu + mu / 2) if weight > 0 else -np.inf
            q, p = stats.norm.sf(z), (1 - RATE) * stats.norm.sf(z) + RATE * stats.norm.sf(z - mu)
            found = max(found, p - np.exp(epsilon) * q if sign > 0 else (1 - q) - np.exp(epsilon) * (1 - p))
        return float(found - DELTA)

    return float(optimize.brentq(excess, 0, 50))


def _balanced_gdp(wrong: float) -> float:
    """Return the mu for which the best test of mu-GDP has both errors equal to `wrong`. If the best test of a mechanism
    with equal errors has these, and no other test of it needs a larger mu, it is the smallest for which the mechanism
    is mu-GDP."""
    return -2 * float(special.ndtri(wrong))


MECHANISMS = (
    *(
        Mechanism("gaussian", mu, _gaussian, lambda mu: float(epsilon_from_gdp(mu, DELTA)), lambda mu: mu)
        for mu in (0.5, 1.0, 2.0)
    ),
    *(
        Mechanism("laplace", epsilon, _laplace, _laplace_epsilon, lambda e: _balanced_gdp(np.exp(-e / 2) / 2))
        for epsilon in (1.0, 3.0)
    ),
    *(
        Mechanism("randomised response", e, _response, _response_epsilon, lambda e: _balanced_gdp(special.expit(-e)))
        for e in (1.0, 3.0)
    ),
    *(Mechanism("subsampled gaussian", mu, _subsampled, _subsampled_epsilon, lambda mu: mu) for mu in (1.0, 2.0)),
)


def _from_gdp(mu: float) -> float:
    return float(epsilon_from_gdp(mu, DELTA)) if mu > 0 else 0.0


def _balanced(runs: int) -> Array:
    """Return `runs` signs +1, -1, +1, ..., half of each kind."""
    return np.where(np.arange(runs) % 2 == 0, 1.0, -1.0)


def _fair(canaries: int, rng: np.random.Generator) -> Array:
    return np.asarray(2.0 * rng.integers(0, 2, canaries) - 1)


def _attack(scores: Array, signs: Array) -> bounds.Attack:
    return bounds.attack_of(scores[signs > 0], scores[signs < 0], delta=DELTA, confidence=CONFIDENCE)


def _sequential(scores: Array, signs: Array) -> float:
    return _from_gdp(sequential.lower_bound(np.stack([scores[signs > 0], scores[signs < 0]], axis=1), 1 - CONFIDENCE))


def _guessed(scores: Array, signs: Array, share: float) -> tuple[int, int, int]:
    """Guess the signs of the `share` of canaries with the most extreme scores: +1 for the highest, -1 for as many of
    the lowest. Returns the number of right guesses, of guesses, and of canaries."""
    half = max(1, int(share * signs.size / 2))
    order = np.argsort(scores, kind="stable")
    return int((signs[order[-half:]] > 0).sum() + (signs[order[:half]] < 0).sum()), 2 * half, signs.size


def _one_run(scores: Array, signs: Array) -> float:
    return bounds.one_run_epsilon(*_guessed(scores, signs, 0.1), DELTA, CONFIDENCE)


def _one_run_gdp(scores: Array, signs: Array) -> float:
    return _from_gdp(bounds.one_run_gdp(*_guessed(scores, signs, 0.5), CONFIDENCE))


@cache
def _most_right(canaries: int, guesses: int) -> tuple[Array, Array]:
    """Return values of mu, and for each how many right guesses `canaries` independent signs allow with 95%.

    Each sign b = +1 or -1 is seen in one number of its own, b mu/2 plus standard Gaussian noise. Those `guesses` signs
    are guessed whose numbers are farthest from 0. They are simulated.
    """
    grid, draw = np.linspace(0, _LARGEST_GDP, _GRID), np.random.default_rng(0)
    most = []
    for mu in grid:
        counts = []
        for _ in range(_SIMULATED):
            seen = mu / 2 + draw.normal(size=canaries)
            farthest = np.argpartition(np.abs(seen), -guesses)[-guesses:]
            counts.append(float((seen[farthest] > 0).sum()))
        most.append(float(np.quantile(counts, CONFIDENCE, method="higher")))
    return grid, np.maximum.accumulate(np.array(most))


def _one_run_independent(scores: Array, signs: Array) -> float:
    """Return the bound on mu by the most right guesses that independent signs allow, as an epsilon.

    An experiment on one sign that is mu-GDP is a function of that number with more noise (Blackwell), and given these
    numbers the guesses are right independently, most often where they are farthest from 0. So this many right guesses
    refute mu where no canary's score depends on another's sign. That is so for the mechanisms here, and for a white-box
    attack with orthogonal canaries and Gaussian noise. For other mechanisms there is no proof here, and the audit does
    not use this bound.
    """
    correct, guesses, canaries = _guessed(scores, signs, 0.5)
    grid, most = _most_right(canaries, guesses)
    rising = most + 1e-9 * np.arange(most.size)
    return _from_gdp(float(np.interp(correct - 1, rising, grid)) if correct > most[0] else 0.0)


def _jax(method: str) -> Callable[[Array, Array], float]:
    def bound(scores: Array, signs: Array) -> float:
        from jax_privacy.auditing import CanaryScoreAuditor

        auditor = CanaryScoreAuditor(scores[signs > 0], scores[signs < 0])
        return float(getattr(auditor, method)(1 - CONFIDENCE, DELTA))

    return bound


@dataclass(frozen=True)
class Method:
    """A method of audit.

    bound(scores, signs) returns a lower bound on epsilon. sizes are the numbers of runs, or of canaries, to try. kind
    is "runs" (one score a run, with as many signs +1 as -1) or "one run" (one score a canary, with fair random signs).
    gdp says that the method bounds the mu of Gaussian DP, from which bound then computes epsilon. package is what must
    be installed for the method, and `on` are the names of the mechanisms to audit.
    """

    name: str
    bound: Callable[[Array, Array], float]
    sizes: tuple[int, ...]
    kind: str = "runs"
    gdp: bool = False
    package: str = ""
    on: tuple[str, ...] = ("gaussian", "laplace", "randomised response", "subsampled gaussian")


METHODS = (
    Method("attack", lambda scores, signs: _attack(scores, signs).epsilon, RUNS),
    Method("attack, gdp", lambda scores, signs: _from_gdp(_attack(scores, signs).gdp), RUNS, gdp=True),
    Method("sequential, gdp", _sequential, FEWER, gdp=True),
    Method("one run", _one_run, FEWER, "one run"),
    Method("one run, gdp", _one_run_gdp, FEWER, "one run", gdp=True),
    Method("one run, independent, gdp", _one_run_independent, FEWER, "one run", gdp=True),
    Method("jax_privacy clopper-pearson", _jax("epsilon_clopper_pearson"), RUNS, package=_JAX),
    Method("jax_privacy gdp", _jax("epsilon_from_gdp"), RUNS, gdp=True, package=_JAX),
    Method("jax_privacy one run", _jax("epsilon_one_run"), FEWER, "one run", package=_JAX),
    Method("jax_privacy one run, f-dp", _jax("epsilon_one_run_fdp"), FEWER, "one run", True, _JAX, ("gaussian",)),
)


def row(mechanism: Mechanism, method: Method, size: int, repeats: int) -> dict[str, str | int | float]:
    """Audit a mechanism `repeats` times by a method, with `size` runs or canaries, and return the columns of the row.
    All methods of one kind are given the same scores."""
    if method.package and importlib.util.find_spec(method.package) is None:
        return {"status": f"{method.package} is not installed"}
    found, seconds = [], 0.0
    for repeat in range(repeats):
        rng = np.random.default_rng([repeat, size, int(10 * mechanism.strength)])
        signs = _balanced(size) if method.kind == "runs" else _fair(size, rng)
        scores = mechanism.scores(signs, rng)
        started = time.perf_counter()
        found.append(method.bound(scores, signs))
        seconds += time.perf_counter() - started
    exact = mechanism.truth(method.gdp)
    low, first, middle, third, high = (float(q) for q in np.quantile(found, (0.05, 0.25, 0.5, 0.75, 0.95)))
    return {
        "repeats": repeats,
        "exact": exact,
        "above": int(np.sum(np.array(found) > exact)),
        "q05": low,
        "q25": first,
        "median": middle,
        "q75": third,
        "q95": high,
        "seconds": seconds / repeats,
    }


def _repeats(options: Namespace) -> int:
    return 20 if options.quick else REPEATS


def _cells(options: Namespace) -> Iterator[Cell]:
    for mechanism in MECHANISMS:
        for method in (method for method in METHODS if mechanism.name in method.on):
            for size in method.sizes[:1] if options.quick else method.sizes:
                yield dict(zip(KEY, (mechanism.name, mechanism.strength, method.name, size), strict=True))


def _measure(options: Namespace, at: Cell) -> dict[str, str | int | float]:
    mechanism = next(one for one in MECHANISMS if (one.name, one.strength) == (at["mechanism"], at["strength"]))
    method = next(one for one in METHODS if one.name == at["method"])
    return row(mechanism, method, at["size"], _repeats(options))


def _report(options: Namespace) -> int:
    """Print the rows. Returns 1 if bounds of this project's methods are above the truth more often than their error of
    5% explains, else 0."""
    table = read_rows(options.out)
    print(table[["mechanism", "strength", "method", "size", "exact", "above", "median", "seconds"]].to_string())
    ours = table[~table["method"].str.startswith(_JAX) & (table["status"] == OK)]
    return int(np.any(stats.binom.sf(ours["above"] - 1, ours["repeats"], 1 - CONFIDENCE) < _UNLIKELY))


EXPERIMENT = Experiment(
    name="lower_bounds",
    about=__doc__,
    flags=[flag("--quick", action="store_true", help="20 audits a row, 1000 runs")],
    key=KEY,
    fields=("repeats", "exact", "above", "q05", "q25", "median", "q75", "q95", "seconds"),
    seeds=lambda options: range(_repeats(options)),
    settings={"delta": DELTA, "confidence": CONFIDENCE},
    figure="figures.audit",
    cells=_cells,
    begun=lambda at: " ".join(map(str, at.values())),
    measure=_measure,
    report=_report,
)
