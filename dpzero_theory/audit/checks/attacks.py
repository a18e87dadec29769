"""Attacks on a loop's claim: checks whether releases betray a record more often than the claimed mu allows."""

import math
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
from scipy import linalg

from dpzero_theory.audit import datasets
from dpzero_theory.audit.bounds import attack_gdp, one_run_gdp
from dpzero_theory.audit.datasets import Records
from dpzero_theory.audit.finding import Verdict, held, untested, violated
from dpzero_theory.audit.lab import Lab
from dpzero_theory.audit.power import curve, share_seen
from dpzero_theory.audit.runs import NOT_REPEATABLE, SEED
from dpzero_theory.audit.sequential import decide
from dpzero_theory.check import Array
from dpzero_theory.privacy.gaussian import epsilon_from_gdp

_MEND_CLAIM = (
    "see the checks of noise and sensitivity; where they hold, something else that is released depends on the record"
)
_ATTACK_SEED = 5000
"""The loop's seed in the first pair of runs that the audit attacks; each further pair has the next seed."""

_MOST_CANARIES = 96  # The attack in one run plants at most this many canaries in the data
_CONFIDENCE = 0.95
"""The confidence of the lower bounds on mu that the report shows.

A check reports a violation only at its own, far higher confidence.
"""
_EXCHANGED = "where a record is exchanged, without sampling"  # Words for what both attacks measure, unlike the claim
_LARGEST_GDP = 20.0  # For a claimed mu above this the report does not say how many runs would refute the claim


def _full_gdp(lab: Lab, steps: int) -> float:
    """Returns mu, under replace-one, of `steps` releases with every record in every batch and the claimed noise.

    `lab` has the claim. An exchange of one record changes a sum by up to two clips, so mu is 2 sqrt(steps)/(noise
    multiplier).
    """
    return 2 * math.sqrt(steps) / lab.claim.noise_multiplier


def _scores(lab: Lab, runs: int) -> Iterator[Array]:
    """Yields, for each of `runs` pairs of runs on two neighbouring data sets, the scores of all steps, of shape (steps,
    2).

    The data sets differ in the first record, which is one or the other of `Influence.pair` of `lab`. A score is the
    projection of a release on the change that exchanging these two records makes to it. It has mean +1/2 on the first
    data set and -1/2 on the second, as `sequential.Betting` wants it. The attacker knows the code, all other records,
    the directions and the weights. Every record is in every batch and the weights stay where they are, so that all
    steps' scores have one law.
    """
    assert lab.influence.pair is not None
    data = [datasets.replaced(lab.loop.records, 0, record) for record in lab.influence.pair[:2]]
    for seed in range(_ATTACK_SEED, _ATTACK_SEED + runs):
        quiet = [lab.runs.quiet(world, seed=seed, **lab.runs.all_records) for world in data]
        how = {**lab.runs.paired(seed), **lab.runs.frozen, **lab.runs.all_records}
        noisy = [lab.runs.attempt(world, **how) for world in data]
        rows = [None if one is None or one.releases is None else lab.runs.comparable(one) for one in noisy]
        up, down = quiet
        if (
            up is None
            or down is None
            or up.shape != down.shape
            or any(row is None or row.shape != up.shape for row in rows)
        ):
            return
        step, middle = up - down, (up + down) / 2
        moved = (step**2).sum(axis=1)
        # Where exchanging the two records does not move a step, both scores of that step are 0.
        moved[moved == 0] = np.inf
        scores = [((np.asarray(row) - middle) * step).sum(axis=1) / moved for row in rows]
        yield np.nan_to_num(np.stack(scores, axis=1))


def bound(scores: Array, confidence: float) -> float:
    """A lower bound on mu in mu-GDP from scores of runs on two neighbouring data sets.

    `scores` has the shape (pairs, 2), and `confidence` is the probability that the bound holds. The first third of the
    pairs chooses a threshold; Clopper-Pearson bounds on the error rates of the test by that threshold, on the other
    pairs, give the bound.
    """
    third = len(scores) // 3
    if third < 4:
        return 0.0
    tune, rest = scores[:third], scores[third:]

    def measure(part: Array, cut: float) -> float:
        wrong = int((part[:, 1] > cut).sum()), int((part[:, 0] <= cut).sum())
        return attack_gdp(wrong[0], len(part), wrong[1], len(part), confidence)

    cuts = np.quantile(tune, np.linspace(0.02, 0.98, 49))
    return measure(rest, float(cuts[int(np.argmax([measure(tune, float(cut)) for cut in cuts]))]))


def attacked(lab: Lab, level: float) -> Verdict:
    """Test the claimed mu by betting (`sequential`) on pairs of runs on two neighbouring data sets.

    The data sets differ in one record, chosen to move every step as far as possible. Two games are played: one on the
    score of each step, one on the mean score of a run. `lab` makes experiments on the audited loop. A sound loop is
    reported as violated with probability at most `level`. Returns the verdict.
    """
    if lab.runs.repeatable is None or lab.influence.pair is None:
        return untested(NOT_REPEATABLE if lab.runs.repeatable is None else "no record that was tried moves every step")
    quiet = lab.runs.quiet(**lab.runs.all_records)
    steps = 1 if quiet is None else len(quiet)
    each, whole = _full_gdp(lab, 1), _full_gdp(lab, steps)
    seen: list[Array] = []

    def rounds() -> Iterator[tuple[Array, Array]]:
        for scores in _scores(lab, lab.most_runs):
            seen.append(scores)
            yield scores, scores.mean(axis=0, keepdims=True)

    decision = decide(rounds(), (each, whole), level)
    if not seen:
        return untested("the loop fails on the canaries, or makes another number of steps on them")
    scores = np.concatenate(seen)
    least = bound(scores, _CONFIDENCE)
    plot: dict[str, Any] = {
        "first": scores[:, 0].tolist(),
        "second": scores[:, 1].tolist(),
        "gdp_bound": least,
        "gdp_claimed": each,
        "epsilon_bound": _epsilon(lab, least * math.sqrt(steps)),
        "epsilon_claimed": _epsilon(lab, whole),
        "pairs": len(scores),
        "pairs_to_see": curve(each, 1 - level) if each < _LARGEST_GDP else {},
    }
    p = math.exp(-max(0.0, *decision.wealth))
    proved, claimed = _of_run(least, plot["epsilon_bound"]), _of_run(each, plot["epsilon_claimed"])
    said = f"mu >= {proved} at 95% by {decision.rounds} pairs of runs; the claimed noise allows {claimed} {_EXCHANGED}"
    if decision.refuted:
        return violated(f"the claim is refuted: {said}", _MEND_CLAIM, p_value=p, **plot)
    std = lab.claim.noise_multiplier / lab.influence.pair.size
    share = share_seen(decision.rounds, scores.shape[0] // decision.rounds, std, (each, whole), level)
    if share is None:
        return untested(f"{said}: so few pairs could not refute the claim if the noise were a hundredth of it", **plot)
    return held(f"not refuted: {said}", power=f"noise of {share:g} times what is claimed", p_value=p, **plot)


def _epsilon(lab: Lab, gdp: float) -> float:
    """Returns the epsilon, at the claim's delta, of a mechanism that is mu-GDP for mu = `gdp`.

    `lab` has the claim. Where the claimed delta is 0 the result is 0.
    """
    return float(epsilon_from_gdp(gdp, lab.claim.delta)) if gdp > 0 and lab.claim.delta > 0 else 0.0


def _of_run(gdp: float, epsilon: float) -> str:
    """Returns words for mu = `gdp` of a step, with the epsilon of a run of such steps, which is left out where it is
    0."""
    return f"{gdp:.3g} of a step" + (f" (epsilon {epsilon:.3g} of a run)" if epsilon else "")


def in_one_run(lab: Lab, level: float) -> Verdict:
    """Test the claimed mu by one run with many canaries (`bounds.one_run_gdp`).

    Each canary is a random record or its mirror image, by a random sign. Signs are guessed by ridge regression of the
    releases on what each canary changes in them. No more signs are guessed than there are linearly independent changes,
    which are few in a first-order loop on a small model. `lab` makes experiments on the audited loop. A sound loop is
    reported as violated with probability at most `level`. Returns the verdict.
    """
    if lab.runs.repeatable is None or lab.influence.pair is None:
        return untested(NOT_REPEATABLE if lab.runs.repeatable is None else "no record that was tried moves every step")
    base = lab.runs.quiet(**lab.runs.all_records)
    count = min(len(lab.loop.records), _MOST_CANARIES, 0 if base is None else base.size) // 2 * 2
    if base is None or count < 8:
        return untested("one run releases fewer than 8 numbers, or has fewer records")
    draw = np.random.default_rng(_ATTACK_SEED)
    canaries = [datasets.random_like(lab.loop.records[0], draw, 1e3) for _ in range(count)]
    moves = [_move(lab, place, canary) for place, canary in enumerate(canaries)]
    if any(move is None or move.shape != base.shape or not np.isfinite(move).all() for move in moves):
        return untested("the loop fails on random canaries, or makes another number of steps on them")
    design = np.array([np.asarray(move).ravel() / 2 for move in moves]).T
    signs = 2 * np.random.default_rng().integers(0, 2, count) - 1

    def with_signs(signs: Iterable[int]) -> Records:
        chosen = [one if sign > 0 else datasets.mirrored(one) for sign, one in zip(signs, canaries, strict=True)]
        return datasets.beginning_with(lab.loop.records, chosen)

    ends = [lab.runs.quiet(with_signs([sign] * count), **lab.runs.all_records) for sign in (1, -1)]
    how = {**lab.runs.paired(SEED), **lab.runs.frozen, **lab.runs.all_records}
    noisy = lab.runs.attempt(with_signs(signs), **how)
    rows = None if noisy is None or noisy.releases is None else lab.runs.comparable(noisy)
    if rows is None or any(end is None or not np.isfinite(end).all() for end in ends):
        return untested("the loop fails on random canaries")
    if any(np.asarray(one).shape != base.shape for one in (rows, *ends)):
        return untested("the loop makes another number of steps on random canaries")
    target = (rows - (np.asarray(ends[0]) + np.asarray(ends[1])) / 2).ravel()
    ridge = lab.claim.noise_std(lab.claim.n) ** 2
    scores = linalg.solve(design.T @ design + ridge * np.eye(count), design.T @ target, assume_a="pos")
    order = np.argsort(scores)
    half = max(1, int(np.linalg.matrix_rank(design)) // 2)
    guesses = 2 * half
    correct = int((signs[order[count - half :]] == 1).sum() + (signs[order[:half]] == -1).sum())
    gdp = _full_gdp(lab, len(base))
    bound, sure = (one_run_gdp(correct, guesses, count, c) for c in (_CONFIDENCE, 1 - level))
    said = f"{correct} of {guesses} guesses right in one run: mu >= {bound:.3g} at 95%"
    said += f"; the claimed noise allows {gdp:.3g} {_EXCHANGED}"
    plot = {"correct": correct, "guesses": guesses, "gdp_bound": bound, "gdp_claimed": gdp}
    if sure > gdp:
        return violated(f"the claim is refuted: {said}", _MEND_CLAIM, **plot)
    best = one_run_gdp(guesses, guesses, count, 1 - level)
    if best <= gdp:
        return untested(f"{said}; all guesses right would prove no more than mu >= {best:.3g}", **plot)
    return held(f"not refuted: {said}", power=f"mu >= {best:.3g}, by guesses that are all right", **plot)


def _move(lab: Lab, place: int, canary: Any) -> Array | None:
    """Returns how a quiet run's releases change when a canary is exchanged for its mirror image.

    A quiet run has almost no noise. `lab` makes the runs, and `canary` is the record, put at index `place` of the data.
    None is returned where the loop fails, or makes other numbers of steps on the two.
    """
    first, second = (
        lab.runs.quiet(datasets.replaced(lab.loop.records, place, record), **lab.runs.all_records)
        for record in (canary, datasets.mirrored(canary))
    )
    return None if first is None or second is None or first.shape != second.shape else first - second
