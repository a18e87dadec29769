"""delta and epsilon of histories, against exact laws of everything released, and of bad input."""

import math
import time
from dataclasses import replace

import mpmath
import numpy as np
import pytest

from dpzero_theory.privacy.accountant import delta_of_history, epsilon_of_history
from dpzero_theory.privacy.conversions import rdp_of_history, trade_off
from dpzero_theory.privacy.gaussian import gdp_from_epsilon
from dpzero_theory.privacy.laws.law import Cost
from dpzero_theory.privacy.mechanism import MECHANISMS, Mechanism
from dpzero_theory.privacy.relation import Relation
from tests.privacy import oracle
from tests.privacy.oracle import around, made


def test_heterogeneous_history_lies_between_homogeneous_ones():
    """Twenty levels of noise, four thousand steps."""
    history = [made(2.0 + 0.1 * k, 200, 0.01) for k in range(20)]
    started = time.process_time()
    found = epsilon_of_history(history, 1e-5)
    assert time.process_time() - started < 2
    weakest, strongest = (epsilon_of_history(made(noise, 4000, 0.01), 1e-5) for noise in (3.9, 2.0))
    assert weakest.upper < found.lower < found.upper < strongest.lower
    assert epsilon_of_history([*history, made(5.0)], 1e-5).lower > found.upper
    # The grid is refined to a relative width of 1e-4 in epsilon.
    assert found.upper < (1 + 1.1e-4) * found.lower


def test_zero_epsilon_where_delta_is_generous_and_the_papers_lemma_really_gives_less():
    assert epsilon_of_history(made(500.0, 10, 1e-3), 0.1).upper == 0.0
    gdp = 2 / math.sqrt(8 * math.log(math.e + 2 / 1e-6))
    assert epsilon_of_history(made(math.sqrt(5120) / gdp, 5120), 1e-6).value == pytest.approx(0.7699, abs=5e-5)
    assert gdp < float(gdp_from_epsilon(2.0, 1e-6))


@pytest.mark.parametrize("value", [math.nan, math.inf, 0.0, -1.0, "1", None, 10**400])
def test_bad_history_is_named_at_once(value):
    with pytest.raises(ValueError, match="noise_multiplier"):
        made(value, 10, 0.1)
    with pytest.raises(ValueError, match="delta"):
        epsilon_of_history(made(1.0, 10, 0.1), value)
    if value != 0.0:
        with pytest.raises(ValueError, match="epsilon"):
            delta_of_history(made(1.0, 10, 0.1), value)
    with pytest.raises(ValueError, match="history must be steps, such as"):
        epsilon_of_history([value], 1e-5)


def on_both_sides(found, delta, runs, room=1e-12):
    """Whether the exact epsilon at this delta, of runs with these laws, is in the bracket, up to `room` in delta."""
    enough = oracle.exact_delta(found.upper, runs) <= delta * (1 + room)
    return enough and (found.lower == 0 or oracle.exact_delta(found.lower, runs) >= delta * (1 - room))


@pytest.mark.parametrize("relation", Relation)
@pytest.mark.parametrize(
    ("levels", "noise", "steps", "q"),
    [(1, 2.0, 1, 1.0), (4, 1.0, 2, 1.0), (3, 0.25, 3, 0.3), (4, 1.0, 3, 0.02), (1, 2.0, 3, 0.3)],
)
def test_laplace_releases_against_all_outputs(levels, noise, steps, q, relation):
    """At delta = 0 both ends are the exact number."""
    history = made(noise, steps, q, relation, mechanism=f"discrete-laplace:{levels}")
    run = [oracle.power(couple, steps) for couple in oracle.laplace(levels, noise, q, relation)]
    for delta in (1e-7, 0.02):
        found = epsilon_of_history(history, delta)
        assert found.value == found.upper <= found.lower + 1e-4
        assert on_both_sides(found, delta, [run])
    found, largest = epsilon_of_history(history, 0.0), max(float(np.max(np.log(p / r))) for p, r in run)
    assert found.lower <= largest <= found.upper
    assert (found.lower, found.upper) == pytest.approx((largest, largest), rel=1e-10)
    for share in (0.0, 0.3, 0.9, 1.0, 1.1):
        spent, exact = delta_of_history(history, share * largest), oracle.exact_delta(share * largest, [run])
        assert spent.lower * (1 - 1e-12) <= exact <= spent.upper * (1 + 1e-12) + 1e-15
        assert spent.upper <= 1.0001 * spent.lower + 1e-10
    assert delta_of_history(history, found.upper).upper == 0


@pytest.mark.parametrize("relation", Relation)
@pytest.mark.parametrize("q", [1.0, 0.3])
@pytest.mark.parametrize("steps", [1, 2])
def test_gaussian_and_laplace_releases_together_against_their_losses(steps, q, relation):
    """Laplace outputs are enumerated, and the Gaussian release is on a grid of its outputs."""
    laplace = [oracle.power(couple, steps) for couple in oracle.laplace(2, 3.0, q, relation)]
    runs = [laplace, oracle.gaussian(1.7, q, relation)]
    history = [made(3.0, steps, q, relation, mechanism="discrete-laplace:2"), made(1.7, 1, q, relation)]
    assert on_both_sides(epsilon_of_history(history, 1e-3), 1e-3, runs, 1e-6)
    for epsilon in (0.0, 0.1, 1.0):
        found, exact = delta_of_history(history, epsilon), oracle.exact_delta(epsilon, runs)
        assert around(found, exact, 1e-6, width=1.1e-3)
        # The order of the laws in the sums changes the last bits alone.
        turned = delta_of_history(history[::-1], epsilon)
        assert (turned.lower, turned.upper) == pytest.approx((found.lower, found.upper), rel=1e-13)
        # The Gaussian release alone, which a dropped mechanism would leave, costs less.
        assert delta_of_history(history[1:], epsilon).upper < exact


@pytest.mark.parametrize("relation", Relation)
@pytest.mark.parametrize("q", [1.0, 0.3])
@pytest.mark.parametrize(
    ("levels", "noise", "steps"), [(1, 0.7, 1), (1, 0.7, 2), (3, 1.5, 1), (3, 1.5, 2), (20_000, 1.5, 1)]
)
def test_discrete_gaussian_releases_against_all_outputs(levels, noise, steps, q, relation):
    """The bound for discrete Gaussian noise on a fine lattice, against sums over all outputs on lattices of 1, 3 and
    20,000 points to the clip. On the coarse ones only the upper end has to hold; on 20,000 both ends do, to
    1e-6: the 4 that a run adds to the variance of its integers changes delta by 1e-8 there."""
    sigma = math.sqrt((noise * levels) ** 2 + 4) if levels > 3 else MECHANISMS["discrete-gaussian"].scale(noise, levels)
    run = [oracle.power(couple, steps) for couple in oracle.discrete_gaussian(levels, sigma, q, relation)]
    history = made(noise, steps, q, relation, mechanism="discrete-gaussian")
    for epsilon in (0.0, 0.2, 1.0):
        found, exact = delta_of_history(history, epsilon), oracle.exact_delta(epsilon, [run])
        assert around(found, exact, 1e-6, width=1.1e-3) if levels > 3 else exact <= found.upper * (1 + 1e-9)
    if levels <= 3:
        assert oracle.exact_delta(epsilon_of_history(history, 1e-4).upper, [run]) <= 1e-4 * (1 + 1e-9)


@pytest.mark.parametrize("beyond", [1e-3, 1.0, 5.0, 800.0])
def test_pure_epsilon_at_a_smaller_epsilon_is_randomised_response(beyond):
    """That is (e^e - e^epsilon)/(1 + e^e), for answering a bit truthfully with probability e^e/(1 + e^e)."""
    history = made(1 / beyond, mechanism="discrete-laplace:1")
    for share in (0.0, 0.5, 0.999, 1.0, 2.0):
        epsilon = share * beyond
        with mpmath.workdps(400):
            truth = mpmath.exp(beyond) / (1 + mpmath.exp(beyond))
            exact = float(max(truth - mpmath.exp(epsilon) * (1 - truth), 0))
        found = delta_of_history(history, epsilon)
        assert exact * (1 - 1e-9) <= found.upper <= 1
        # Close to its one largest loss the law of a step is bounded by its moments.
        close = share == 0.999
        assert found.upper <= exact * (1.01 if close else 1.0011) + 2e-12 * beyond
        assert found.lower <= found.value <= found.upper
        assert found.lower <= exact * (1 + 1e-9)
        assert beyond > 300 or close or found.lower >= exact * (1 - 1.1e-3) - 2e-12 * beyond


class Loose(Mechanism):
    """A noise law for tests within a factor e^0.1 of a Gaussian law. The worst such law, where a Gaussian costs almost
    nothing, releases a bit."""

    name = noise = "loose"
    lattice = False
    exactness = "for tests"

    def cost(self, *_):
        return replace(Cost.plain(1e-9), ratio=0.1)

    def scale(self, noise_multiplier, levels):
        return noise_multiplier * levels

    def draw(self, source, scale, shape):
        raise NotImplementedError


@pytest.fixture
def loose():
    MECHANISMS.register(Loose())
    yield "loose"
    MECHANISMS.pop("loose", None)


def test_a_law_near_a_gaussian_one_costs_its_ratio_also_at_small_epsilon(loose):
    """The worst law is a bit that is 1 with probability 1 - e^-G/2, or e^-G/2: within e^G of a fair coin."""
    history, unlikely = made(1e9, mechanism=loose), math.exp(-0.1) / 2
    for epsilon in (0.0, 0.05, 0.1, 0.15, 0.19):
        exact = (1 - unlikely) - math.exp(epsilon) * unlikely
        found = delta_of_history(history, epsilon)
        assert found.lower <= max(exact, 0.0) <= found.upper
    for epsilon in (0.2, 0.3):
        assert delta_of_history(history, epsilon).upper < 1e-8
    assert 0.19 < epsilon_of_history(history, 1e-6).upper < 0.21


def test_a_mechanism_that_is_not_registered_is_refused(loose):
    """Also where the release was made while it was registered: nothing counts it as another mechanism."""
    known = made(2.0, 3, mechanism=loose)
    del MECHANISMS[loose]
    for ask in (
        lambda history: epsilon_of_history(history, 1e-5),
        lambda history: delta_of_history(history, 1.0),
        lambda history: rdp_of_history(history, 2.0),
        lambda history: trade_off(history, 0.1),
        lambda _: made(2.0, 3, mechanism=loose),
    ):
        for history in ([known], [made(2.0, 3), known]):
            with pytest.raises(ValueError, match=r"^mechanism must be one of gaussian.*; got 'loose'$"):
                ask(history)


def test_one_relation_and_a_delta_where_there_is_gaussian_noise():
    pure = made(9.0, 3, mechanism="laplace")
    with pytest.raises(ValueError, match="history must have one relation"):
        epsilon_of_history([made(2.0, 3), made(2.0, 3, 1.0, "replace-one", mechanism="laplace")], 1e-5)
    with pytest.raises(ValueError, match="0 < delta"):
        epsilon_of_history([pure, made(2.0, 3)], 0.0)
    assert epsilon_of_history(pure, 0.0).upper == pytest.approx(1 / 3)
    assert epsilon_of_history([], 0.0).upper == delta_of_history([], 0.0).upper == 0


@pytest.mark.parametrize("relation", Relation)
@pytest.mark.parametrize("steps", [1, 2, 1000])
def test_an_upper_end_is_zero_only_where_the_truth_is(steps, relation):
    """The deltas here, from e^-300 to e^-10^9, go far below every float, and are not 0."""
    for epsilon in (30.0, 200.0, 1e4, 1e6):
        found = delta_of_history(made(1.0, steps, 0.3, relation), epsilon)
        assert found.upper > 0
        assert found.lower <= found.value <= found.upper


@pytest.mark.parametrize(
    ("noise", "steps", "q", "epsilon", "relation"),
    [
        (0.5, 10**6, 1e-6, 1.0, "add-remove"),
        (1.2, 3, 1e-5, 0.1, "add-remove"),
        (0.72, 44_751, 1.33e-6, 0.22, "add-remove"),
        (0.79, 3_928, 6.68e-6, 0.1188, "replace-one"),
        (0.92, 374, 5.9e-7, 0.012, "add-remove"),
    ],
)
def test_rare_events_are_between_the_ends(noise, steps, q, epsilon, relation):
    """Deltas from 1e-10 to 1e-24 that are, to first order, the number of steps times the delta of one. Only the first
    bracket is narrow: one tilt does not serve both one large loss and many small ones."""
    found = delta_of_history(made(noise, steps, q, relation), epsilon)
    kind = "replace" if relation == "replace-one" else "remove"
    first = steps * oracle.closed_form(kind, q, noise, epsilon)
    assert 0 <= found.lower <= first * 1.05
    assert first * 0.95 <= found.upper <= max(1.05 * found.lower, 1e-14)


@pytest.mark.parametrize("delta", [1e-29, 1e-30])
@pytest.mark.parametrize("history", [made(1.0, 1, 0.01), made(1.0, 2, 0.01, "replace-one")], ids=str)
def test_deltas_far_below_the_unit_of_rounding(delta, history):
    found = epsilon_of_history(history, delta)
    assert 0 < found.lower <= found.upper < 1.001 * found.lower
    # Each end of delta is on its side of the target; near the least delta that is resolved it is 1% wide.
    above, below = (delta_of_history(history, end) for end in (found.upper, found.lower))
    assert above.lower <= delta < below.upper
    assert above.upper <= 1.01 * delta <= 1.02 * below.lower


EXTREME = [
    # The privacy losses of one step are nearly all one value, the largest, which is epsilon, or -log(1 - q)
    (made(0.1, 1, 0.75), -math.log(0.25)),
    (made(0.1, 1, 0.5, sampling="fixed-size"), math.log(2)),
    (made(0.1, 1, 0.5, "zero-out"), math.log(2)),
    # So far beyond what two steps can lose that what is below the laws has no mass under the tilt
    (made(1.19, 207, 0.00634, "zero-out", sampling="truncated-poisson:8/404"), 17.0),
    # Noise that hides nothing
    (made(0.01, 1, 0.7, "zero-out", sampling="random-allocation:3"), 50.0),
    (made(0.001, 10, 0.1, sampling="random-allocation:2"), 500.0),
    (made(0.03, 10_000, 0.1), 0.01),
    (made(0.03, 10_000, 0.125, "replace-one", sampling="fixed-size"), 3e6),
    (made(0.01, 10_000, 0.5, "replace-one"), 1e6),
    # A batch that is almost full, at the epsilon of a whole run
    (made(2.0, 10**9, math.nextafter(1, 0), "zero-out"), 1e6),
    # Deltas below the smallest floating-point number
    (made(100.0), 50.0),
    (made(1e4, 10_000, 1e-12, "zero-out", sampling="fixed-order"), 10.0),
    (made(100.0, 1, 0.9, sampling="random-allocation:3"), 2.3),
    (made(0.7, 207, 0.1, sampling="cyclic-poisson:10"), 1000.0),
]


@pytest.mark.parametrize(("history", "epsilon"), EXTREME)
def test_extreme_questions_have_a_bracket_without_a_warning(history, epsilon):
    found = delta_of_history(history, epsilon)
    assert 0 <= found.lower <= found.value <= found.upper <= 1
    assert found.upper > 0


@pytest.mark.parametrize("epsilon", [1000.0, 1e300])
@pytest.mark.parametrize("q", [1.0, 0.001])
def test_beyond_pure_epsilon_delta_is_zero_however_far(epsilon, q):
    assert delta_of_history(made(0.3, 3, q, "zero-out", mechanism="discrete-laplace:1"), epsilon).upper == 0


@pytest.mark.parametrize("noise", [1e-3, 1e-2])
@pytest.mark.parametrize("steps", [3, 1000])
def test_next_to_no_noise_says_whether_the_record_was_used(noise, steps):
    """No grid resolves much there, and none is wrong."""
    found = delta_of_history(made(noise, steps, 1e-3), 1.0)
    assert found.lower <= -math.expm1(steps * math.log1p(-1e-3)) <= found.upper
