"""Tests of delta and epsilon of histories, against exact laws of everything released, and of bad input."""

import math
import time
from dataclasses import replace

import mpmath
import numpy as np
import pytest

from dpzero_theory.privacy.accountant import delta_of_history, epsilon_of_history
from dpzero_theory.privacy.conversions import rdp_of_history, trade_off
from dpzero_theory.privacy.cost import Cost
from dpzero_theory.privacy.gaussian import gdp_from_epsilon
from dpzero_theory.privacy.mechanism import MECHANISMS, Mechanism
from dpzero_theory.privacy.relation import Relation
from dpzero_theory.privacy.step import Release
from tests.privacy import oracle


def test_heterogeneous_history_lies_between_homogeneous_ones():
    """The epsilon of a history with twenty levels of noise lies between those of the most and of the least noise.

    Each of the three histories has four thousand steps.
    """
    history = [
        Release(2.0 + 0.1 * k, 200, sampling="poisson", relation="add-remove", sample_rate=0.01) for k in range(20)
    ]
    started = time.process_time()
    found = epsilon_of_history(history, 1e-5)
    assert time.process_time() - started < 2
    weakest = [Release(3.9, 4000, sampling="poisson", relation="add-remove", sample_rate=0.01)]
    strongest = [Release(2.0, 4000, sampling="poisson", relation="add-remove", sample_rate=0.01)]
    assert epsilon_of_history(weakest, 1e-5).upper < found.lower
    assert found.upper < epsilon_of_history(strongest, 1e-5).lower
    with_full = [*history, Release(5.0, 1, sampling="full", relation="add-remove")]
    assert epsilon_of_history(with_full, 1e-5).lower > found.upper
    # The grid is refined to a relative width of 1e-4 in epsilon.
    assert found.upper < (1 + 1.1e-4) * found.lower


def test_zero_epsilon_where_delta_is_generous():
    unit = Release(500.0, 10, sampling="poisson", relation="add-remove", sample_rate=1e-3)
    assert epsilon_of_history([unit], 0.1).upper == 0.0


@pytest.mark.parametrize("value", [math.nan, math.inf, 0.0, -1.0, "1", None, 10**400])
def test_bad_history_is_named_at_once(value):
    with pytest.raises(ValueError, match="noise_multiplier"):
        Release(value, 10, sampling="poisson", relation="add-remove", sample_rate=0.1)
    unit = Release(1.0, 10, sampling="poisson", relation="add-remove", sample_rate=0.1)
    with pytest.raises(ValueError, match="delta"):
        epsilon_of_history([unit], value)
    if value != 0.0:
        with pytest.raises(ValueError, match="epsilon"):
            delta_of_history([unit], value)
    with pytest.raises(ValueError, match="history must be steps, such as"):
        epsilon_of_history([value], 1e-5)


def test_paper_lemma_really_gives_less_epsilon():
    gdp = 2 / math.sqrt(8 * math.log(math.e + 2 / 1e-6))
    unit = Release(math.sqrt(5120) / gdp, 5120, sampling="full", relation="add-remove")
    assert epsilon_of_history([unit], 1e-6).value == pytest.approx(0.7699, abs=5e-5)
    assert gdp < float(gdp_from_epsilon(2.0, 1e-6))


def release(mechanism, multiplier, steps, q, relation):
    sampling = "full" if q == 1 else "poisson"
    return Release(multiplier, steps, sampling=sampling, relation=relation, sample_rate=q, mechanism=mechanism)


def around(found, delta, runs, tolerance=1e-12):
    """Whether the exact epsilon at this delta lies in the bracket `found`, up to the relative `tolerance` in delta.

    `runs` are the exact laws of the releases, as `oracle.exact_delta` takes them.
    """
    enough = oracle.exact_delta(found.upper, runs) <= delta * (1 + tolerance)
    return enough and (found.lower == 0 or oracle.exact_delta(found.lower, runs) >= delta * (1 - tolerance))


@pytest.mark.parametrize("relation", Relation)
@pytest.mark.parametrize(
    ("levels", "multiplier", "steps", "q"),
    [(1, 2.0, 1, 1.0), (4, 1.0, 2, 1.0), (3, 0.25, 3, 0.3), (4, 1.0, 3, 0.02), (1, 2.0, 3, 0.3)],
)
def test_laplace_releases_against_all_outputs(levels, multiplier, steps, q, relation):
    """Brackets of Laplace releases hold against an enumeration of every output.

    Nothing exceeds the upper ends or undercuts the lower ones; at delta = 0 both are the exact number.
    """
    history = [release(f"discrete-laplace:{levels}", multiplier, steps, q, relation)]
    run = [oracle.power(couple, steps) for couple in oracle.laplace(levels, multiplier, q, relation)]
    for delta in (1e-7, 0.02):
        found = epsilon_of_history(history, delta)
        assert found.value == found.upper <= found.lower + 1e-4
        assert around(found, delta, [run])
    found = epsilon_of_history(history, 0.0)
    largest = max(float(np.max(np.log(p / r))) for p, r in run)
    assert found.lower <= largest <= found.upper
    assert found.upper == pytest.approx(largest, rel=1e-10)
    assert found.lower == pytest.approx(largest, rel=1e-10)
    for share in (0.0, 0.3, 0.9, 1.0, 1.1):
        spent, exact = delta_of_history(history, share * largest), oracle.exact_delta(share * largest, [run])
        assert spent.lower * (1 - 1e-12) <= exact <= spent.upper * (1 + 1e-12) + 1e-15
        assert spent.upper <= 1.0001 * spent.lower + 1e-10
    assert delta_of_history(history, found.upper).upper == 0


@pytest.mark.parametrize("relation", Relation)
@pytest.mark.parametrize("q", [1.0, 0.3])
@pytest.mark.parametrize("steps", [1, 2])
def test_gaussian_and_laplace_releases_together_against_their_losses(steps, q, relation):
    """The brackets of Gaussian and Laplace releases together hold against sums over their outputs.

    Laplace outputs are enumerated, and the Gaussian release is on a grid of its outputs.
    """
    laplace = [oracle.power(couple, steps) for couple in oracle.laplace(2, 3.0, q, relation)]
    runs = [laplace, oracle.gaussian(1.7, q, relation)]
    history = [release("discrete-laplace:2", 3.0, steps, q, relation), release("gaussian", 1.7, 1, q, relation)]
    assert around(epsilon_of_history(history, 1e-3), 1e-3, runs, 1e-6)
    for epsilon in (0.0, 0.1, 1.0):
        found, exact = delta_of_history(history, epsilon), oracle.exact_delta(epsilon, runs)
        assert found.lower * (1 - 1e-6) <= exact <= found.upper * (1 + 1e-6)
        assert found.upper <= 1.0011 * found.lower
        # The order of the laws in the sums changes the last bits alone.
        turned = delta_of_history(history[::-1], epsilon)
        assert (turned.lower, turned.upper) == pytest.approx((found.lower, found.upper), rel=1e-13)
        # The Gaussian release alone, which a dropped mechanism would leave, costs less, so the test can fail
        assert delta_of_history(history[1:], epsilon).upper < exact


@pytest.mark.parametrize("relation", Relation)
@pytest.mark.parametrize("q", [1.0, 0.3])
@pytest.mark.parametrize("steps", [1, 2])
@pytest.mark.parametrize(("levels", "multiplier"), [(1, 0.7), (3, 1.5)])
def test_discrete_gaussian_releases_against_all_outputs(levels, multiplier, steps, q, relation):
    """On a coarse lattice, with the noise that a run draws there, the bound for the fine lattice holds.

    All outputs of the discrete Gaussian releases are summed.
    """
    sigma = MECHANISMS["discrete-gaussian"].scale(multiplier, levels)
    run = [oracle.power(couple, steps) for couple in oracle.discrete_gaussian(levels, sigma, q, relation)]
    history = [release("discrete-gaussian", multiplier, steps, q, relation)]
    for epsilon in (0.0, 0.2, 1.0):
        assert oracle.exact_delta(epsilon, [run]) <= delta_of_history(history, epsilon).upper * (1 + 1e-9)
    assert oracle.exact_delta(epsilon_of_history(history, 1e-4).upper, [run]) <= 1e-4 * (1 + 1e-9)


@pytest.mark.parametrize("relation", Relation)
@pytest.mark.parametrize("q", [1.0, 0.3])
def test_a_discrete_gaussian_release_on_a_fine_lattice_is_in_the_bracket(q, relation):
    """A discrete Gaussian release on a lattice of 20,000 levels is in the bracket.

    The variance of 4 by which its noise is widened changes it by 1e-8 only.
    """
    levels, multiplier = 20_000, 1.5
    sigma = math.sqrt((multiplier * levels) ** 2 + 4)
    run = oracle.discrete_gaussian(levels, sigma, q, relation)
    history = [release("discrete-gaussian", multiplier, 1, q, relation)]
    for epsilon in (0.0, 0.5, 1.5):
        found, exact = delta_of_history(history, epsilon), oracle.exact_delta(epsilon, [run])
        assert found.lower * (1 - 1e-6) <= exact <= found.upper * (1 + 1e-6)
        assert found.upper <= found.lower * 1.0011


@pytest.mark.parametrize("beyond", [1e-3, 1.0, 5.0, 800.0])
def test_pure_epsilon_at_a_smaller_epsilon_is_randomised_response(beyond):
    """A pure mechanism of parameter e costs at a smaller epsilon what randomised response costs.

    That is (e^e - e^epsilon)/(1 + e^e), for answering a bit truthfully with probability e^e/(1 + e^e).
    """
    history = [release("discrete-laplace:1", 1 / beyond, 1, 1.0, "add-remove")]
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
    """A noise law for tests that is not Gaussian, but within a factor e^0.1 of a Gaussian law.

    The worst such law, where a Gaussian costs almost nothing, releases a bit.
    """

    name = "loose"
    noise = "loose"
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
    MECHANISMS._values.pop("loose", None)


def test_a_law_near_a_gaussian_one_costs_its_ratio_also_at_small_epsilon(loose):
    """A law near a Gaussian one costs the factor between them, e^G, also at a small epsilon.

    The worst one is a bit that is 1 with probability 1 - e^-G/2, or e^-G/2: within e^G of a fair coin, which costs
    nothing.
    """
    history = [release(loose, 1e9, 1, 1.0, "add-remove")]
    unlikely = math.exp(-0.1) / 2
    for epsilon in (0.0, 0.05, 0.1, 0.15, 0.19):
        exact = (1 - unlikely) - math.exp(epsilon) * unlikely
        found = delta_of_history(history, epsilon)
        assert found.lower <= max(exact, 0.0) <= found.upper
    for epsilon in (0.2, 0.3):
        assert delta_of_history(history, epsilon).upper < 1e-8
    assert 0.19 < epsilon_of_history(history, 1e-6).upper < 0.21


def test_a_mechanism_that_nobody_accounts_for_is_refused(loose):
    """A mechanism that is not registered is refused, also where the release was made while it was registered.

    Nothing counts it as another mechanism.
    """
    known = release(loose, 2.0, 3, 1.0, "add-remove")
    del MECHANISMS._values[loose]
    entries = (
        lambda history: epsilon_of_history(history, 1e-5),
        lambda history: delta_of_history(history, 1.0),
        lambda history: rdp_of_history(history, 2.0),
        lambda history: trade_off(history, 0.1),
    )
    plain = Release(2.0, 3, sampling="full", relation="add-remove")
    for entry in entries:
        for history in ([known], [plain, known]):
            with pytest.raises(ValueError, match=r"^mechanism must be one of gaussian.*; got 'loose'$"):
                entry(history)
    with pytest.raises(ValueError, match=r"^mechanism must be one of gaussian, .*; got 'loose'$"):
        release(loose, 2.0, 3, 1.0, "add-remove")


def test_one_relation_and_a_delta_where_there_is_gaussian_noise():
    gaussian = release("gaussian", 2.0, 3, 1.0, "add-remove")
    pure = release("laplace", 9.0, 3, 1.0, "add-remove")
    with pytest.raises(ValueError, match="history must have one relation"):
        epsilon_of_history([gaussian, release("laplace", 2.0, 3, 1.0, "replace-one")], 1e-5)
    with pytest.raises(ValueError, match="0 < delta"):
        epsilon_of_history([pure, gaussian], 0.0)
    assert epsilon_of_history([pure], 0.0).upper == pytest.approx(1 / 3)
    assert epsilon_of_history([], 0.0).upper == 0
    assert delta_of_history([], 0.0).upper == 0


def sampled(multiplier, steps, q, relation="add-remove", sampling="poisson"):
    return [Release(multiplier, steps, sampling=sampling, relation=relation, sample_rate=q)]


@pytest.mark.parametrize("epsilon", [30.0, 200.0, 1e4, 1e6])
@pytest.mark.parametrize("relation", Relation)
@pytest.mark.parametrize("steps", [1, 2, 1000])
def test_an_upper_end_is_zero_only_where_the_truth_is(steps, relation, epsilon):
    """An upper end is zero only where the true delta is.

    The deltas here, from e^-300 to e^-10^9, go far below every float, and are not 0.
    """
    found = delta_of_history(sampled(1.0, steps, 0.3, relation), epsilon)
    assert found.upper > 0
    assert found.lower <= found.value <= found.upper


@pytest.mark.parametrize(
    ("multiplier", "steps", "q", "epsilon", "relation"),
    [
        (0.5, 10**6, 1e-6, 1.0, "add-remove"),
        (1.2, 3, 1e-5, 0.1, "add-remove"),
        (0.72, 44_751, 1.33e-6, 0.22, "add-remove"),
        (0.79, 3_928, 6.68e-6, 0.1188, "replace-one"),
        (0.92, 374, 5.9e-7, 0.012, "add-remove"),
    ],
)
def test_rare_events_have_narrow_brackets(multiplier, steps, q, epsilon, relation):
    """Deltas from 1e-10 to 1e-24 that come from one unlikely output have narrow brackets.

    They are, to first order, the probability of one large loss.
    """
    found = delta_of_history(sampled(multiplier, steps, q, relation), epsilon)
    assert 0 < found.lower <= found.upper < 1.05 * found.lower
    more = delta_of_history(sampled(multiplier, 2 * steps, q, relation), epsilon)
    assert more.lower > 1.9 * found.upper


@pytest.mark.parametrize("delta", [1e-29, 1e-30])
def test_deltas_far_below_the_unit_of_rounding(delta):
    for history in (sampled(1.0, 1, 0.01), sampled(1.0, 2, 0.01, "replace-one")):
        found = epsilon_of_history(history, delta)
        assert 0 < found.lower <= found.upper < 1.001 * found.lower
        # Each end of delta is on its side of the target; near the least delta that is resolved it is 1% wide.
        above, below = (delta_of_history(history, end) for end in (found.upper, found.lower))
        assert above.lower <= delta < below.upper
        assert above.upper <= 1.01 * delta
        assert delta <= 1.01 * below.lower


@pytest.mark.parametrize(
    ("release", "epsilon"),
    [
        # In these releases the privacy losses of one step are nearly all one value, the largest; epsilon is at that
        # value, and at -log(1 - q) of full records
        (Release(0.1, 1, sampling="poisson", relation="add-remove", sample_rate=0.75), -math.log(0.25)),
        (Release(0.1, 1, sampling="fixed-size", relation="add-remove", sample_rate=0.5), math.log(2)),
        (Release(0.1, 1, sampling="poisson", relation="zero-out", sample_rate=0.5), math.log(2)),
        # This epsilon is so far beyond what two steps can lose that what is below the pairs of laws has no mass under
        # the tilt
        (Release(1.19, 207, sampling="truncated-poisson:8/404", relation="zero-out", sample_rate=0.00634), 17.0),
        # In these releases the noise is so small that it hides nothing
        (Release(0.01, 1, sampling="random-allocation:3", relation="zero-out", sample_rate=0.7), 50.0),
        (Release(0.001, 10, sampling="random-allocation:2", relation="add-remove", sample_rate=0.1), 500.0),
        (Release(0.03, 10_000, sampling="poisson", relation="add-remove", sample_rate=0.1), 0.01),
        (Release(0.03, 10_000, sampling="fixed-size", relation="replace-one", sample_rate=0.125), 3e6),
        (Release(0.01, 10_000, sampling="poisson", relation="replace-one", sample_rate=0.5), 1e6),
        # In this release the batch is almost full, and epsilon is that of a whole run
        (Release(2.0, 10**9, sampling="poisson", relation="zero-out", sample_rate=math.nextafter(1, 0)), 1e6),
        # The deltas of these releases are below the smallest floating-point number
        (Release(100.0, 1, sampling="full", relation="add-remove"), 50.0),
        (Release(1e4, 10_000, sampling="fixed-order", relation="zero-out", sample_rate=1e-12), 10.0),
        (Release(100.0, 1, sampling="random-allocation:3", relation="add-remove", sample_rate=0.9), 2.3),
        (Release(0.7, 207, sampling="cyclic-poisson:10", relation="add-remove", sample_rate=0.1), 1000.0),
    ],
)
def test_extreme_questions_have_a_bracket_without_a_warning(release, epsilon):
    found = delta_of_history([release], epsilon)
    assert 0 <= found.lower <= found.value <= found.upper <= 1
    assert found.upper > 0


@pytest.mark.parametrize("epsilon", [1000.0, 1e300])
def test_beyond_pure_epsilon_delta_is_zero_however_far(epsilon):
    for sampling, rate in (("full", 1.0), ("poisson", 0.001)):
        coarse = Release(
            0.3, 3, sampling=sampling, relation="zero-out", sample_rate=rate, mechanism="discrete-laplace:1"
        )
        assert delta_of_history([coarse], epsilon).upper == 0
