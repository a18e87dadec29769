"""DPZero, DPGD-0th and MeZO: the library's optimizer on a language model."""

import io
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn

from benchmarks.kit.rows import write_atomically
from benchmarks.llm.configuration import Configuration
from benchmarks.llm.privacy import Privacy
from benchmarks.llm.prompts import Example
from benchmarks.llm.scoring import Scorer
from dpzero_theory.optim.files.transcript import RUN
from dpzero_theory.optim.plan import Plan
from dpzero_theory.optim.private import make_from_seed_not_private, make_private_with_epsilon
from dpzero_theory.optim.run import Run
from dpzero_theory.privacy.accountant import epsilon_of_history

CHECKPOINT = "checkpoint.pt"
EVERY = 50


def start(
    module: nn.Module, scorer: Scorer, train: Sequence[Example], configuration: Configuration, folder: Path
) -> Run:
    """Start a zeroth-order run of the configuration's method; if `folder` holds the run, resume it, from its checkpoint
    if there is one.

    module: the model, whose trainable weights are trained. scorer: gives each record's loss. train: the training
    records as token ids. folder: where the run keeps its ledger, transcript and checkpoint.

    Raises what `make_private_with_epsilon` raises.
    """
    run = _made(module, scorer, train, configuration, folder)
    if (folder / CHECKPOINT).exists():
        run.load_state_dict(torch.load(folder / CHECKPOINT, weights_only=True))
    return run


def save(run: Run, step: int, folder: Path) -> None:
    """Save a checkpoint of the run in `folder` if its releases are vectors (DPGD-0th), which no transcript replays; do
    nothing for other methods. It is to be called after each step, with the number `step` of steps made.

    Checkpoints are saved after the first step, after every `EVERY` steps and after the last. Steps that an interruption
    undoes stay paid for.
    """
    if not run.plan.scalars and (step == 1 or step % EVERY == 0 or not run.releases_left):
        buffer = io.BytesIO()
        torch.save(run.state_dict(), buffer)
        write_atomically(folder / CHECKPOINT, buffer.getvalue())


def _made(
    module: nn.Module, scorer: Scorer, train: Sequence[Example], configuration: Configuration, folder: Path
) -> Run:
    c = configuration
    settings: dict[str, Any] = {
        "steps": c.steps,
        "expected_batch": float(c.batch),
        "step_size": _step_sizes(c),
        "smoothing": c.smoothing,
        "sampling": c.sampling,
        "direction": c.directions_kind,
        "directions_per_step": c.directions_per_step,
    }
    execution: dict[str, Any] = {
        "folder": folder,
        "precision": "nearest" if c.dtype == "float32" else "master",
        "micro_batch": len(train),  # one micro-batch: the scorer itself puts `rows` records through the model at a time
        "collate": list,
        "resume": (folder / RUN).exists(),
    }
    if not c.private:
        plan = Plan.without_privacy(n=len(train), **settings)
        return make_from_seed_not_private(module, scorer.losses, train, plan, seed=c.seed, **execution)
    return make_private_with_epsilon(
        module,
        scorer.losses,
        train,
        target_epsilon=c.epsilon,
        target_delta=c.delta,
        clip=c.clip,
        relation=c.relation,
        algorithm=c.method,
        **settings,
        **execution,
    )


def privacy_of(run: Run, delta: float) -> Privacy:
    """Return the (epsilon, delta) that the releases of the run so far cost at the given delta."""
    plan = run.plan
    what = "clipped scalars" if plan.scalars else "clipped vectors along the direction"
    how = f"discrete Gaussian noise from the operating system on an integer sum of {what}; its lattice is accounted for"
    return Privacy(
        epsilon_of_history(run.history, delta).lower,
        run.get_epsilon(delta),
        delta,
        plan.relation,
        plan.sampling.word,
        plan.n,
        round(plan.expected_batch),
        sum(unit.steps for unit in run.history),
        plan.noise_multiplier,
        plan.clip,
        how,
    )


def _step_sizes(c: Configuration) -> float | Callable[[int], float]:
    if c.schedule == "constant":
        return c.step_size
    return lambda step: c.step_size * (1 - step / c.steps)
