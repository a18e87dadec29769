"""Tests of samplings: exact laws of the batches drawn, what they add to a composition, and which of them can run."""

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
    drawn,
    passes,
    runnable,
    sampling_of,
)
from dpzero_theory.privacy.step import Release
from tests.privacy import oracle


@pytest.mark.parametrize(("n", "batch", "steps"), [(10, 4, 5), (12, 4, 7), (7, 7, 3), (9, 1, 20), (10, 3, 1)])
@pytest.mark.parametrize("keep_last", [False, True])
def test_passes_is_enough_for_any_shuffled_epochs(n, batch, steps, keep_last):
    rng = np.random.default_rng(5)
    most = 0
    for _ in range(300):
        batches = []
        while len(batches) < steps:
            order = rng.permutation(n)
            cuts = [order[i : i + batch] for i in range(0, n, batch)]
            batches += [c for c in cuts if keep_last or len(c) == batch]
        counts = np.bincount(np.concatenate(batches[:steps]), minlength=n)
        most = max(most, int(counts.max()))
    assert most <= passes(steps, batch / n)
    if not keep_last:
        assert most == passes(steps, batch / n)


def test_passes_counts_an_integer_ratio_exactly():
    for m in range(1, 2000):
        assert passes(3 * m + 1, 1 / m) == 4


def test_fixed_order_and_whole_batches_are_closed_form():
    unit = Release(3.0, 100, sampling="fixed-order", relation="replace-one", sample_rate=0.25)
    assert math.sqrt(unit.cost.squares[0]) == pytest.approx(math.sqrt(25) * 2 / 3)
    for sampling in ("poisson", "fixed-size", "random-allocation", "fixed-order"):
        whole = Release(3.0, 100, sampling=sampling, relation="add-remove", sample_rate=1.0)
        assert math.sqrt(whole.cost.squares[0]) == pytest.approx(10 / 3)


NAMES = tuple(name for name, kind in SAMPLINGS.items() if not kind.arguments.startswith(":"))
SETS = ("truncated-poisson:3/8", "cyclic-poisson:4")
WORDS = (*NAMES, *SETS, "random-allocation:3")


class Words(random.Random):
    """A source of random numbers whose next 64-bit words are the given ones."""

    def __init__(self, *words):
        super().__init__(0)
        self.words = words

    def randbytes(self, n):
        found = np.array(self.words, np.uint64).tobytes()
        assert len(found) == n
        return found


def sets(sampling, n, draws, seed):
    """Returns how often each set of records is a batch in `draws` draws from this seed, with n records."""
    source = random.Random(seed)
    return Counter(tuple(sampling.draw(source, n).tolist()) for _ in range(draws))


def test_what_can_be_run_is_what_draws():
    """Only the samplings listed as runnable draw batches; one that is only accounted for refuses to make a batch."""
    assert set(runnable()) == {"full", "poisson", "fixed-size", "random-allocation"}
    for word in WORDS:
        sampling = sampling_of(word, 1.0 if word == "full" else 0.25)
        if sampling.runnable:
            whole = sampling if word in SETS else sampling.at(1.0)
            batch = whole.drawer(random.Random(1), bytes(32), 8)(0)
            assert word in SETS or batch.tolist() == list(range(8))
        if not sampling.runnable or sampling.lasting:
            assert type(sampling).draw is Sampling.draw
            with pytest.raises(NotImplementedError, match=f"batches of sampling {word} cannot be drawn"):
                sampling.draw(random.Random(1), 8)


def test_a_poisson_batch_holds_a_record_below_the_rate_of_its_word_and_no_other():
    """A record is in a Poisson batch exactly if its random word is below the sampling rate.

    For q = 3/4, q 2^64 = 3 * 2^62; tested are the last word that is used, and the first that is not.
    """
    words = (0, 3 * 2**62 - 1, 3 * 2**62, 2**64 - 1, 3 * 2**61)
    assert Poisson(0.75).draw(Words(*words), 5).tolist() == [0, 1, 4]
    almost = math.nextafter(1.0, 0.0)
    assert Poisson(almost).draw(Words(2**64 - 2**11 - 1, 2**64 - 2**11), 2).tolist() == [0]
    assert Poisson(2.0**-64).draw(Words(0, 1), 2).tolist() == [0]


def test_poisson_batches_have_the_product_law():
    """Poisson batches have the product law.

    In 30,000 batches of four records from one seed, the sixteen sets pass a chi-squared test at 1e-6.
    """
    q, found = 0.35, sets(Poisson(0.35), 4, 30_000, seed=8)
    chance = {
        chosen: q ** len(chosen) * (1 - q) ** (4 - len(chosen))
        for size in range(5)
        for chosen in itertools.combinations(range(4), size)
    }
    counts = [found[chosen] for chosen in chance]
    assert sum(counts) == 30_000
    assert stats.chisquare(counts, [30_000 * p for p in chance.values()]).pvalue > 1e-6
    off = [(0.37 / q) ** len(c) * (0.63 / (1 - q)) ** (4 - len(c)) * p for c, p in chance.items()]
    assert stats.chisquare(counts, [30_000 * p for p in off]).pvalue < 1e-6


def test_fixed_size_batches_are_every_set_of_their_size_equally_often():
    """Batches of a fixed size are every set of that size equally often.

    In 30,000 batches of three of six records from one seed, the twenty sets pass a chi-squared test at 1e-6.
    """
    found = sets(FixedSize(0.5), 6, 30_000, seed=9)
    assert set(found) == set(itertools.combinations(range(6), 3))
    assert stats.chisquare(list(found.values())).pvalue > 1e-6


def test_inclusion_counts_of_a_whole_run():
    """The number of a run's batches that have a record is binomial, for Poisson and fixed-size sampling alike.

    There are 2,000 runs of ten batches.
    """
    q = 0.2
    for sampling in (Poisson(q), FixedSize(q)):
        source = random.Random(10)
        counts = np.zeros(11)
        for _ in range(2_000):
            counts[sum(3 in sampling.draw(source, 10) for _ in range(10))] += 1
        expected = 2_000 * stats.binom.pmf(np.arange(11), 10, q)
        assert stats.chisquare([*counts[:5], counts[5:].sum()], [*expected[:5], expected[5:].sum()]).pvalue > 1e-6
        assert sampling.chance(10)[0] == pytest.approx(1 - stats.binom.pmf(0, 10, q), rel=1e-12)


@pytest.mark.parametrize(("n", "q", "size"), [(10, 0.3, 3), (7, 3 / 7, 3), (1000, 0.001, 1), (5, 1.0, 5)])
def test_fixed_size_batches_are_a_whole_number_of_records(n, q, size):
    assert FixedSize(q).batch_size(n) == size
    assert len(FixedSize(q).draw(random.Random(0), n)) == size
    for bad in (q / (2 * size), q - 0.4 / n):
        with pytest.raises(ValueError, match=r"sample_rate \* n must be an integer >= 1 with sampling fixed-size"):
            FixedSize(bad).batch_size(n)
    assert FullBatch().batch_size(n) == n
    assert Poisson(q).batch_size(n) is None


def test_an_epoch_that_holds_each_record_once_uses_it_as_often_as_passes_says():
    """In epochs of floor(1/q) steps that have each record once, a record is used as often as `passes` says, by hand."""
    assert [passes(steps, 0.25) for steps in (1, 4, 5, 8, 9)] == [1, 1, 2, 2, 3]
    assert [passes(steps, 0.3) for steps in (1, 3, 4, 6, 7)] == [1, 1, 2, 2, 3]
    assert passes(10, 0.6) == 10
    assert FixedOrder(0.25).chance(1) == (1.0, "1")
    assert RandomAllocation(0.25).chance(3)[0] == 0.75


@pytest.mark.parametrize("rate", [None, 0.0, -0.1, 1.1, math.nan, "1", True])
def test_a_rate_outside_its_range_is_named(rate):
    for word in WORDS:
        if word == "full" and rate is None:
            assert sampling_of(word, rate).sample_rate == 1
            continue
        with pytest.raises(ValueError, match=r"^sample_rate must be"):
            sampling_of(word, rate)


def test_a_fixed_order_is_not_accounted_for_a_record_less():
    """A fixed order is not accounted for under add-remove, for a reason that this test shows.

    Without the first record all later ones change batches, and every sum can change by two clips.
    """
    values = np.array([1.0, -1.0] * 50)
    # With one record in a batch, and one epoch, these are the sums with the first record minus those without it.
    moved = values[:-1] - values[1:]
    claimed = passes(100, 0.01) * 1.0
    assert np.sum(moved**2) == 4 * 99 > claimed
    with pytest.raises(ValueError, match=r"^relation must be replace-one or zero-out with sampling fixed-order "):
        Release(3.0, 100, sampling="fixed-order", relation="add-remove", sample_rate=0.01)
    whole = Release(3.0, 100, sampling="fixed-order", relation="add-remove", sample_rate=1.0)
    assert math.sqrt(whole.cost.squares[0]) == pytest.approx(10 / 3)
    zeroed = np.zeros(100)
    zeroed[0] = values[0]
    release = Release(3.0, 100, sampling="fixed-order", relation="zero-out", sample_rate=0.01)
    assert math.sqrt(release.cost.squares[0]) == pytest.approx(math.sqrt(np.sum(zeroed**2)) / 3)


@pytest.mark.parametrize(("sampling", "rate"), [("full", 1.0), ("poisson", 0.1), ("random-allocation", 0.1)])
def test_a_record_that_counts_as_zero_costs_what_a_missing_one_costs(sampling, rate):
    """A record that counts as zero costs what a missing one costs, where the others' batches do not depend on it."""
    found = [
        epsilon_of_history([Release(2.0, 30, sampling=sampling, relation=relation, sample_rate=rate)], 1e-5)
        for relation in ("add-remove", "zero-out")
    ]
    assert found[0] == found[1]


def test_fixed_size_batches_and_a_record_that_counts_as_zero():
    """With batches of fixed size, a record that counts as zero is in the bracket for the worst data.

    There are two records, one in a batch, one release, and all data on a grid.
    """
    noise, q, epsilon = 1.0, 0.5, 0.7
    x = np.linspace(-12, 12, 20_001)

    def law(mean):
        return np.exp(-((x - mean) ** 2) / (2 * noise**2)) / (noise * math.sqrt(2 * math.pi))

    worst = 0.0
    for value, other in itertools.product(np.linspace(-1, 1, 5), repeat=2):
        first, second = (law(value) + law(other)) / 2, (law(0.0) + law(other)) / 2
        for p, r in ((first, second), (second, first)):
            worst = max(worst, float(np.trapezoid(np.maximum(p - math.exp(epsilon) * r, 0), x)))
    found = delta_of_history([Release(noise, 1, sampling="fixed-size", relation="zero-out", sample_rate=q)], epsilon)
    assert found.lower <= worst * (1 + 1e-6)
    assert worst <= found.upper
    doubled = delta_of_history(
        [Release(noise, 1, sampling="fixed-size", relation="replace-one", sample_rate=q)], epsilon
    )
    assert found.lower < doubled.lower


@pytest.mark.parametrize("relation", Relation)
@pytest.mark.parametrize(("groups", "q", "steps"), [(3, 0.1, 2), (2, 0.5, 2), (5, 0.02, 5)])
def test_cyclic_batches_are_the_turns_of_one_group(groups, q, steps, relation):
    """Cyclic batches cost what the turns of the record's own group cost.

    The record's one turn is a Poisson batch at the number of groups times the rate, with all outputs summed; more turns
    are more such batches.
    """
    release = Release(1.5, steps, sampling=f"cyclic-poisson:{groups}", relation=relation, sample_rate=q)
    for epsilon in (0.1, 1.0):
        exact = oracle.exact_delta(epsilon, [oracle.gaussian(1.5, groups * q, relation)])
        found = delta_of_history([release], epsilon)
        assert found.lower * (1 - 1e-5) <= exact <= found.upper * (1 + 1e-5)
        assert found.upper <= found.lower * (1 + 1e-3)
    reached, _ = release.step.sampling.chance(steps)
    assert reached == pytest.approx(groups * q)
    many = Release(1.5, 6 * groups + 1, sampling=release.sampling, relation=relation, sample_rate=q)
    poisson = Release(1.5, 7, sampling="poisson", relation=relation, sample_rate=groups * q)
    assert delta_of_history([many], 0.5) == replace(delta_of_history([poisson], 0.5), notes=notes_of(many))


def notes_of(release):
    return (release.step.sampling.note(release.relation),)


def test_what_cyclic_batches_are_not():
    good = {"relation": "add-remove", "sampling": "cyclic-poisson:10"}
    with pytest.raises(
        ValueError, match=r"^sample_rate must be a finite number with 0 < sample_rate <= 0\.1; got 0\.2"
    ):
        Release(1.0, 5, **good, sample_rate=0.2)
    for name in (
        "cyclic-poisson:0",
        "cyclic-poisson",
        "cyclic-poisson:2.5",
        "random-allocation:0",
        "random-allocation:x",
    ):
        with pytest.raises(ValueError, match=r"^sampling must be (cyclic-poisson:B|random-allocation:K), "):
            Release(1.0, 5, relation="add-remove", sampling=name, sample_rate=0.05)
    for name in ("cyclic-poisson:10", "random-allocation:4"):
        assert drawn(name, 0.05).word == name
        with pytest.raises(NotImplementedError, match="cannot be drawn"):
            drawn(name, 0.05).draw(random.Random(1), 8)
    for name in ("fixed-order", 3):
        with pytest.raises(
            ValueError, match="sampling must be one of full, poisson, fixed-size, random-allocation; got"
        ):
            drawn(name, 0.05)


def test_a_value_of_another_rate_than_the_batch_says_is_refused():
    assert drawn(Poisson(1 / 16), 1 / 16) == drawn("poisson", 1 / 16) == Poisson(1 / 16)
    with pytest.raises(ValueError, match=r"^sampling must have the rate of expected_batch over n, 0\.125"):
        drawn(Poisson(1 / 16), 0.125)
