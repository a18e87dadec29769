"""Start or resume a run on a torch module, private by construction or by name not private.

    import torch
    from torch.utils.data import TensorDataset
    from dpzero_theory.optim.private import make_private_with_epsilon

    features = torch.randn(1000, 20)
    data = TensorDataset(features, (features[:, 0] > 0).long())
    model = torch.nn.Linear(20, 2)

    def losses(model, batch):
        return torch.nn.functional.cross_entropy(model(batch[0]), batch[1], reduction="none")

    run = make_private_with_epsilon(
        model, losses, data, target_epsilon=2, target_delta=1e-5, steps=100, expected_batch=200, clip=1.0,
        step_size=0.1, smoothing=1e-3, relation="add-remove", sampling="poisson", folder="run",
    )
    run.run()
    print(run.get_epsilon(1e-5))

What is guaranteed by `make_private_with_epsilon`, under the stated relation, for whoever sees the folder's files, every
iterate and the code, and knows all other records:

- DPZero: (target_epsilon, target_delta)-DP for all releases, exactly: integers with discrete noise from the
  operating system (`privacy.discrete`; noise="laplace": target_epsilon-DP, `privacy.laplace`);
- dpgd-0th: the same with continuous vector noise, of which float64 is an approximation;
- n = len(data) and the denominator q n are public numbers, the same for both neighbours of `add-remove`.

The losses must give record i a number that depends on record i alone. Modules are evaluated in eval mode, so that
batch normalisation does not mix records and dropout does not disturb the difference.
"""

import math
import os
from collections.abc import Callable, Iterable, Sequence
from fractions import Fraction
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from torch import nn
from torch.utils.data import TensorDataset, default_collate

from dpzero_theory.check import choice, integer, precondition, real
from dpzero_theory.optim.distributed import Ranks
from dpzero_theory.optim.mechanism import per_record
from dpzero_theory.optim.plan import Plan, step_sizes
from dpzero_theory.optim.run import DPZero, Fetch, Losses
from dpzero_theory.optim.sampler import Batches, BatchesFromSeedNotPrivate
from dpzero_theory.optim.transcript import Header, Transcript
from dpzero_theory.privacy.calibrate import calibrate_noise_multiplier
from dpzero_theory.privacy.discrete import calibrate_discrete, discrete_epsilon, discrete_scale
from dpzero_theory.privacy.laplace import calibrate_laplace, laplace_epsilon
from dpzero_theory.privacy.ledger import Ledger
from dpzero_theory.privacy.noise import NoiseSource, SeededNoise, SystemNoise
from dpzero_theory.privacy.releases import Accountant, certified_epsilon

__all__ = [
    "LEDGER",
    "LEVELS",
    "TRANSCRIPT",
    "Data",
    "accountant_of",
    "epsilon_of_runs",
    "make_from_seed_not_private",
    "make_mezo_not_private",
    "make_private_with_epsilon",
    "private_plan",
]

LEVELS = 2**30
"""Lattice points between 0 and the clip."""
LEDGER, TRANSCRIPT = "ledger.jsonl", "transcript.bin"
_NO_DELTA = 1e-300
_MARGIN = 1e-9  # relative, of the target: so that `get_epsilon`, computed the other way round, does not exceed it


class Data(Protocol):
    """A map-style data set."""

    def __len__(self) -> int: ...
    def __getitem__(self, index: Any, /) -> Any: ...


def private_plan(
    *,
    n: int,
    target_epsilon: float,
    target_delta: float,
    steps: int,
    expected_batch: float,
    clip: float,
    step_size: float | Callable[[int], float],
    smoothing: float,
    relation: str,
    sampling: str,
    algorithm: str = "dpzero",
    noise: str = "gaussian",
    direction: str = "rademacher",
    directions_per_step: int = 1,
) -> Plan:
    """The plan that meets the target with the least noise: arguments as `make_private_with_epsilon`, n = len(data)."""
    count = integer("n", n)
    rate = real("expected_batch", expected_batch, above=0.0, at_most=float(count)) / count
    choice("noise", noise, ("gaussian", "laplace"))
    goal = real("target_epsilon", target_epsilon, above=0.0) * (1 - _MARGIN)
    levels = scale = 0
    if noise == "laplace":
        multiplier = calibrate_laplace(
            target_epsilon=goal, steps=steps, sampling=sampling, relation=relation, sample_rate=rate
        )
        levels, scale = LEVELS, math.ceil(Fraction(multiplier) * LEVELS)
    elif algorithm == "dpzero":
        multiplier = calibrate_discrete(
            target_epsilon=goal,
            target_delta=target_delta,
            steps=steps,
            sampling=sampling,
            relation=relation,
            sample_rate=rate,
            coordinates=directions_per_step,
        )
        levels, scale = LEVELS, discrete_scale(multiplier, LEVELS)
    else:
        multiplier = calibrate_noise_multiplier(
            target_epsilon=goal,
            target_delta=target_delta,
            steps=steps,
            sampling=sampling,
            relation=relation,
            sample_rate=rate,
        ).upper
    return Plan(
        algorithm=algorithm,
        noise=noise,
        relation=relation,
        sampling=sampling,
        n=count,
        sample_rate=rate,
        steps=integer("steps", steps),
        clip=real("clip", clip, above=0.0),
        noise_multiplier=multiplier,
        levels=levels,
        scale=scale,
        smoothing=smoothing,
        step_sizes=step_sizes(step_size, steps),
        direction=direction,
        directions_per_step=directions_per_step,
    )


def make_private_with_epsilon(
    module: nn.Module,
    losses: Losses,
    data: Data,
    *,
    target_epsilon: float,
    target_delta: float,
    steps: int,
    expected_batch: float,
    clip: float,
    step_size: float | Callable[[int], float],
    smoothing: float,
    relation: str,
    sampling: str,
    folder: str | os.PathLike[str],
    algorithm: str = "dpzero",
    noise: str = "gaussian",
    direction: str = "rademacher",
    directions_per_step: int = 1,
    precision: str = "nearest",
    micro_batch: int = 64,
    collate: Callable[[Sequence[Any]], Any] | None = None,
    resume: bool = False,
) -> DPZero:
    """A run of `steps` private releases that together cost at most (target_epsilon, target_delta).

    Args:
        module: its parameters with requires_grad are trained, from the values that they have. Under torchrun every
            process makes the same run, of the whole module or of one that `fully_shard` has sharded over them.
        losses: see `dpzero.Losses`.
        data: the records; n is their number.
        target_epsilon: epsilon > 0.
        target_delta: 0 < delta < 1 (Laplace: not used, 0 is allowed).
        steps: T >= 1.
        expected_batch: q n, real for poisson, an integer for fixed-size, n for full.
        clip: C > 0, see `Plan`.
        step_size: alpha >= 0, or a function of the release's number 0..T-1. It must not depend on the records.
        smoothing: lambda > 0.
        relation: `replace-one` or `add-remove`; there is no default.
        sampling: `full`, `poisson` or `fixed-size`; there is no default.
        folder: made if it is not there; holds the ledger and the transcript of this run.
        algorithm: `dpzero` (Algorithm 2) or `dpgd-0th` (Algorithm 1: no transcript to replay).
        noise: `gaussian`, or `laplace` for pure epsilon.
        direction: `rademacher`, `sphere` or `gaussian`.
        directions_per_step: K, clipped jointly; the step is their mean.
        precision: how weights are rounded, see `module.Weights`.
        micro_batch: records evaluated at a time; changes memory and speed, not privacy.
        collate: records -> batch; torch's default_collate if None.
        resume: continue the run in `folder`, whose settings must all be these; False refuses one that is there.

    Raises:
        ValueError: an argument outside its range, a setting that is not the resumed run's, losses that are not one
            for each record, parameters that they do not read.
        FileExistsError, FileNotFoundError: for the folder's files.
        LedgerError, TranscriptError: they are damaged or in use.
    """
    plan = private_plan(
        n=len(data),
        target_epsilon=target_epsilon,
        target_delta=target_delta,
        steps=steps,
        expected_batch=expected_batch,
        clip=clip,
        step_size=step_size,
        smoothing=smoothing,
        relation=relation,
        sampling=sampling,
        algorithm=algorithm,
        noise=noise,
        direction=direction,
        directions_per_step=directions_per_step,
    )
    target = (target_epsilon, target_delta if noise == "gaussian" else max(target_delta, _NO_DELTA))
    return _make(
        module,
        losses,
        data,
        plan,
        noise=SystemNoise(),
        batches=Batches(sampling, plan.n, plan.sample_rate),
        key=os.urandom(16),
        target=target,
        folder=folder,
        precision=precision,
        micro_batch=micro_batch,
        collate=collate,
        resume=resume,
    )


def make_from_seed_not_private(
    module: nn.Module,
    losses: Losses,
    data: Data,
    plan: Plan,
    *,
    seed: int,
    folder: str | os.PathLike[str] | None = None,
    precision: str = "nearest",
    micro_batch: int = 64,
    collate: Callable[[Sequence[Any]], Any] | None = None,
    resume: bool = False,
) -> DPZero:
    """A reproducible run of any plan, for tests and comparisons: directions, batches and noise all come from the seed.

    It is not private, whatever the plan's noise: whoever knows the seed removes it. No ledger is kept and
    `get_epsilon` is infinity. seed: in [0, 2^64). folder: None keeps no transcript. Other arguments and errors as
    `make_private_with_epsilon`.
    """
    return _make(
        module,
        losses,
        data,
        plan,
        noise=SeededNoise(seed),
        batches=BatchesFromSeedNotPrivate(plan.sampling, plan.n, plan.sample_rate, seed),
        key=integer("seed", seed, at_least=0, at_most=2**64 - 1).to_bytes(16, "little"),
        target=None,
        folder=folder,
        precision=precision,
        micro_batch=micro_batch,
        collate=collate,
        resume=resume,
    )


def make_mezo_not_private(
    module: nn.Module,
    losses: Losses,
    data: Data,
    *,
    steps: int,
    expected_batch: float,
    step_size: float | Callable[[int], float],
    smoothing: float,
    sampling: str,
    seed: int,
    folder: str | os.PathLike[str] | None = None,
    direction: str = "rademacher",
    directions_per_step: int = 1,
    precision: str = "nearest",
    micro_batch: int = 64,
    collate: Callable[[Sequence[Any]], Any] | None = None,
    resume: bool = False,
) -> DPZero:
    """MeZO: the same step without clip and without noise, so without privacy. Arguments as above."""
    plan = Plan(
        algorithm="mezo",
        noise="none",
        relation="",
        sampling=sampling,
        n=len(data),
        sample_rate=real("expected_batch", expected_batch, above=0.0, at_most=float(len(data))) / len(data),
        steps=integer("steps", steps),
        clip=0.0,
        noise_multiplier=0.0,
        levels=0,
        scale=0,
        smoothing=smoothing,
        step_sizes=step_sizes(step_size, steps),
        direction=direction,
        directions_per_step=directions_per_step,
    )
    return make_from_seed_not_private(
        module,
        losses,
        data,
        plan,
        seed=seed,
        folder=folder,
        precision=precision,
        micro_batch=micro_batch,
        collate=collate,
        resume=resume,
    )


def accountant_of(plan: Plan) -> Accountant:
    """epsilon of the ledger of a run with this plan."""
    if plan.noise == "laplace":
        return laplace_epsilon
    if plan.discrete:
        return partial(discrete_epsilon, coordinates=plan.directions_per_step)
    return certified_epsilon


def epsilon_of_runs(folders: Iterable[str | os.PathLike[str]], delta: float) -> float:
    """An upper bound on epsilon of all these runs together: what a search over settings on the same data costs.

    folders: of runs with Gaussian noise and one relation, none of them open. 0 < delta < 1. Raises ValueError,
    LedgerError.
    """
    history, coordinates = [], 1
    for folder in folders:
        with Transcript.open(Path(folder, TRANSCRIPT)) as transcript:
            plan = transcript.header.plan
        choice("noise", plan.noise, ("gaussian",))
        coordinates = max(coordinates, plan.directions_per_step)
        with Ledger.open(Path(folder, LEDGER)) as ledger:
            history += ledger.history
    return discrete_epsilon(history, delta, coordinates)


def _make(
    module: nn.Module,
    losses: Losses,
    data: Data,
    plan: Plan,
    *,
    noise: NoiseSource,
    batches: Batches,
    key: bytes,
    target: tuple[float, float] | None,
    folder: str | os.PathLike[str] | None,
    precision: str,
    micro_batch: int,
    collate: Callable[[Sequence[Any]], Any] | None,
    resume: bool,
) -> DPZero:
    integer("micro_batch", micro_batch)
    if len(data) != plan.n:
        raise ValueError(f"data must hold the plan's n = {plan.n} records; got {len(data)}")
    ranks, fetch, accountant = Ranks(), _fetch(data, collate), accountant_of(plan)
    header = ranks.lead(lambda: Header(plan, key.hex(), "", precision))
    weights = header.weights(module)
    _check_losses(weights, losses, fetch, plan)
    if plan.algorithm == "dpgd-0th":
        wide = all(parameter.dtype in (torch.float32, torch.float64) for parameter in weights.parameters)
        precondition(wide and precision == "nearest", "dpgd-0th needs float32 or float64 weights, precision nearest")

    fresh = Header(plan, header.key, weights.fingerprint(), precision)

    def files() -> tuple[Header, Ledger | None, Transcript | None]:
        if folder is None:
            return fresh, None, None
        place = Path(folder)
        if resume:
            transcript = Transcript.open(place / TRANSCRIPT)
            plan.require_same(transcript.header.plan)
            choice("precision", precision, (transcript.header.precision,))
            ledger = None if target is None else Ledger.open(place / LEDGER)
            return transcript.header, ledger, transcript
        place.mkdir(parents=True, exist_ok=True)
        for name in (LEDGER, TRANSCRIPT):
            if (place / name).exists():
                raise FileExistsError(f"{place / name} is there: resume that run, or use another folder")
        ledger = None
        if target is not None:
            ledger = Ledger.create(
                place / LEDGER,
                target_epsilon=target[0],
                target_delta=target[1],
                settings=plan.settings(),
                steps=plan.steps,
                accountant=accountant,
            )
        return fresh, ledger, Transcript.create(place / TRANSCRIPT, fresh)

    opened: list[tuple[Header, Ledger | None, Transcript | None]] = []

    def lead() -> Header:
        opened.append(files())
        return opened[0][0]

    header = ranks.lead(lead)
    ledger, transcript = opened[0][1:] if opened else (None, None)
    return DPZero(
        header,
        module,
        losses,
        fetch,
        noise=noise,
        batches=batches,
        ledger=ledger,
        transcript=transcript,
        accountant=None if target is None else accountant,
        micro_batch=micro_batch,
        ranks=ranks,
    )


def _fetch(data: Data, collate: Callable[[Sequence[Any]], Any] | None) -> Fetch:
    if collate is None and isinstance(data, TensorDataset):
        return lambda records: data[torch.from_numpy(records)]
    join, many = collate or default_collate, getattr(data, "__getitems__", None)
    return lambda records: join(many(records.tolist()) if many else [data[i] for i in records.tolist()])


def _check_losses(weights: Any, losses: Losses, fetch: Fetch, plan: Plan) -> None:
    """One evaluation on two records, thrown away: a wrong shape is found before anything is paid for."""
    records = np.arange(min(2, plan.n))
    with weights.shifted(0, plan.smoothing):
        per_record(losses(weights.module, fetch(records)), len(records))
    weights.require_used()
