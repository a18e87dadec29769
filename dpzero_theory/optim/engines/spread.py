"""Several equal engines used as one: each evaluates a share of the records, in a process of its own.

The processes are sent records and trained parameters, and return losses. An engine that dies is started again, and
evaluates its records once more. Privacy is not affected: a step releases nothing before all losses are there.
"""

import os
import pickle
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import get_context
from typing import Any

import numpy as np
import torch

from dpzero_theory.check import Array, choice, integer
from dpzero_theory.optim.engines.engine import Adapter, Engine, EngineError

_MOST_DEATHS = 3
"""How many times in a row an engine may die while it evaluates the same records before `EngineError` is raised."""
_HELD: list[Engine] = []
"""In a process that `SpreadEngine` has started: a list with the process's engine, once it is made. Empty elsewhere."""


class SpreadEngine(Engine):
    """Several equal engines used as one, each in a process of its own, which share the records of a batch.

    Args:
        make: a function without arguments that returns an engine. It is called in each process, and again in a process
            that replaces a dead one. It must be possible to pickle it.
        count: the number of engines, an integer >= 1.
        under: "processes" for processes on this machine; "ray" (the `ray` extra) for actors of the Ray cluster to which
            `ray.init` has connected, or on this machine if it was not called.
        resources: for "ray", the options of each actor, such as {"num_gpus": 1}, or None for Ray's defaults; else
            unused.

    Raises:
        ValueError: an argument is outside its range, the engines have different attributes, or Ray is not installed.
        EngineError: an engine cannot be started.
        Exception: what `make` raises.
    """

    def __init__(
        self, make: Callable[[], Engine], count: int, under: str = "processes", resources: dict[str, Any] | None = None
    ) -> None:
        integer("count", count)
        if choice("under", under, ("processes", "ray")) == "ray":
            self._workers: list[Any] = [_Actor(make, resources or {}) for _ in range(count)]
        else:
            self._workers = [_Process(make) for _ in range(count)]
        about = self._each([(_about,)] * count)
        if about != about[:1] * count:
            names = " and ".join(sorted({str(one[0]) for one in about}))
            raise ValueError(f"make must return equal engines; got {names}")
        self.name, self.rounding, self.invariant, self.longest = about[0]

    def scores(self, adapters: Sequence[Adapter], records: Sequence[Any]) -> Array:
        shares = np.array_split(np.arange(len(records)), min(len(self._workers), len(records)))
        sent = _sent(adapters)
        work = [(_scores, sent, [records[row] for row in share]) for share in shares]
        return np.concatenate(self._each(work), axis=1)

    def parts(self) -> Sequence[Engine]:
        return [_Part(self, number) for number in range(len(self._workers))]

    def processes(self) -> list[int]:
        """Return the process id of each engine, on the machine on which the engine runs."""
        return self._each([(_process,)] * len(self._workers))

    def close(self) -> None:
        """End the processes of all engines."""
        for worker in self._workers:
            worker.stop()

    def _each(self, work: Sequence[tuple[Any, ...]], first: int = 0) -> list[Any]:
        # Entry i of `work` is a tuple (function, *arguments). Returns a list of function(engine, *arguments), computed
        # side by side, entry i by worker first + i. A new worker takes over the work of one that dies. Raises
        # EngineError if three workers in a row die of the same work.
        workers = self._workers[first : first + len(work)]
        pending = [worker.submit(*each) for worker, each in zip(workers, work, strict=True)]
        found = []
        for worker, future, each in zip(workers, pending, work, strict=True):
            for deaths in range(1, _MOST_DEATHS + 1):
                try:
                    found.append(future.result())
                    break
                except worker.died as error:
                    if deaths == _MOST_DEATHS:
                        raise EngineError(f"an engine has died {deaths} times at the same records") from error
                    worker.stop()
                    worker.start()
                    future = worker.submit(*each)
        return found


# One of the engines of a `SpreadEngine`: that of the worker with the index `number`
class _Part(Engine):
    def __init__(self, whole: SpreadEngine, number: int) -> None:
        self._whole, self._number = whole, number
        self.name, self.rounding = whole.name, whole.rounding
        self.invariant, self.longest = whole.invariant, whole.longest

    def scores(self, adapters: Sequence[Adapter], records: Sequence[Any]) -> Array:
        (found,) = self._whole._each([(_scores, _sent(adapters), list(records))], self._number)
        scores: Array = found
        return scores


def _sent(adapters: Sequence[Adapter]) -> list[dict[str, Any]]:
    # Sent as arrays, since torch would send a tensor as a handle of memory that ends with this process. Numpy has no
    # bfloat16, so arrays are float32 or wider.
    return [
        {name: p.to(torch.promote_types(p.dtype, torch.float32)).numpy(force=True) for name, p in adapter.items()}
        for adapter in adapters
    ]


def _scores(engine: Engine, adapters: Any, records: Sequence[Any]) -> Array:
    # The arrays that Ray hands over are read-only, so they are copied.
    return engine.scores([{name: torch.tensor(value) for name, value in one.items()} for one in adapters], records)


def _process(engine: Engine) -> int:
    return os.getpid()


def _about(engine: Engine) -> tuple[str, float, bool, int]:
    return engine.name, engine.rounding, engine.invariant, engine.longest


# A worker: a process of this machine, in which make() makes an engine when the first work comes. `submit` returns a
# future with the result of work(engine, *arguments). The future raises an exception of the types `died` if the process
# has died or its engine can evaluate nothing more.
class _Process:
    died = (BrokenProcessPool, EngineError)

    def __init__(self, make: Callable[[], Engine]) -> None:
        self._make = pickle.dumps(make)
        self.start()

    def start(self) -> None:
        context = get_context("forkserver")
        context.set_forkserver_preload([__name__])  # a process that is started again has torch at once
        self._pool = ProcessPoolExecutor(1, context)

    def submit(self, work: Callable[..., Any], *arguments: Any) -> "Future[Any]":
        try:
            return self._pool.submit(_with_held, self._make, work, *arguments)
        except BrokenProcessPool as error:  # the process has died since its last work
            found: Future[Any] = Future()
            found.set_exception(error)
            return found

    def stop(self) -> None:
        self._pool.shutdown()


def _with_held(make: bytes, work: Callable[..., Any], *arguments: Any) -> Any:
    # Makes the engine of this process by `make`, a pickled function, when the first work comes
    if not _HELD:
        _HELD.append(pickle.loads(make)())
    return work(_HELD[0], *arguments)


# A worker as `_Process`, but in an actor of Ray with the options `resources`
class _Actor:
    def __init__(self, make: Callable[[], Engine], resources: dict[str, Any]) -> None:
        try:
            import ray
        except ImportError as error:
            raise ValueError("under='ray' needs Ray: pip install 'dpzero-theory[ray]'") from error
        if not ray.is_initialized():
            os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
            ray.init(include_dashboard=False, log_to_driver=False, configure_logging=False)
        self.died = (ray.exceptions.RayActorError, EngineError)
        self._make, self._kind = pickle.dumps(make), ray.remote(_Holder).options(**resources)
        self.start()

    def start(self) -> None:
        self._actor = self._kind.remote()

    def submit(self, work: Callable[..., Any], *arguments: Any) -> "Future[Any]":
        found: Future[Any] = self._actor.do.remote(self._make, work, *arguments).future()
        return found

    def stop(self) -> None:
        import ray

        ray.kill(self._actor)


class _Holder:
    # An object of this class lives in a process that Ray started, and does there what `_Actor.submit` asks for.

    def do(self, make: bytes, work: Callable[..., Any], *arguments: Any) -> Any:
        try:
            return _with_held(make, work, *arguments)
        except EngineError:
            os._exit(1)  # Ray cannot return an EngineError, which is no Exception, so the actor ends
