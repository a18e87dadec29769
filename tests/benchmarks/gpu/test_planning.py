"""Tests of plans for GPU time: which jobs fit, in the order of their value, and why the others are left out."""

import itertools

import pytest

from benchmarks.gpu.cards import PROCESSOR, Work, card_named, known
from benchmarks.gpu.jobs import JOBS
from benchmarks.gpu.planning import planned, refusal

GIVEN = {"data": "data", "model": "model"}
CARDS = ("h200", "a100-40gb", "rtx-4090")


@pytest.mark.parametrize("name", CARDS)
def test_plans_hold_what_they_promise(name: str) -> None:
    card, chosen = known()[name], []
    for minutes in (10, 40, 400):
        entries = list(planned(JOBS, card, 60 * minutes, GIVEN))
        assert [entry.job for entry in entries] == list(JOBS)
        ran = [entry for entry in entries if not entry.why]
        assert all(entry.start < 60 * minutes and entry.job.memory_gib <= card.memory_gib for entry in ran)
        assert all(
            later.start == pytest.approx(min(one.start + one.seconds, 60 * minutes))
            for one, later in itertools.pairwise(ran)
        )
        chosen.append({entry.job.name for entry in ran})
    assert chosen[0] < chosen[1] <= chosen[2]
    assert "tests" in chosen[0]
    assert ("opt-66b" in chosen[2]) == (name == "h200") == ("opt-66b-streamed" not in chosen[2])


def test_the_reasons() -> None:
    jobs = {job.name: job for job in JOBS}
    card = known()["a100-40gb"]
    assert refusal(jobs["opt-30b"], card, 1e6, {}, JOBS) == "needs 61 GiB, the card has 39"
    assert refusal(jobs["tables-encoder"], card, 1e6, {"data": None}, JOBS) == "needs --data"
    assert refusal(jobs["tests"], card, 100, {}, JOBS) == "needs 2.5 min, 100 s are left"
    assert refusal(jobs["grid"], card, 0.5, {}, JOBS).startswith("the smallest part of it needs 2 s")
    assert refusal(jobs["opt-66b-streamed"], known()["h200"], 1e6, {}, JOBS) == "opt-66b fits, which shows more"
    assert refusal(jobs["opt-66b-streamed"], card, 1e6, {}, JOBS) == ""


def test_cards_are_known_by_their_names() -> None:
    assert card_named("NVIDIA H200", 139.8)[0] == "h200"
    assert card_named("NVIDIA A100-SXM4-80GB", 79.2)[0] == "a100-80gb"
    label, card = card_named("NVIDIA A100-SXM4-40GB", 39.0)
    assert (label, card.memory_gib) == ("a100-40gb", 39.0)
    label, card = card_named("Another 9000", 16)
    assert label == "unknown"
    assert (card.memory_gib, card.half, card.float64) == (16, 165, 1.29)


def test_work_takes_longer_on_a_slower_card_and_some_of_it_does_not() -> None:
    work = Work(10, float64=100, half=1, traffic=1)
    assert work.on(PROCESSOR) == 10
    assert work.on(known()["h200"]) == pytest.approx(10 + (100 / 67 + 1 / 989 + 1 / 4.8) / 0.4)
    assert work.on(known()["rtx-4090"]) > work.on(known()["a100-40gb"]) > work.on(known()["h200"])
