"""Every loop of the zoo: a sound loop of `loops` in which a line or two are others, its claim, and what must find it.

`loops.toml` has a table for each loop. A line of its `change` stands in the faulty loop in place of the line that
assigns to the same names. Most of these faults have been seen in published code, or were thought of by people who
wrote loops from the tutorial alone, before the checks were known to them.
"""

import hashlib
import inspect
import json
import logging
import math
import random
import sqlite3
import sys
import time
import tomllib
import warnings
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.zoo import loops
from benchmarks.zoo.loops import descent, listed, tensors, tree, whole, zeroth
from dpzero_theory.audit.claim import Claim, View
from dpzero_theory.privacy.accountant import epsilon_of_history
from dpzero_theory.privacy.step import step_of

N, D, SEED = 48, 5, 3
BASES: dict[str, Callable[..., Any]] = {base.__name__: base for base in (descent, listed, whole, zeroth, tensors, tree)}
_PUBLIC = ("listed", "whole", "tensors", "tree")  # Bases whose noise and batches do not come from their seed
_SUMS = {"sampling": "full", "noise": 8.0, "steps": 8, "average": "sum"}  # What bases on all records claim
_MODULES = (hashlib, json, logging, math, random, sqlite3, sys, time, warnings, zlib)
_WORDS = {
    **vars(loops),
    **{module.__name__: module for module in _MODULES},
    "Path": Path,
    "D": D,
    "POOL": np.random.default_rng(8).normal(size=4096),  # A table of noise, for the loop that takes its noise from one
}
"""What a changed line may use beside the names of the loop."""


@cache
def records(n: int = N, repeat: int = 0) -> NDArray[np.float64]:
    """Return n random records, shape (n, D + 1), each a row of D standard normal features and a label of -1 or +1.

    Each value of `repeat` gives a different draw, always the same.
    """
    found = np.random.default_rng(SEED + repeat).normal(size=(n, D + 1))
    found[:, -1] = np.sign(found[:, -1])
    return found


def claim(
    sampling: str = "poisson",
    relation: str = "add-remove",
    noise: float = 2.0,
    steps: int = 12,
    batch: float = 12,
    n: int = N,
    clip: float = 1.0,
    average: str = "mean",
    delta: float = 1e-5,
    accounted: Mapping[str, Any] | None = None,
    less: float = 1.0,
) -> Claim:
    """Return a claim whose epsilon is the accountant's upper bound, raised by a millionth for rounding.

    Args:
        sampling, relation, steps, batch, n, clip, average, delta: as for `Claim`.
        noise: the noise multiplier.
        accounted: noise, steps, relation and delta that were given to the accountant if they are not the loop's.
        less: a factor for epsilon.
    """
    batch = n if sampling == "full" else batch
    told = {"noise": noise, "steps": steps, "relation": relation, "delta": delta, **(accounted or {})}
    return Claim(
        epsilon=_epsilon(told["noise"], told["steps"], sampling, told["relation"], batch / n, told["delta"]) * less,
        delta=delta,
        relation=relation,
        sampling=sampling,
        n=n,
        batch=batch,
        steps=steps,
        noise_multiplier=noise,
        clip=clip,
        average=average,
    )


@cache
def _epsilon(noise: float, steps: int, sampling: str, relation: str, rate: float, delta: float) -> float:
    release = step_of(noise, steps, sampling=sampling, relation=relation, sample_rate=rate)
    return epsilon_of_history([release], delta).upper * (1 + 1e-6)


@dataclass(frozen=True)
class Loop:
    """A loop of the zoo, and how to audit it.

    Attributes:
        name: in reports.
        says: what the fault is, or how the sound loop works.
        finds: the check that must report the loop, then others that rightly may in its place; none for a sound loop.
        base: the sound loop that is changed, a name of `BASES`.
        change: the lines that are others.
        claim: what the loop claims beside the zoo's defaults: arguments of `claim`.
        view: arguments of `View`. The seed is secret if left out, except for bases that draw from the system alone.
        settings: what the loop is given beside the claim's numbers.
        variations: further settings under which the claim must hold, by a name.
        runs: about how many runs a check's statistic may use.
    """

    name: str
    says: str
    finds: Sequence[str] = ()
    base: str = "descent"
    change: Sequence[str] = ()
    claim: Mapping[str, Any] = field(default_factory=dict)
    view: Mapping[str, Any] = field(default_factory=dict)
    settings: Mapping[str, Any] = field(default_factory=dict)
    variations: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    runs: int = 60

    @property
    def claimed(self) -> Claim:
        return claim(**{**(_SUMS if self.base in ("whole", "tensors") else {}), **self.claim})

    @property
    def viewed(self) -> View:
        given: dict[str, Any] = {"seed": "public" if self.base in _PUBLIC else "secret"}
        given |= {name: tuple(value) if isinstance(value, list) else value for name, value in self.view.items()}
        return View(**given)

    @property
    def given(self) -> dict[str, Any]:
        """The settings that the loop is given beside the claim's numbers."""
        return {"step_size": 0.1, "d": D, **self.settings}

    def train(self) -> Callable[..., Any]:
        """Return the loop: the base's source with the changed lines in place of those that assign to the same names."""
        lines, names = inspect.getsource(BASES[self.base]).splitlines(), dict(_WORDS)
        for line in self.change:
            (place,) = (k for k, old in enumerate(lines) if " = " in old and _assigned(old) == _assigned(line))
            lines[place] = lines[place][: len(lines[place]) - len(lines[place].lstrip())] + line
        exec(compile("\n".join(lines), f"<the loop {self.name}>", "exec"), names)
        made: Callable[..., Any] = names[self.base]
        return made


def _assigned(line: str) -> str:
    """Return the names to which a line assigns, without the type that may stand behind them."""
    return line.partition(" = ")[0].partition(":")[0].strip()


def _read() -> dict[str, Loop]:
    content = tomllib.loads(Path(__file__).with_name("loops.toml").read_text(encoding="utf-8"))
    return {name: Loop(name, **how) for name, how in content.items()}


LOOPS = _read()
FAULTS = {name: loop for name, loop in LOOPS.items() if loop.finds}
SOUND = {name: loop for name, loop in LOOPS.items() if not loop.finds}
