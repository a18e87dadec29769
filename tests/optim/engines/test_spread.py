"""Several engines as one: shares of a batch, and engines that die."""

import os
import pickle
import signal
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from dpzero_theory.optim.engines.engine import EngineError, trained
from dpzero_theory.optim.engines.spread import SpreadEngine
from dpzero_theory.optim.files.transcript import read
from dpzero_theory.optim.plan import Plan
from dpzero_theory.optim.private import make_from_seed_not_private, make_private_with_epsilon
from dpzero_theory.optim.verify import verify
from tests.optim.engines.toy import PRIVATE, dying, engine, fails, model, rows, unequal


@pytest.fixture(params=["processes", "ray"], scope="module")
def spread(request: pytest.FixtureRequest) -> Iterator[SpreadEngine]:
    if request.param == "ray":
        pytest.importorskip("ray", reason="Ray is not installed (make test-engine installs it)")
    found = SpreadEngine(engine, 2, request.param)
    yield found
    found.close()


def test_engines_share_a_batch(spread: SpreadEngine) -> None:
    assert spread.name == engine().name
    assert len({os.getpid(), *spread.processes()}) == 3
    adapters = [trained(model()), {name: -value for name, value in trained(model()).items()}]
    for count in (1, 2, 24):
        expected = engine().scores(adapters, rows(count))
        assert np.array_equal(spread.scores(adapters, rows(count)), expected)
        assert all(np.array_equal(part.scores(adapters, rows(count)), expected) for part in spread.parts())


def test_a_run_goes_on_where_an_engine_dies(spread: SpreadEngine, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    run = make_private_with_epsilon(model(), None, rows(), engine=spread, folder=folder, **PRIVATE)
    for step in range(5):
        if step in (1, 3):
            os.kill(spread.processes()[step // 2], signal.SIGKILL)
        run.step()
    assert not run.releases_left
    assert sum(step.steps for step in run.history) == 5
    run.close()
    assert [record.release for record in read(folder).records] == [0, 1, 2, 3, 4]
    assert not verify(folder).fault


@pytest.mark.parametrize("under", ["processes", "ray"])
def test_an_engine_that_dies_at_its_work_is_started_again(under: str, tmp_path: Path) -> None:
    if under == "ray":
        pytest.importorskip("ray", reason="Ray is not installed (make test-engine installs it)")
    spread = SpreadEngine(partial(dying, tmp_path, 2), 1, under)
    expected = engine().scores([trained(model())], rows())
    assert np.array_equal(spread.scores([trained(model())], rows()), expected)
    assert len(list(tmp_path.iterdir())) == 2
    spread.close()


def test_an_engine_that_dies_three_times_ends_the_run(tmp_path: Path) -> None:
    spread = SpreadEngine(engine, 1)
    plan = Plan.without_privacy(
        n=24, steps=5, expected_batch=8, step_size=0.05, smoothing=1e-2, sampling="poisson", direction="gaussian"
    )
    run = make_from_seed_not_private(model(), None, rows(), plan, seed=1, engine=spread)
    run.step()
    (worker,) = spread._workers
    worker.stop()
    worker._make = pickle.dumps(partial(dying, tmp_path, 99))
    worker.start()
    with pytest.raises(EngineError, match="an engine has died 3 times"):
        run.step()
    assert len(list(tmp_path.iterdir())) == 3
    spread.close()


def test_engines_must_be_equal_and_made() -> None:
    with pytest.raises(ValueError, match="make must return equal engines; got engine of process"):
        SpreadEngine(unequal, 2)
    with pytest.raises(RuntimeError, match="no such model"):
        SpreadEngine(fails, 1)
    with pytest.raises(ValueError, match="under must be one of processes, ray"):
        SpreadEngine(engine, 1, "slurm")
    with pytest.raises(ValueError, match="count must be an integer"):
        SpreadEngine(engine, 0)
