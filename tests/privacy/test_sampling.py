"""Samplings: exact laws of the batches drawn, what they add to a composition, and which of them can run."""

import itertools
import math
import random
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from scipy import stats

from dpzero_theory.privacy.accountant import delta_of_history, epsilon_of_history
from dpzero_theory.privacy.relation import Relation
from dpzero_theory.privacy.sampling import (
    SAMPLINGS,
    FixedOrder,
    FixedSize,
    FullBatch,
    Poisson,
    RandomAllocation,
    Sampling,
    sampling_of,
    sampling_of_run,
)
from tests.privacy import oracle
from tests.privacy.oracle import around, made

SETS = ("truncated-poisson:3/8", "cyclic-poisson:4")
NAMES = [name for name, kind in SAMPLINGS.items() if not kind.arguments.startswith(":")]
WORDS = (*NAMES, *SETS, "random-allocation:3")


@pytest.mark.parametrize(("n", "batch", "steps"), [(10, 4, 5), (12, 4, 7), (7, 7, 3), (9, 1, 20), (10, 3, 1)])
@pytest.mark.parametrize("keep_last", [False, True])
def test_passes_is_enough_for_any_shuffled_epochs(n, batch, steps, keep_last):
    rng, most = np.random.default_rng(5), 0
    for _ in range(300):
        batches = []
        while len(batches) < steps:
            order = rng.permutation(n)
            cuts = [order[i : i + batch] for i in range(0, n, batch)]
            batches += [c for c in cuts if keep_last or len(c) == batch]
        most = max(most, int(np.bincount(np.concatenate(batches[:steps]), minlength=n).max()))
    assert most <= FixedOrder(batch / n).uses(steps)
    assert keep_last or most == FixedOrder(batch / n).uses(steps)


def test_passes_by_hand():
    """In epochs of floor(1/q) steps that have each record once; an integer ratio is counted exactly."""
    assert [FixedOrder(0.25).uses(steps) for steps in (1, 4, 5, 8, 9)] == [1, 1, 2, 2, 3]
    assert [FixedOrder(0.3).uses(steps) for steps in (1, 3, 4, 6, 7)] == [1, 1, 2, 2, 3]
    assert FixedOrder(0.6).uses(10) == 10
    assert all(FixedOrder(1 / m).uses(3 * m + 1) == 4 for m in range(1, 2000))
    assert FixedOrder(0.25).chance(1) == 1
    assert RandomAllocation(0.25).chance(3) == 0.75


def gdp(release):
    return math.sqrt(release.cost().squares[0])


def test_fixed_order_and_whole_batches_are_closed_form():
    order = made(3.0, 100, 0.25, "replace-one", sampling="fixed-order")
    assert gdp(order) == pytest.approx(math.sqrt(25) * 2 / 3)
    for sampling in ("poisson", "fixed-size", "random-allocation", "fixed-order"):
        assert gdp(made(3.0, 100, sampling=sampling)) == pytest.approx(10 / 3)


def test_a_fixed_order_is_not_accounted_for_a_record_less():
    """Without the first record all later ones change batches, and every sum can change by two clips."""
    values = np.array([1.0, -1.0] * 50)
    # With one record in a batch, and one epoch, these are the sums with the first record minus those without it.
    assert np.sum((values[:-1] - values[1:]) ** 2) == 4 * 99 > FixedOrder(0.01).uses(100)
    with pytest.raises(ValueError, match=r"^relation must be replace-one or zero-out with sampling fixed-order "):
        made(3.0, 100, 0.01, sampling="fixed-order")
    assert gdp(made(3.0, 100, 0.01, "zero-out", sampling="fixed-order")) == pytest.approx(1 / 3)


class Source(random.Random):
    """A source of random numbers whose next 64-bit words are the given ones."""

    def __init__(self, *words):
        super().__init__(0)
        self.words = words

    def randbytes(self, n):
        found = np.array(self.words, np.uint64).tobytes()
        assert len(found) == n
        return found


def test_what_can_be_run_is_what_draws():
    """One that is only accounted for refuses to make a batch."""
    with pytest.raises(ValueError, match="one of full, poisson, fixed-size, random-allocation; got 'fixed-order'"):
        sampling_of_run("fixed-order", 0.25)
    for word in WORDS:
        sampling = sampling_of(word, 1.0 if word == "full" else 0.25)
        if sampling.runnable:
            whole = sampling if word in SETS else replace(sampling, sample_rate=1.0)
            batch = whole.drawer(random.Random(1), bytes(32), 8)(0)
            assert word in SETS or batch.tolist() == list(range(8))
        if not sampling.runnable or sampling.lasting:
            assert type(sampling).draw is Sampling.draw
            with pytest.raises(NotImplementedError, match=f"batches of sampling {word} cannot be drawn"):
                sampling.draw(random.Random(1), 8)


def test_a_poisson_batch_holds_a_record_below_the_rate_of_its_word_and_no_other():
    """For q = 3/4, q 2^64 = 3 * 2^62; tested are the last word that is used, and the first that is not."""
    words = (0, 3 * 2**62 - 1, 3 * 2**62, 2**64 - 1, 3 * 2**61)
    assert Poisson(0.75).draw(Source(*words), 5).tolist() == [0, 1, 4]
    almost = math.nextafter(1.0, 0.0)
    assert Poisson(almost).draw(Source(2**64 - 2**11 - 1, 2**64 - 2**11), 2).tolist() == [0]
    assert Poisson(2.0**-64).draw(Source(0, 1), 2).tolist() == [0]


def test_batches_have_their_law():
    """In 30,000 batches the sets of records pass a chi-squared test at 1e-6, and those of another rate do not; in 2,000
    runs of ten batches the number that have a record is binomial."""

    def sets(sampling, n, seed):
        source = random.Random(seed)
        return Counter(tuple(sampling.draw(source, n).tolist()) for _ in range(30_000))

    subsets = [chosen for size in range(5) for chosen in itertools.combinations(range(4), size)]
    found, seen = sets(Poisson(0.35), 4, 8), {}
    for rate in (0.35, 0.37):
        expected = [30_000 * rate ** len(c) * (1 - rate) ** (4 - len(c)) for c in subsets]
        seen[rate] = stats.chisquare([found[c] for c in subsets], expected).pvalue
    assert seen[0.35] > 1e-6 > seen[0.37]
    found = sets(FixedSize(0.5), 6, 9)
    assert set(found) == set(itertools.combinations(range(6), 3))
    assert stats.chisquare(list(found.values())).pvalue > 1e-6
    expected = 2_000 * stats.binom.pmf(np.arange(11), 10, 0.2)
    for sampling in (Poisson(0.2), FixedSize(0.2)):
        source, counts = random.Random(10), np.zeros(11)
        for _ in range(2_000):
            counts[sum(3 in sampling.draw(source, 10) for _ in range(10))] += 1
        assert stats.chisquare([*counts[:5], counts[5:].sum()], [*expected[:5], expected[5:].sum()]).pvalue > 1e-6
        assert sampling.chance(10) == pytest.approx(1 - expected[0] / 2_000, rel=1e-12)


@pytest.mark.parametrize(("n", "q", "size"), [(10, 0.3, 3), (7, 3 / 7, 3), (1000, 0.001, 1), (5, 1.0, 5)])
def test_fixed_size_batches_are_a_whole_number_of_records(n, q, size):
    assert FixedSize(q).batch_size(n) == size == len(FixedSize(q).draw(random.Random(0), n))
    for bad in (q / (2 * size), q - 0.4 / n):
        with pytest.raises(ValueError, match=r"sample_rate \* n must be an integer >= 1 with sampling fixed-size"):
            FixedSize(bad).batch_size(n)
    assert (FullBatch().batch_size(n), Poisson(q).batch_size(n)) == (n, None)


@pytest.mark.parametrize(("sampling", "rate"), [("full", 1.0), ("poisson", 0.1), ("random-allocation", 0.1)])
def test_a_record_that_counts_as_zero_costs_what_a_missing_one_costs(sampling, rate):
    """Where the others' batches do not depend on it."""
    missing, zero = (made(2.0, 30, rate, relation, sampling=sampling) for relation in ("add-remove", "zero-out"))
    assert epsilon_of_history(missing, 1e-5) == epsilon_of_history(zero, 1e-5)


@pytest.mark.parametrize("relation", Relation)
@pytest.mark.parametrize(("groups", "q", "steps"), [(3, 0.1, 2), (2, 0.5, 2), (5, 0.02, 5)])
def test_cyclic_batches_are_the_turns_of_one_group(groups, q, steps, relation):
    """The record's one turn is a Poisson batch at the number of groups times the rate, with all outputs summed; more
    turns are more such batches."""
    words = {"sampling": f"cyclic-poisson:{groups}"}
    release = made(1.5, steps, q, relation, **words)
    for epsilon in (0.1, 1.0):
        exact = oracle.exact_delta(epsilon, [oracle.gaussian(1.5, groups * q, relation)])
        assert around(delta_of_history(release, epsilon), exact, 1e-6, width=1.1e-3)
    assert release.sampling.chance(steps) == pytest.approx(groups * q)
    many = delta_of_history(made(1.5, 6 * groups + 1, q, relation, **words), 0.5)
    poisson = made(1.5, 7, groups * q, relation, sampling="poisson")
    assert many == replace(delta_of_history(poisson, 0.5), notes=(release.sampling.note(release.relation),))


@pytest.mark.parametrize("rate", [None, 0.0, -0.1, 1.1, math.nan, "1", True])
def test_a_rate_outside_its_range_is_named(rate):
    for word in WORDS:
        if word == "full" and rate is None:
            assert sampling_of(word, rate).sample_rate == 1
            continue
        with pytest.raises(ValueError, match=r"^sample_rate must be"):
            sampling_of(word, rate)


RUNNABLE = "^sampling must be one of full, poisson, fixed-size, random-allocation; got"


@pytest.mark.parametrize(
    ("ask", "named"),
    [
        (
            lambda: made(1.0, 5, 0.2, sampling="cyclic-poisson:10"),
            r"^sample_rate must be a finite number with 0 < sample_rate <= 0\.1; got 0\.2",
        ),
        *(
            (
                lambda name=name: made(1.0, 5, 0.05, sampling=name),
                r"^sampling must be (cyclic-poisson:B|random-allocation\[:K\]), ",
            )
            for name in (
                *("cyclic-poisson:0", "cyclic-poisson", "cyclic-poisson:2.5"),
                *("random-allocation:0", "random-allocation:x"),
            )
        ),
        *((lambda name=name: sampling_of_run(name, 0.05), RUNNABLE) for name in ("fixed-order", 3)),
        (
            lambda: sampling_of_run(Poisson(1 / 16), 0.125),
            r"^sampling must have the rate of expected_batch over n, 0\.125",
        ),
    ],
)
def test_what_is_none_is_refused(ask, named):
    with pytest.raises(ValueError, match=named):
        ask()


def test_a_value_is_drawn_as_its_word_is():
    assert sampling_of_run(Poisson(1 / 16), 1 / 16) == sampling_of_run("poisson", 1 / 16) == Poisson(1 / 16)
    for name in ("cyclic-poisson:10", "random-allocation:4"):
        assert sampling_of_run(name, 0.05).word == name
