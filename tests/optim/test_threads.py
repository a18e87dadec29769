"""Tests that a run belongs to one thread at a time.

What another thread asks for in the middle of a step is refused, and nothing is lost.
"""

import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from dpzero_theory.optim.files.folder import LEDGER, TRANSCRIPT
from dpzero_theory.optim.files.replay import replay, weights_of
from dpzero_theory.optim.files.transcript import Record, Transcript, TranscriptError, read
from dpzero_theory.optim.plan import Plan
from dpzero_theory.optim.private import make_from_seed_not_private
from dpzero_theory.optim.run import Run
from dpzero_theory.optim.verify import verify
from dpzero_theory.privacy import ledger
from dpzero_theory.privacy.accountant import epsilon_of_history
from dpzero_theory.privacy.ledger import BudgetSpentError, Ledger
from tests.optim.small import Logistic, data, losses, plan, private, weights

REFUSED = "a step is being made: do this when it is over"


@pytest.fixture(autouse=True)
def _eager(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Makes threads change places after every few instructions."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    monkeypatch.setattr(os, "fsync", lambda file: None)
    yield
    sys.setswitchinterval(before)


def together(*works: Callable[[], None]) -> list[BaseException]:
    """Does each of `works` in a thread of its own, all begun at once, and returns the errors that they raised."""
    raised: list[BaseException] = []
    ready = threading.Barrier(len(works))

    def guarded(work: Callable[[], None]) -> None:
        ready.wait()
        try:
            work()
        except BaseException as error:
            raised.append(error)

    threads = [threading.Thread(target=guarded, args=(work,)) for work in works]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return raised


def stepping(run: Run, made: list[Record], refused: list[str]) -> Callable[[], None]:
    """Returns a function that makes all steps of `run` that are left.

    Where another thread is in a step, it asks again. Steps made are added to `made`, and refusals to `refused`.
    """

    def work() -> None:
        while True:
            try:
                made.append(run.step())
            except BudgetSpentError:
                return
            except TranscriptError as error:
                refused.append(str(error))

    return work


def require_whole(run: Run, folder: Path, made: list[Record]) -> None:
    """Requires that every step was paid for, recorded and returned once, and that the weights are the transcript's.

    `made` are the records that `run`, whose folder is `folder`, returned.
    """
    run.close()
    records = read(folder / TRANSCRIPT)[1]
    assert sorted(made) == records
    assert [record.release for record in records] == list(range(run.plan.steps))
    assert ledger.read(folder / LEDGER).spent == run.plan.steps
    module = Logistic()
    replay(folder / TRANSCRIPT, module)
    assert torch.equal(weights(run), module.weight.detach())
    found = verify(folder, None, None)
    assert not found.fault


@pytest.mark.parametrize("count", [2, 8])
@pytest.mark.parametrize("block", [1, 3])
def test_steps_of_several_threads_are_made_one_by_one_or_refused(tmp_path: Path, count: int, block: int) -> None:
    refused: list[str] = []
    for trial in range(2):
        folder, made = tmp_path / str(trial), list[Record]()
        run = private(folder, steps=30, paid_at_once=block)
        assert together(*[stepping(run, made, refused) for _ in range(count)]) == []
        require_whole(run, folder, made)
        private(folder, steps=30, paid_at_once=block, resume=True).close()
    assert len(refused) > 20
    assert all(REFUSED in text and "\n" not in text for text in refused)


def test_whoever_asks_beside_a_step_is_told_the_truth_or_refused(tmp_path: Path) -> None:
    """Another thread that asks a run for something beside a step is told the truth or refused.

    It asks for a checkpoint, epsilon, the releases left, a verification, going back to a checkpoint, and the end.
    """
    run, made, refused = private(tmp_path, steps=20), list[Record](), list[str]()
    checkpoints = list[dict[str, torch.Tensor]]()

    def first() -> None:
        while run.releases_left:
            with suppress(TranscriptError):
                made.append(run.step())
            time.sleep(2e-3)

    def asking(ask: Callable[[], object]) -> Callable[[], None]:
        def work() -> None:
            answered = 0
            while answered < 10:  # On a busy machine many requests are refused until the run is over
                try:
                    ask()
                    answered += 1
                except TranscriptError as error:
                    refused.append(str(error))
                time.sleep(2e-3)

        return work

    def kept() -> None:
        checkpoints.append(run.state_dict())

    def priced() -> None:
        before = len(read(tmp_path / TRANSCRIPT)[1])
        epsilon, left = run.get_epsilon(1e-5), run.releases_left
        after = ledger.read(tmp_path / LEDGER).spent
        assert 0 <= left <= 20 - before
        assert epsilon <= cost(run.plan, after)
        assert epsilon >= cost(run.plan, before)

    def judged() -> None:
        assert not verify(tmp_path, None, None).fault

    works = [asking(work) for work in (kept, priced, judged, run.catch_up)]
    assert together(first, *works) == []
    require_whole(run, tmp_path, made)
    assert checkpoints
    assert all(REFUSED in text for text in refused)
    for state in checkpoints:
        module = Logistic()
        header, records = read(tmp_path / TRANSCRIPT)
        expected = weights_of(header, module)
        for record in records[: int(state["run.position"])]:
            expected.move_(header.plan.moves(record.release, record.sums))
        assert torch.equal(state["weights.weight"], module.weight.detach())


def cost(plan: Plan, spent: int) -> float:
    return epsilon_of_history([plan.settings.release(spent)] if spent else [], 1e-5).upper


@pytest.mark.parametrize("ask", ["close", "load", "again"])
def test_what_would_take_the_run_from_a_step_is_refused(
    tmp_path: Path, ask: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What would take the run away from a step is refused to another thread in the middle of an evaluation.

    The step then goes on as if nobody had asked.
    """
    inside, told = threading.Event(), threading.Event()

    def slow(module: Any, batch: Any) -> torch.Tensor:
        if threading.current_thread() is not threading.main_thread():
            inside.set()
            assert told.wait(60)
        return losses(module, batch)

    run = private(tmp_path)
    state = run.state_dict()
    monkeypatch.setattr(run.sums._evaluation, "_losses", slow)
    made: list[Record] = []
    thread = threading.Thread(target=lambda: made.append(run.step()))
    thread.start()
    assert inside.wait(60)
    asks = {"close": run.close, "load": lambda: run.load_state_dict(state), "again": run.begin_again}
    with pytest.raises(TranscriptError, match=REFUSED):
        asks[ask]()
    told.set()
    thread.join()
    assert [record.release for record in made] == [0]
    monkeypatch.undo()
    assert run.step().release == 1
    run.close()
    assert len(read(tmp_path / TRANSCRIPT)[1]) == 2


def test_the_child_of_a_fork_beside_a_step_neither_writes_nor_waits(tmp_path: Path) -> None:
    """A child process, forked while another thread steps, neither writes nor waits.

    It is forked again and again.
    """
    run, made, refused = private(tmp_path, steps=40), list[Record](), list[str]()
    thread = threading.Thread(target=stepping(run, made, refused))
    thread.start()
    codes = []
    while thread.is_alive() and len(codes) < 12:
        child = os.fork()
        if child == 0:
            try:
                run.step()
            except (TranscriptError, ledger.LedgerError):
                os._exit(0)
            finally:
                os._exit(1)
        codes.append(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
    thread.join()
    assert codes
    assert set(codes) == {0}
    require_whole(run, tmp_path, made)


def test_a_run_without_a_folder_makes_no_step_twice() -> None:
    run = make_from_seed_not_private(Logistic(), losses, data(), plan(steps=60), seed=3)
    made, refused = list[Record](), list[str]()
    together(*[stepping(run, made, refused) for _ in range(8)])
    alone = make_from_seed_not_private(Logistic(), losses, data(), plan(steps=60), seed=3)
    expected = list[Record]()
    alone.run(expected.append)
    assert sorted(made) == expected
    assert torch.equal(weights(run), weights(alone))


@pytest.mark.parametrize("count", [2, 8])
def test_a_ledger_and_a_transcript_are_written_by_threads_one_after_the_other(tmp_path: Path, count: int) -> None:
    run = private(tmp_path, steps=200)
    header, settings = run._header, run.plan.settings
    run.close()
    paid, turns = list[int](), iter(range(200))
    with Ledger.open(tmp_path / LEDGER) as book, Transcript.create(tmp_path / "other", header) as transcript:

        def pay() -> None:
            while book.releases_left:
                with suppress(BudgetSpentError):
                    paid.extend(book.spend(settings))

        def write() -> None:
            for number in turns:
                transcript.append(number, np.array([number]))
                transcript.sync()

        assert together(*[pay, write] * (count // 2)) == []
    assert sorted(paid) == list(range(200))
    assert ledger.read(tmp_path / LEDGER).spent == 200
    assert (tmp_path / "other").stat().st_size == len(header.line()) + 200 * 20
