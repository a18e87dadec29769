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

- (target_epsilon, target_delta)-DP for all releases, exactly: integers with discrete noise from the operating system
  (`privacy.discrete`; noise="laplace": target_epsilon-DP, `privacy.laplace`), K a step, or d for dpgd-0th;
- n = len(data) and the denominator q n are public numbers, the same for both neighbours of `add-remove`.

The losses must give record i a number that depends on record i alone, which is what bounds its share of a release.
Modules are evaluated in eval mode, so that batch normalisation does not mix records and dropout does not disturb the
difference. The start looks whether it is so, as far as it can be seen (`isolation`), and refuses what mixes records.
The last bits of a loss may still depend on the other records of a micro-batch, by way of shapes; with
isolation="exact" they do not, by fixed shapes whose kernels the start tests. The transcript says which it was.
"""

import os
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple, TypedDict, Unpack

from torch import nn
from torch.utils.data import default_collate

from dpzero_theory.check import choice, integer, settings, shown
from dpzero_theory.optim.files.folder import Budget, Folder, begun_with, require_new, resolved
from dpzero_theory.optim.files.transcript import Header
from dpzero_theory.optim.losses.evaluation import Losses
from dpzero_theory.optim.losses.identity import layout, new_key, of_losses, of_records
from dpzero_theory.optim.losses.isolation import ISOLATIONS, examine
from dpzero_theory.optim.losses.records import Collate, Data, require_data
from dpzero_theory.optim.losses.starting import public_clip
from dpzero_theory.optim.plan import Plan, Target
from dpzero_theory.optim.run import Run
from dpzero_theory.optim.step.distributed import Ranks
from dpzero_theory.optim.step.sampler import Batches, BatchesFromSeedNotPrivate
from dpzero_theory.privacy.noise import NoiseSource, SeededNoise, SystemNoise

Place = str | os.PathLike[str]
_KEY = 16


class Execution(TypedDict, total=False):
    """How a run is executed, which changes neither its plan nor its privacy.

    precision: how weights are rounded, see `module.Weights`; `nearest` if not given. micro_batch: records evaluated at
    a time (64); changes memory and speed. points_at_once: points x +- lambda u_k evaluated in one pass (1, at most
    2 K), see `stacked`; changes memory, speed and rounding. collate: records -> batch; torch's default_collate if None.
    resume: continue the run in the folder, which must have been begun with all of this; False refuses one that is
    there; "moved" goes on with a folder that was copied, or brought from another disk, when no other copy goes on.
    paid_at_once: releases that one line of the ledger pays for (1), with two calls to fsync for all of them: a crash
    wastes at most so many, and after a power failure the transcript may lack as many of the last (a checkpoint it never
    lacks). isolation: `probed` or `exact`, see `isolation`; `probed` if not given.
    """

    precision: str
    micro_batch: int
    points_at_once: int
    collate: Collate
    resume: bool | str
    paid_at_once: int
    isolation: str


class _Sources(NamedTuple):
    """Where the noise, the batches and the key of the directions come from."""

    noise: NoiseSource
    batches: Batches
    key: bytes


def make_private(
    module: nn.Module,
    losses: Losses,
    data: Data,
    plan: Plan,
    *,
    target_delta: float,
    folder: Place,
    target_epsilon: float | None = None,
    key: bytes | None = None,
    **execution: Unpack[Execution],
) -> Run:
    """A run of the private releases of a plan, for example of a theorem's (`Plan.from_prescription`).

    Args:
        module: its parameters with requires_grad are trained, from the values that they have. Under torchrun every
            process makes the same run, of the whole module or of one that `fully_shard` has sharded over them.
        losses: see `evaluation.Losses`.
        data: the records; their number is the plan's n.
        plan: of a private algorithm.
        target_delta: 0 < delta < 1 (Laplace: 0 is allowed).
        folder: new or empty, or with `resume` this run's; holds its ledger and its transcript, see `files.folder`.
        target_epsilon: the ledger's budget, which the plan must meet; by default what the plan costs at target_delta.
        key: of the directions, 16 bytes that are public; from the operating system if None.
        execution: see `Execution`.

    Raises:
        ValueError: an argument outside its range, a setting that is not the resumed run's, losses that are not one
            for each record, or not its own (`isolation`), parameters that they do not read.
        FileExistsError, FileNotFoundError: for the folder's files.
        LedgerError, TranscriptError: they are damaged, do not fit together, or are in use.
    """
    settings(execution, Execution.__annotations__)
    _require_folder(folder)
    require_plan(plan)
    epsilon = plan.epsilon(target_delta).upper if target_epsilon is None else target_epsilon
    if key is not None and not (isinstance(key, bytes) and len(key) == _KEY):
        raise ValueError(f"key must be {_KEY} bytes; got {key!r:.60}")
    sources = _Sources(SystemNoise(), Batches(plan.batches, plan.n), key or os.urandom(_KEY))
    budget = Budget(epsilon, target_delta, execution.get("paid_at_once", 1))
    return _make(module, losses, data, plan, sources, budget, folder, **execution)


def make_private_with_epsilon(
    module: nn.Module,
    losses: Losses,
    data: Data,
    *,
    folder: Place,
    precision: str = "nearest",
    micro_batch: int = 64,
    points_at_once: int = 1,
    collate: Collate = None,
    resume: bool | str = False,
    paid_at_once: int = 1,
    isolation: str = "probed",
    public_data: Data | None = None,
    **target: Unpack[Target],
) -> Run:
    """A run of `steps` private releases that together cost at most (target_epsilon, target_delta).

    target: what to release and at what price, the keyword arguments of `Plan.for_target` (n is len(data)):
    target_epsilon, target_delta, steps, expected_batch, clip, step_size, smoothing, relation, sampling, and if need be
    algorithm, noise, direction, directions_per_step, schedule, update, weight_decay, groups. Other arguments and errors
    as `make_private`.

    clip="public": sqrt(K) times the median of the gradient norms of the records of `public_data`, at the module's
    weights (`starting.public_clip`); that they are public is taken on trust, and refused are those that `data` holds
    too. A resumed run has the clip that it was begun with.
    """
    settings(target, [*Target.__annotations__, *Execution.__annotations__, "folder"], Target.__required_keys__)
    _require_folder(folder)
    require_module(module)
    require_data(data)
    Ranks().require_as_first("data must hold as many records", str(len(data)))
    public = isinstance(target["clip"], str) and target["clip"] == "public"
    if public and public_data is None:
        raise ValueError("public_data must be given with clip='public': records that are not private")
    if not public and public_data is not None:
        raise ValueError(f"public_data must be left out unless clip is 'public'; got clip {shown(target['clip'])}")
    if public:
        target["clip"] = 1.0
    plan = Plan.for_target(n=len(data), **target)
    if public_data is not None:
        plan = replace(plan, clip=_public_clip(module, losses, data, public_data, plan, collate, folder, resume))
    return make_private(
        module,
        losses,
        data,
        plan,
        target_epsilon=target["target_epsilon"],
        target_delta=target["target_delta"],
        folder=folder,
        precision=precision,
        micro_batch=micro_batch,
        points_at_once=points_at_once,
        collate=collate,
        resume=resume,
        paid_at_once=paid_at_once,
        isolation=isolation,
    )


def make_from_seed_not_private(
    module: nn.Module,
    losses: Losses,
    data: Data,
    plan: Plan,
    *,
    seed: int,
    folder: Place | None = None,
    **execution: Unpack[Execution],
) -> Run:
    """A reproducible run of any plan, for tests and comparisons: directions, batches and noise all come from the seed.

    It is not private, whatever the plan's noise: whoever knows the seed removes it. No ledger is kept and
    `get_epsilon` is infinity. MeZO is this with `Plan.without_privacy`. seed: in [0, 2^64). folder: None keeps no
    transcript. Other arguments and errors as `make_private`.
    """
    settings(execution, Execution.__annotations__)
    require_plan(plan)
    batches = BatchesFromSeedNotPrivate(plan.batches, plan.n, seed)
    key = integer("seed", seed, at_least=0, at_most=2**64 - 1).to_bytes(_KEY, "little")
    return _make(module, losses, data, plan, _Sources(SeededNoise(seed), batches, key), None, folder, **execution)


def _make(
    module: nn.Module,
    losses: Losses,
    data: Data,
    plan: Plan,
    sources: _Sources,
    budget: Budget | None,
    folder: Place | None,
    *,
    precision: str = "nearest",
    micro_batch: int = 64,
    points_at_once: int = 1,
    collate: Collate = None,
    resume: bool | str = False,
    paid_at_once: int = 1,
    isolation: str = "probed",
) -> Run:
    micro_batch = integer("micro_batch", micro_batch)
    points_at_once = integer("points_at_once", points_at_once, at_most=2 * plan.directions_per_step)
    choice("isolation", isolation, ISOLATIONS)
    if points_at_once > 1 and isolation == "exact":
        raise ValueError("points_at_once must be 1 where isolation is 'exact': bits go by the number of points")
    integer("paid_at_once", paid_at_once)
    require_module(module)
    if not (isinstance(resume, bool) or (isinstance(resume, str) and resume == "moved")):
        raise ValueError(f"resume must be True, False or 'moved'; got {shown(resume)}")
    require_data(data)
    for name, value in (("losses", losses), ("collate", default_collate if collate is None else collate)):
        if not callable(value):
            raise ValueError(f"{name} must be a function; got {type(value).__name__}")
    ranks = Ranks()
    ranks.require_as_first("data must hold as many records", str(len(data)))
    if len(data) != plan.n:
        raise ValueError(f"data must hold the plan's n = {plan.n} records; got {len(data)}")
    if folder is not None and not resume:
        ranks.lead(lambda: require_new(resolved(Path(folder))))
    first = ranks.lead(lambda: plan)
    ranks.every(lambda: plan.require_same(first, "rank 0"))
    ranks.require_as_first(
        "micro_batch, points_at_once and isolation must be the same", f"{micro_batch} {points_at_once} {isolation}"
    )
    ranks.share_(module)
    plan = first
    private = budget is not None
    looked = isolation if private or isolation == "exact" else ""
    header = ranks.lead(lambda: Header(plan, sources.key.hex(), "", precision, private=private, isolation=looked))
    weights = header.weights(module)
    if not plan.scalars:
        plan.rule.require_vectors(weights.d, weights.squared_norm(0), weights.directions.largest, plan.n)
    found = replace(header, losses=of_losses(losses))
    if ranks.count > 1:
        ranks.require_as_first("losses must be the same function", found.losses)
        key = ranks.lead(new_key)  # for this comparison alone: rank 0's records are compared under that of the folder
        ranks.require_as_first("data must hold the same records in the same order", of_records(data, key))
    evaluation = examine(weights, losses, data, collate, plan, ranks, micro_batch, looked, points_at_once)
    found = replace(found, fingerprint=weights.fingerprint(), layout=layout(weights))
    files: Folder | None = None

    def lead() -> Header:
        nonlocal files
        if folder is None:
            return found
        if resume:
            files = Folder.open(Path(folder), found, data, budget, moved=resume == "moved")
        else:
            files = Folder.create(Path(folder), found, data, budget)
        sources.batches.keep(files.secret)
        return files.header

    try:
        return Run(
            ranks.lead(lead),
            module,
            evaluation,
            noise=sources.noise,
            batches=sources.batches,
            ledger=files.ledger if files else None,
            transcript=files.transcript if files else None,
            kept=budget is not None,
            micro_batch=micro_batch,
            points_at_once=points_at_once,
            ranks=ranks,
        )
    except BaseException:
        if files is not None:
            files.close()
        raise


def _public_clip(
    module: nn.Module,
    losses: Losses,
    data: Data,
    public_data: Data,
    plan: Plan,
    collate: Collate,
    folder: Place,
    resume: bool | str,
) -> float:
    """What rank 0 finds, at its weights or in its folder."""
    ranks = Ranks()
    if resume:
        return ranks.lead(lambda: begun_with(Path(folder))).plan.clip
    ranks.share_(module)
    found = public_clip(
        module,
        losses,
        public_data,
        data,
        smoothing=plan.smoothing,
        directions_per_step=plan.directions_per_step,
        direction=plan.direction,
        collate=collate,
    )
    return ranks.lead(lambda: found)


def require_module(module: object) -> None:
    """Raise ValueError for what is no module."""
    if not isinstance(module, nn.Module):
        raise ValueError(f"module must be a torch.nn.Module; got {shown(module)}")


def require_plan(plan: object) -> None:
    """Raise ValueError for what is no plan."""
    if not isinstance(plan, Plan):
        raise ValueError(f"plan must be a Plan (Plan.for_target, Plan.from_prescription); got {shown(plan)}")


def _require_folder(folder: object) -> None:
    if not isinstance(folder, str | os.PathLike):
        raise ValueError(f"folder must be a path, where a private run keeps its ledger; got {shown(folder)}")
