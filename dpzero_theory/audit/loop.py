"""Anyone's training loop, run as often as an audit needs it: in a folder of its own, its words and files kept.

    train(records, seed, settings) -> what it releases

records: of the kind that the audit was given. seed: an integer. settings: the claim's numbers and the user's own, by
the loop's names. Returned is an array, the releases of shape (T,) or (T, k), or a mapping of outputs:

    releases     (T,) or (T, k), the noised average (or sum) of each step
    trajectory   (T + 1, d), the weights before and after each step; releases are then its differences over -step_size
    weights      (d,), the last weights, where nothing else is released: one step is looked at, its release is then
                 their difference from the first ones over -step_size
                 (of zeroth-order loops, and with momentum, a schedule or an adaptive method: return the releases)
    seeds        (T,), integers that made the steps' directions and are published
    batches      T lists of record numbers (never shown to the attacker)
    clean        as releases, before noise (never shown to the attacker)
    others       whatever else is shown: losses, metrics
"""

import json
import os
import pickle
import random
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from dpzero_theory.audit.claim import Claim, View
from dpzero_theory.audit.datasets import Records
from dpzero_theory.audit.watch import watch, working_folder
from dpzero_theory.check import Array

Train = Callable[[Records, int, dict[str, Any]], Any]

WORDS = ("noise_multiplier", "clip", "batch", "steps", "n", "sampling", "relation", "epsilon", "delta")
"""Of the claim that a loop gets as settings."""
_LARGEST_STEP, _SMALLEST_STEP = 1e-4, 1e-30
"""Of the step size, where weights are what is seen: so small that they hardly move."""
_ROUNDED = 1e-9
"""Of the noise: what rounding of weights that hardly move leaves of a release."""


class LoopFailed(ValueError):
    """The loop raised, or returned what is no outcome; one line."""


@dataclass(frozen=True)
class LoopOutput:
    """Of one run. releases: (T, k); None where neither releases nor a trajectory were returned."""

    releases: Array | None
    clean: Array | None = None
    batches: list[list[int]] | None = None
    seeds: list[int] | None = None
    shown: dict[str, Any] = field(default_factory=dict)
    """Outputs by name, and texts and files as bytes by `file NAME`, `printed`."""


@dataclass
class Loop:
    """A loop with what it claims; `run` is the only way it is called."""

    train: Train
    records: Records
    claim: Claim
    view: View
    settings: Mapping[str, Any]
    count: int = 0
    """Runs so far."""
    one_step: bool = False
    """Whether the last weights are all that is released, so that runs are made of one step."""
    from_weights: bool = False
    """Whether releases are taken from weights, as nothing else is returned."""
    weights_trusted: bool = True
    _first: dict[int, Array] = field(default_factory=dict)

    @cached_property
    def _folder(self) -> Path:
        """Of all runs, gone with the loop."""
        return working_folder(self)

    def setting(self, name: str) -> str:
        """The loop's name of our word."""
        return self.view.names.get(name, name)

    @property
    def step_size(self) -> float | None:
        """What the loop was given; None where it is not among its settings."""
        found = self.settings.get(self.setting("step_size"))
        return None if found is None else float(found)

    def run(
        self, records: Records | None = None, *, seed: int = 0, world: int | None = None, **changes: Any
    ) -> LoopOutput:
        """One run. changes: of settings, by our words. world: of the process's global generators, the seed if None.

        Raises LoopFailed.
        """
        found, given, beside = self._called(
            records, seed, world, {**({"steps": 1} if self.one_step else {}), **changes}
        )
        outputs = dict(found) if isinstance(found, Mapping) else {"releases": found}
        if self._only_weights(outputs):
            if not self.one_step:
                self.one_step = True
                return self.run(records, seed=seed, world=world, **changes)
            outputs["trajectory"] = [self._first_weights(seed), outputs["weights"]]
        return self._outcome(outputs, given, beside)

    def _called(
        self, records: Records | None, seed: int, world: int | None, changes: Mapping[str, Any]
    ) -> tuple[Any, dict[str, Any], dict[str, bytes | str]]:
        """What the loop returns, the settings that it was given, and what it showed beside."""
        self.count += 1
        given = {self.setting(word): getattr(self.claim, word) for word in WORDS}
        given |= dict(self.settings) | {self.setting(name): value for name, value in changes.items()}
        data = self.records if records is None else records
        with watch(self._folder) as seen, _seeded(seed if world is None else world):
            try:
                found = self.train(data, seed, given)
            except Exception as error:
                raise LoopFailed(f"{type(error).__name__}: {' '.join(str(error).split())[:200]}") from error
        return found, given, seen.shown

    def _only_weights(self, outputs: Mapping[str, Any]) -> bool:
        return "weights" in outputs and not {"releases", "trajectory"} & outputs.keys() and bool(self.step_size)

    def _first_weights(self, seed: int) -> Array:
        """Before the first step: after one of size 0."""
        if seed not in self._first:
            found, _, _ = self._called(None, seed, None, {"steps": 1, "step_size": 0.0})
            self._first[seed] = _numbers("weights", found["weights"]).ravel()
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
    """Changes of settings under which weights stay where they are, None where there are none.

    Where weights are what is seen they move a little, as little as float64 allows; in less nothing is left of a step.
    """
    if not loop.step_size or loop.one_step:
        return None
    if "trajectory" not in outcome.shown or "releases" in outcome.shown:
        return {"step_size": 0.0}
    path = np.asarray(_plain(outcome.shown["trajectory"]))
    if path.dtype != np.float64:
        return None
    least = float(np.abs(path[0]).max()) * 2.0**-53 / (_ROUNDED * loop.claim.noise_std())
    return {"step_size": min(max(least, loop.step_size * _SMALLEST_STEP), loop.step_size * _LARGEST_STEP)}


def command(words: Sequence[str], seconds: float = 600) -> Train:
    """A loop that is a program. Of its words {records}, {settings}, {seed} and {out} are filled in.

    records: a file of `numpy.save` for an array, else a pickle. settings: a JSON file. out: where it writes the
    outcome, as JSON, or by `numpy.save` or `numpy.savez` (whose suffix is added). It runs in a folder of its own.
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
    """Files that the program wrote beside its records and its outcome are files that it left."""
    mine = {known["records"], known["settings"], *(known["out"] + end for end in ("", ".npy", ".npz", ".json"))}
    for path in place.iterdir():
        if str(path) not in mine:
            shutil.move(path, Path.cwd() / path.name)


def _read(stem: Path) -> Any:
    for path in (stem, stem.with_suffix(".npy"), stem.with_suffix(".npz"), stem.with_suffix(".json")):
        if path.exists():
            start = path.read_bytes()[:2]
            if start in (b"PK", b"\x93N"):
                found = np.load(path)
                return found if isinstance(found, np.ndarray) else dict(found)
            return json.loads(path.read_text())
    raise RuntimeError("it wrote nothing to {out}")


def _plain(value: Any) -> Any:
    """A tensor, or a list of tensors, as arrays."""
    if isinstance(value, list | tuple):
        return [_plain(part) for part in value]
    return value.detach().cpu().numpy() if hasattr(value, "detach") else value


def _numbers(name: str, value: Any) -> Array:
    try:
        return np.asarray(_plain(value), dtype=np.float64)
    except (TypeError, ValueError):
        raise LoopFailed(f"{name} must be numbers; got {type(value).__name__}") from None


def _weights(value: Any) -> Array:
    """Of shape (steps + 1, d)."""
    if isinstance(value, list | tuple):
        value = [_numbers("trajectory", part).ravel() for part in value]
    found = _numbers("trajectory", value)
    return found.reshape(len(found), -1)


def _rows(name: str, value: Any) -> Array:
    found = _numbers(name, value)
    if found.ndim == 0 or not found.size:
        raise LoopFailed(f"{name} must have a row for each step; got shape {found.shape}")
    return found.reshape(len(found), -1)


_keeping = ContextVar("_keeping", default=False)
"""Whether the global generators are kept already."""


@contextmanager
def generators_kept() -> Iterator[None]:
    """The global generators of Python, NumPy and, where it is loaded, torch, are afterwards as they were before.

    Within another such block nothing is done: what a run costs is not to be the copies of NumPy's state.
    """
    if _keeping.get():
        yield
        return
    torch = sys.modules.get("torch")
    python, legacy = random.getstate(), np.random.get_state()  # noqa: NPY002
    state = torch.get_rng_state() if torch else None
    outside = _keeping.set(True)
    try:
        yield
    finally:
        _keeping.reset(outside)
        random.setstate(python)
        np.random.set_state(legacy)  # noqa: NPY002
        if torch:
            torch.set_rng_state(state)


@contextmanager
def _seeded(world: int) -> Iterator[None]:
    """These generators, seeded; as they were afterwards."""
    with generators_kept():
        random.seed(world)
        np.random.seed(world % 2**32)  # noqa: NPY002
        if torch := sys.modules.get("torch"):
            torch.default_generator.manual_seed(world)
            if torch.cuda.is_initialized():
                torch.cuda.manual_seed_all(world)
        yield
