"""Runs a training loop as often as an audit needs, in an empty folder, and keeps what it returns, prints and writes.

    train(records, seed, settings) -> what it releases

`records` are of the kind that the audit was given, `seed` is an integer, and `settings` are the claim's numbers and the
user's own settings, by the loop's names for them. The loop returns an array, the releases of shape (T,) or (T, k), or a
mapping with some of these outputs:

    releases     (T,) or (T, k), the noised average (or sum) of each step
    trajectory   (T + 1, d), the weights before and after each step; releases are then their differences over -step_size
    weights      (d,), the last weights, where nothing else is released; the audit then makes runs of one step, whose
                 release is the difference of last and first weights over -step_size. A zeroth-order loop, and one with
                 momentum, a schedule of step sizes or an adaptive method, must return its releases instead.
    seeds        (T,), the integers that made the steps' directions and are published
    batches      T lists of record numbers; the attacker never sees them
    clean        the releases before noise is added, of the same shape; the attacker never sees them
    NAME         any other output that is shown to the world, such as losses and metrics
"""

import json
import os
import pickle
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from dpzero_theory.audit.claim import Claim, View
from dpzero_theory.audit.datasets import Records
from dpzero_theory.audit.deadline import until
from dpzero_theory.audit.randomness import seeded
from dpzero_theory.audit.sources import Clock, Entropy, stopped_clocks
from dpzero_theory.audit.watch import watch, working_folder
from dpzero_theory.check import Array

Train = Callable[[Records, int, dict[str, Any]], Any]
"""A training loop, a function (records, seed, settings) -> outputs that this module's text describes."""

WORDS = ("noise_multiplier", "clip", "batch", "steps", "n", "sampling", "relation", "epsilon", "delta")
"""The fields of a loop's claim that the loop is given as settings."""
_TICK = 1e-3  # Seconds by which the clock in `Loop.clocks_that_tick` advances each time it is read
_LARGEST_STILL = 1e-4
_SMALLEST_STILL = 1e-30
"""The largest and the smallest share of the loop's step size that the function `still` uses.

It uses such shares where releases are computed from weights.
"""
_ROUNDED_WEIGHTS = 1e-9
"""The function `still` chooses the step size so that rounding matters little.

Rounding the weights to float64 changes a release by at most this share of the noise.
"""


class LoopFailed(ValueError):
    """Raised where the loop raised an error, or returned something that is no output; the message is one line."""


@dataclass(frozen=True)
class LoopOutput:
    """What one run of a training loop returned and showed.

    Attributes:
        releases: the noised average or sum of each step, of shape (T, k) for T steps of k numbers; None where the loop
            returned neither releases nor weights from which they follow.
        clean: the releases before noise, where the loop returns them.
        batches: the record numbers of each step, where the loop returns them.
        seeds: the published seeds of the steps' directions, where the loop returns them.
        shown: what the attacker sees: outputs by name, printed text under `printed`, files as bytes under `file NAME`.
    """

    releases: Array | None
    clean: Array | None = None
    batches: list[list[int]] | None = None
    seeds: list[int] | None = None
    shown: dict[str, Any] = field(default_factory=dict)


@dataclass
class Loop:
    """A training loop with what it claims; its method `run` makes every run of it.

    Attributes:
        train: the loop.
        records: the data on which `run` calls the loop if it is given no other.
        claim, view: what the loop claims, and what an attacker sees.
        settings: what the loop is given beside the claim's numbers.
        count: how many runs were made.
        one_step: whether the loop returns only its last weights, so that every run is made with steps = 1.
        from_weights: whether releases are taken from weights, because the loop returns none.
        weights_trusted: False after `weights.runs_of` has found that the weights do not move in proportion to the
            releases, as under momentum or Adam; then none are computed from weights, even with from_weights.
        entropy: what stands in for the operating system's random bytes while the audit is made; None outside of one.
        clock: what stands in for the clocks in a block of `clocks_that_tick`, in which every run begins at one time;
            None outside of one.
        deadline: the value of `deadline.now()` at which runs are interrupted by `deadline.OutOfTime`; None for never.
    """

    train: Train
    records: Records
    claim: Claim
    view: View
    settings: Mapping[str, Any]
    count: int = 0
    one_step: bool = False
    from_weights: bool = False
    weights_trusted: bool = True
    entropy: Entropy | None = None
    clock: Clock | None = None
    deadline: float | None = None
    _first: dict[int, Array] = field(default_factory=dict)

    @cached_property
    def _folder(self) -> Path:
        """The working directory of all runs; it is removed together with this object."""
        return working_folder(self)

    @contextmanager
    def clocks_that_tick(self) -> Iterator[None]:
        """A context manager in whose block every run begins at one time, and its clocks tick only when they are read.

        So a number that a run computes from the time that passes depends on nothing but what the run does.
        """
        with stopped_clocks(_TICK) as self.clock:
            try:
                yield
            finally:
                self.clock = None

    def setting(self, name: str) -> str:
        """The loop's own name for the setting that the audit calls `name`."""
        return self.view.names.get(name, name)

    @property
    def step_size(self) -> float | None:
        """The step size that the loop is given; None where its settings have none."""
        size = self.settings.get(self.setting("step_size"))
        return None if size is None else float(size)

    def run(
        self,
        records: Records | None = None,
        *,
        seed: int = 0,
        world: int | None = None,
        stream: int | None = None,
        **changes: Any,
    ) -> LoopOutput:
        """Make one run of the loop, and return what it returned and showed.

        Args:
            records: the data; the loop's own if None.
            seed: the loop's seed.
            world: the seed of the global random generators of Python, NumPy and torch; as `seed` if None.
            stream: the number of a known stream of bytes that the run reads in place of the operating system's random
                bytes; None for the system's. It needs `entropy`.
            changes: settings to replace, by the audit's names for them.

        Raises:
            LoopFailed: the loop raised an error, or returned no output.
            OutOfTime: the deadline is reached.
        """
        if self.entropy is not None:
            self.entropy.start(stream)
        returned, given, beside = self._called(
            records, seed, world, {**({"steps": 1} if self.one_step else {}), **changes}
        )
        outputs = dict(returned) if isinstance(returned, Mapping) else {"releases": returned}
        if self._only_weights(outputs):
            if not self.one_step:
                self.one_step = True
                return self.run(records, seed=seed, world=world, stream=stream, **changes)
            outputs["trajectory"] = [self._first_weights(seed), outputs["weights"]]
        return self._outcome(outputs, given, beside)

    def _called(
        self, records: Records | None, seed: int, world: int | None, changes: Mapping[str, Any]
    ) -> tuple[Any, dict[str, Any], dict[str, bytes | str]]:
        """Call the loop once; the arguments are those of `run`.

        Returns what the loop returned, the settings it was given, and what it printed and wrote to files.
        """
        self.count += 1
        if self.clock is not None:
            self.clock.start()
        given = {self.setting(word): getattr(self.claim, word) for word in WORDS}
        given |= dict(self.settings) | {self.setting(name): value for name, value in changes.items()}
        data = self.records if records is None else records
        with watch(self._folder) as seen, seeded(seed if world is None else world):
            try:
                with until(self.deadline):
                    returned = self.train(data, seed, given)
            except (Exception, SystemExit) as error:
                raise LoopFailed(f"{type(error).__name__}: {' '.join(str(error).split())[:200]}") from error
        return returned, given, seen.shown

    def _only_weights(self, outputs: Mapping[str, Any]) -> bool:
        return "weights" in outputs and not {"releases", "trajectory"} & outputs.keys() and bool(self.step_size)

    def _first_weights(self, seed: int) -> Array:
        """The weights before the first step of a run with this seed: those after a step of size 0."""
        if seed not in self._first:
            returned, _, _ = self._called(None, seed, None, {"steps": 1, "step_size": 0.0})
            self._first[seed] = _numbers("weights", returned["weights"]).ravel()
        return self._first[seed]

    def _outcome(self, outputs: Mapping[str, Any], given: Mapping[str, Any], beside: Mapping[str, Any]) -> LoopOutput:
        shown = {name: value for name, value in outputs.items() if self.view.sees(name)} | dict(beside)
        releases = outputs.get("releases")
        if releases is None and "trajectory" in outputs and self.weights_trusted:
            step = given.get(self.setting("step_size"))
            if step:
                self.from_weights = True
                releases = -np.diff(_weights(outputs["trajectory"]), axis=0) / float(step)
        batches = outputs.get("batches")
        seeds = outputs.get("seeds")
        return LoopOutput(
            None if releases is None else _rows("releases", releases),
            None if outputs.get("clean") is None else _rows("clean", outputs["clean"]),
            None if batches is None else [[int(i) for i in batch] for batch in batches],
            None if seeds is None else [int(seed) for seed in seeds],
            shown,
        )


def still(loop: Loop, outcome: LoopOutput) -> dict[str, Any] | None:
    """Returns changes of the loop's settings under which its weights stay where they are; None where none does that.

    The step size is set to 0. But where releases are computed from the weights, it is made as small as float64 allows,
    since steps that are lost to rounding would show no release. `outcome` is a run of the loop with the claimed
    settings.
    """
    if not loop.step_size or loop.one_step:
        return None
    if "trajectory" not in outcome.shown or "releases" in outcome.shown:
        return {"step_size": 0.0}
    path = np.asarray(_plain(outcome.shown["trajectory"]))
    with np.errstate(over="ignore"):
        single = path.dtype != np.float64 or np.array_equal(path, path.astype(np.float32))
    if single:
        return None
    least = float(np.abs(path[0]).max()) * 2.0**-53 / (_ROUNDED_WEIGHTS * loop.claim.noise_std())
    return {"step_size": min(max(least, loop.step_size * _SMALLEST_STILL), loop.step_size * _LARGEST_STILL)}


def command(words: Sequence[str], seconds: float = 600) -> Train:
    """Returns a training loop that runs a program, as ["python", "train.py", "{records}", "{settings}", "{out}"].

    `words` are the program and its arguments. In them {records}, {settings}, {seed} and {out} are filled in. {records}
    becomes the path of a file of `numpy.save` for an array, else of a pickle; {settings} that of a JSON file. At the
    path {out} the program writes its output, as JSON, or by `numpy.save` or `numpy.savez`, which add a suffix. The
    program runs in a folder of its own, for at most `seconds`.
    """

    def train(records: Records, seed: int, settings: dict[str, Any]) -> Any:
        with tempfile.TemporaryDirectory() as aside:
            place = Path(aside)
            data = place / ("records.npy" if isinstance(records, np.ndarray) else "records.pkl")
            if isinstance(records, np.ndarray):
                np.save(data, records)
            else:
                data.write_bytes(pickle.dumps(records))
            (place / "settings.json").write_text(json.dumps({**settings, "seed": seed}))
            known = {
                "records": str(data),
                "settings": str(place / "settings.json"),
                "seed": str(seed),
                "out": str(place / "out"),
            }
            filled = [word.format(**known) for word in words]
            here = {**os.environ, "TMPDIR": str(Path.cwd())}
            done = subprocess.run(filled, capture_output=True, text=True, timeout=seconds, check=False, env=here)
            print(done.stdout, done.stderr)
            _keep_what_is_left(place, known)
            if done.returncode:
                raise RuntimeError(f"{words[0]} ended with status {done.returncode}: {done.stderr[-200:]}")
            return _read(place / "out")

    return train


def _keep_what_is_left(place: Path, known: Mapping[str, str]) -> None:
    """Move files that the program left in its folder into the working directory, where the audit sees them.

    `place` is the program's folder. Files of the names in `known`, such as the program's inputs, stay.
    """
    mine = {known["records"], known["settings"], *(known["out"] + end for end in ("", ".npy", ".npz", ".json"))}
    for path in place.iterdir():
        if str(path) not in mine:
            shutil.move(path, Path.cwd() / path.name)


def _read(stem: Path) -> Any:
    for path in (stem, stem.with_suffix(".npy"), stem.with_suffix(".npz"), stem.with_suffix(".json")):
        if path.exists():
            start = path.read_bytes()[:2]
            if start in (b"PK", b"\x93N"):
                content = np.load(path)
                return content if isinstance(content, np.ndarray) else dict(content)
            return json.loads(path.read_text())
    raise RuntimeError("it wrote nothing to {out}")


def _plain(value: Any) -> Any:
    """Returns a tensor as a NumPy array, and a list of tensors as a list of arrays; other values as they are."""
    if isinstance(value, list | tuple):
        return [_plain(part) for part in value]
    return value.detach().cpu().numpy() if hasattr(value, "detach") else value


def _numbers(name: str, value: Any) -> Array:
    try:
        return np.asarray(_plain(value), dtype=np.float64)
    except (TypeError, ValueError):
        raise LoopFailed(f"{name} must be numbers; got {type(value).__name__}") from None


def _weights(value: Any) -> Array:
    """Returns the weights of a trajectory as an array of shape (steps + 1, d).

    `value` has, for each step, an array or a list of tensors.
    """
    if isinstance(value, list | tuple):
        value = [_numbers("trajectory", part).ravel() for part in value]
    rows = _numbers("trajectory", value)
    return rows.reshape(len(rows), -1)


def _rows(name: str, value: Any) -> Array:
    rows = _numbers(name, value)
    if rows.ndim == 0 or not rows.size:
        raise LoopFailed(f"{name} must have a row for each step; got shape {rows.shape}")
    return rows.reshape(len(rows), -1)
