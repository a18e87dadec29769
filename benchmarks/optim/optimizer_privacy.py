"""The private optimizer under attack, its sensitivity, and several processes.  python -m benchmarks.optimizer_privacy
[--quick]

There is one row for each part:

- attack-private, attack-seeded: an attacker knows the weights x_t and x_{t+1} before and after a step, the public
direction, and the run's key. The attacker computes the released sum, draws noise again from the key, and subtracts it
if that helps. `measured` is the root mean square error of the clipped sum recovered in this way, in units of the
noise's standard deviation sigma. It must be 1 within 5% for a private run, and 0 for a seeded one.
- sensitivity: random pairs of neighbouring data sets have losses that contain NaN, infinities and duplicates, K from 1
to 4 directions, both relations, and lattices of 1 to 2^30 integers to a clip. `measured` is the largest change of the
integer sum between neighbours over the stated sensitivity; it must be at most 1.
- ranks-2, ranks-4: `measured` is the number of processes under torchrun that end with other weights than a single
process; it must be 0.
"""

import os
import subprocess
import sys
import time
from argparse import Namespace
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn
from torch.utils.data import TensorDataset

from benchmarks.kit.device import one_thread
from benchmarks.kit.experiment import Cell, Experiment, flag
from benchmarks.kit.rows import OK, RESULTS, read_rows
from dpzero_theory.cli import Parser, input_folder, integer
from dpzero_theory.optim.files.checkpoint import Checkpoint
from dpzero_theory.optim.plan import Plan
from dpzero_theory.optim.private import make_from_seed_not_private, make_private_with_epsilon
from dpzero_theory.optim.run import Run
from dpzero_theory.privacy.noise import SeededNoise
from dpzero_theory.privacy.relation import Relation

Array = NDArray[np.float64]

SEED, RECORDS, D = 20262, 32, 6
SETTINGS: dict[str, Any] = {
    "target_epsilon": 2.0,
    "target_delta": 1e-5,
    "expected_batch": RECORDS,
    "clip": 1.0,
    "step_size": 1e-6,
    "smoothing": 1e-3,
    "relation": "replace-one",
    "sampling": "full",
}
SPECIAL = np.array([np.nan, np.inf, -np.inf, 0.0, 1.0, -1.0, 0.6, 0.8, 1e300, -1e300, 5e-324])
LEVELS, CLIPS = (1, 2, 7, 1000, 2**30), (1e-3, 1.0, 5.0, 1e30)


def model() -> nn.Module:
    torch.manual_seed(SEED)
    return nn.Linear(D, 1, bias=False, dtype=torch.float64)


def losses(module: nn.Module, batch: Any) -> torch.Tensor:
    return nn.functional.softplus(-batch[1] * module(batch[0])[:, 0])


def data() -> TensorDataset:
    rng = np.random.default_rng(SEED)
    features = torch.tensor(rng.normal(size=(RECORDS, D)))
    return TensorDataset(features, torch.sign(features.sum(dim=1)))


def attack(run: Run, key: bytes, steps: int) -> float:
    """Let an attacker recover the clipped sum of a batch from the change of the weights, in each of `steps` steps of a
    run with one parameter, and return the root mean square error in units of the noise's standard deviation.

    There are two guesses: the released sum, and that less the noise that `key`, the run's key, would give as a seed.
    The one with the smaller error over all steps counts. The true sum is used only to compute this error. An error of 1
    means that the noise hides the sum as it should.
    """
    weight = run.weights.parameters[0]
    redrawn = SeededNoise(int.from_bytes(key, "little") % 2**64)
    errors = np.empty((2, steps))
    for t in range(steps):
        truth = run.plan.contributions(run.sums.differences(t, np.arange(RECORDS)), weight.numel())[0]
        before = weight.detach().clone()
        run.step()
        direction = torch.zeros_like(before)
        run.weights.directions.add_(direction, t, 0, run.weights.directions.factor(t, run.weights.sizes))
        along = float(((weight.detach() - before) * direction).sum() / direction.square().sum())
        released = along / (-run.plan.step_size(t) * run.plan.unit)
        errors[:, t] = released - truth, released - redrawn.discrete_gaussian(run.plan.scale) - truth
    return float(np.sqrt(np.square(errors).mean(axis=1)).min() / run.plan.scale)


def attack_private(cases: int) -> float:
    with TemporaryDirectory() as folder:
        run = make_private_with_epsilon(model(), losses, data(), **SETTINGS, steps=cases, folder=folder)
        return attack(run, bytes.fromhex(Checkpoint.of(run.state_dict()).key), cases)


def attack_seeded(cases: int) -> float:
    plan = Plan.for_target(n=RECORDS, steps=cases, **SETTINGS)
    run = make_from_seed_not_private(model(), losses, data(), plan, seed=SEED)
    return attack(run, bytes.fromhex(Checkpoint.of(run.state_dict()).key), cases)


def sensitivity(cases: int) -> float:
    """Return the largest L2 norm of the change of the released integers over the change that the plan allows, among
    `cases` random pairs of neighbouring data sets; infinity as soon as one change, compared in integers, exceeds what
    is allowed."""
    rng, worst = np.random.default_rng(SEED), 0.0
    base = Plan.for_target(n=RECORDS, steps=1, **SETTINGS)
    for _ in range(cases):
        k, clip, levels = int(rng.integers(1, 5)), float(rng.choice(CLIPS)), int(rng.choice(LEVELS))
        plan = _plan(base, k, clip, levels)
        rest = _rows(rng, int(rng.integers(0, 5)), k)
        if rng.random() < 0.5:
            rest = np.concatenate([rest, rest])
        one, other = _rows(rng, 1, k), _rows(rng, 1, k)
        relation = "replace-one" if rng.random() < 0.5 else "add-remove"
        neighbour = np.concatenate([rest, other]) if relation == "replace-one" else rest
        first, second = (plan.contributions(rows, 1) for rows in (np.concatenate([rest, one]), neighbour))
        moved = sum((int(a) - int(b)) ** 2 for a, b in zip(first, second, strict=True))
        allowed = (levels * Relation.of(relation).sensitivity) ** 2
        if moved > allowed:
            return float("inf")
        worst = max(worst, moved / allowed)
    return float(np.sqrt(worst))


def _plan(base: Plan, k: int, clip: float, levels: int) -> Plan:
    return replace(base, clip=clip, levels=levels, directions_per_step=k)


def _rows(rng: np.random.Generator, count: int, k: int) -> Array:
    scale = 10.0 ** rng.integers(-4, 3)
    plain = rng.normal(size=(count, k)) * scale
    return np.where(rng.random((count, k)) < 0.3, rng.choice(SPECIAL, size=(count, k)), plain)


def ranks(count: int) -> Callable[[int], float]:
    def differing(cases: int) -> float:
        with TemporaryDirectory() as folder:
            found = {name: _torchrun(Path(folder), name, cases) for name in (1, count)}
        return float(sum(not torch.equal(weights, found[1][0]) for weights in found[count]))

    return differing


def _torchrun(folder: Path, count: int, steps: int) -> list[torch.Tensor]:
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={count}"]
    worker = ["-m", "benchmarks.optimizer_privacy", "--worker", str(folder), str(steps)]
    subprocess.run([*launcher, *worker], check=True, env={**os.environ, "OMP_NUM_THREADS": "1"})
    return [torch.load(folder / f"{count}-{rank}.pt", weights_only=True) for rank in range(count)]


def work(folder: Path, steps: int) -> None:
    """Be one of several processes under torchrun: make a seeded run of `steps` steps of an MLP in float32, with eight
    micro-batches of four records, and save the final weights as one vector in the file SIZE-RANK.pt of `folder`, where
    SIZE is the number of processes and RANK this one's."""
    torch.set_num_threads(1)
    torch.distributed.init_process_group("gloo")
    torch.manual_seed(SEED)
    module = nn.Sequential(nn.Linear(D, 16), nn.Tanh(), nn.Linear(16, 1))
    rows = TensorDataset(*(tensor.float() for tensor in data().tensors))
    plan = Plan.for_target(n=RECORDS, steps=steps, **{**SETTINGS, "step_size": 1e-2}, directions_per_step=2)
    make_from_seed_not_private(module, losses, rows, plan, seed=SEED, micro_batch=4).run()
    flat = torch.cat([parameter.detach().flatten() for parameter in module.parameters()])
    torch.save(flat, folder / f"{torch.distributed.get_world_size()}-{torch.distributed.get_rank()}.pt")
    torch.distributed.destroy_process_group()


PARTS: dict[str, tuple[Callable[[int], float], int, float, float]] = {
    "attack-private": (attack_private, 10_000, 0.95, 1.05),
    "attack-seeded": (attack_seeded, 1_000, 0.0, 1e-4),
    "sensitivity": (sensitivity, 100_000, 0.9, 1.0),
    "ranks-2": (ranks(2), 50, 0.0, 0.0),
    "ranks-4": (ranks(4), 50, 0.0, 0.0),
}
"""For each part of the experiment: the function that measures it, the number of cases, and the lowest and highest value
that pass."""


def _check(parser: Parser, options: Namespace) -> None:
    if options.worker:
        with parser.refusals("--worker"):
            folder, steps = input_folder()(options.worker[0]), integer()(options.worker[1])
        work(folder, steps)
        parser.exit()
    one_thread(parser, options)


def _measure(options: Namespace, at: Cell) -> dict[str, Any]:
    measure, full, low, high = PARTS[at["part"]]
    started, cases = time.monotonic(), max(full // 100, 10) if options.quick else full
    measured = measure(cases)
    print(f"{at['part']}: {measured:.6g} in [{low:g}, {high:g}] over {cases} cases", flush=True)
    return {
        "cases": cases,
        "measured": measured if np.isfinite(measured) else None,
        "at_least": low,
        "at_most": high,
        "seconds": round(time.monotonic() - started, 1),
        "status": OK if options.quick or low <= measured <= high else "outside its bounds",
    }


EXPERIMENT = Experiment(
    name="optimizer_privacy",
    about=__doc__,
    flags=[
        flag("--quick", action="store_true", help="a hundredth of the cases; bounds are not judged"),
        flag("--worker", nargs=2, metavar=("FOLDER", "STEPS"), help="used by the ranks themselves"),
    ],
    folder=lambda options: (Path("out") if options.quick else RESULTS) / "optimizer_privacy",
    key=("part",),
    fields=("cases", "measured", "at_least", "at_most", "seconds"),
    seeds=(SEED,),
    settings=lambda options: {"quick": options.quick, "records": RECORDS, "d": D},
    check=_check,
    cells=lambda options: ({"part": part} for part in PARTS),
    measure=_measure,
    report=lambda options: int((read_rows(options.out, failed=True)["status"] != OK).any()),
)
