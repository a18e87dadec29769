"""Start or resume a training run of a torch module. `make_private_with_epsilon` and `make_private` make private runs.

The guarantee of `make_private_with_epsilon`: all steps of the run together are (target_epsilon, target_delta)-DP under
the stated neighbouring relation. The adversary may see every file of the run's folder except `data.key`, the weights
after every step and the code, and may know all other records. A step publishes K integers: for each of K random
directions, how fast the losses of a batch change along it, clipped for each record and summed, plus integer noise from
the operating system. So no rounding weakens the guarantee. The number n of records and the expected batch size are
public, also with the relation "add-remove", where the data set with one record less counts as having the same n.

The guarantee needs losses in which no record's loss depends on another record. The module is in eval mode while it is
evaluated, so that batch normalisation does not mix records. Before a run begins, `losses.isolation` tests some records
and refuses losses that mix them.

A start reads every record once. A step writes the run's file and the trainable weights, and nothing else. The process's
random number generators are neither used nor seeded, except while the start tests the losses.
"""

import os
import random
import sys
import warnings
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, TypedDict, Unpack

from torch import nn
from torch.utils.data import default_collate

from dpzero_theory.check import choice, integer, named, real, shown
from dpzero_theory.optim.auto import choose, narrow
from dpzero_theory.optim.engines.engine import Engine
from dpzero_theory.optim.files import transcript
from dpzero_theory.optim.files.folder import Folder, create, opened, require_new
from dpzero_theory.optim.files.transcript import Header
from dpzero_theory.optim.losses.evaluation import BatchSum, Losses
from dpzero_theory.optim.losses.identity import of_losses, of_records, shared
from dpzero_theory.optim.losses.isolation import ISOLATIONS, examine
from dpzero_theory.optim.losses.masked import Masked
from dpzero_theory.optim.losses.records import Collate, Data, DrawnData, require_data
from dpzero_theory.optim.losses.shaping import require_public
from dpzero_theory.optim.losses.states import with_states
from dpzero_theory.optim.losses.users import ByUser
from dpzero_theory.optim.plan import Plan, Target
from dpzero_theory.optim.run import Run, watched
from dpzero_theory.optim.shape import Shape
from dpzero_theory.optim.step.distributed import Ranks
from dpzero_theory.privacy.accountant import weak
from dpzero_theory.privacy.ledger import Ledger
from dpzero_theory.privacy.noise import SeededNoise, SystemNoise
from dpzero_theory.privacy.schedule import SECRET_BYTES

_Place = str | os.PathLike[str]
_KEY = 16
"""The length, in bytes, of the public key from which a run's random directions are computed."""
_SMALL_STEP, _MOST_AT_ONCE, _LEAST_BLOCKS = 4e7, 16, 100
"""When one write to disk charges several steps to the privacy budget, to save time. It does if a step takes fewer than
`_SMALL_STEP` floating-point operations (two for each trained weight and evaluation of a record's loss). Then it charges
up to `_MOST_AT_ONCE` steps, but so few that the run makes at least `_LEAST_BLOCKS` such writes."""


class _Execution(TypedDict, total=False):
    # Keyword arguments that say how a run is executed; they change neither its plan nor its privacy.
    micro_batch: int
    points_at_once: int
    collate: Collate
    resume: bool | str
    paid_at_once: int | None
    isolation: str
    engine: Engine | str | None
    states_memory: float


class _Options(Target, _Execution, total=False):
    pass  # The keyword arguments `options` of `make_private_with_epsilon`


@named
def make_private_with_epsilon(
    module: nn.Module,
    losses: Losses | None,
    data: Data,
    *,
    folder: _Place,
    settings: str | None = None,
    public_data: Data | None = None,
    **options: Unpack[_Options],
) -> Run:
    """Start or resume a private run whose steps together cost at most (target_epsilon, target_delta).

    The noise is the least that meets this target.

    Args:
        module: the module to train. Its parameters with requires_grad=True are trained.
        losses: a function that takes the module and a batch, and returns the losses of the records, shape (batch,).
            None if the option `engine` is given, which then computes the losses.
        data: the private records, a map-style data set. Its length is n, the number of records.
        folder: the folder for the run's files: new or empty, or with resume=True the folder of an earlier run.
        settings: None requires the caller to give all settings. "auto" chooses those that the caller leaves out, and
            prints to standard error the expected time and memory, and a program with the chosen values. It uses the
            number of the private records; their contents are only compared with public_data. If every parameter of a
            transformers model has requires_grad=True, "auto" sets it to False for all but the last normalisation layer
            and a new head. A head is new if the model has no output embeddings (a classifier) or all its biases are 0.
        public_data: public or synthetic records like the private ones, none of which is in `data`. settings="auto"
            tries settings on them, for about a minute at most. If `data` was made by `by_user`, public_data must be
            too. None lets "auto" take values that did well in earlier runs that trained the same kind of weights:
            adapters, a normalisation layer, all weights, or a head or small model.
        options: keyword arguments of `Plan.for_target` (target_epsilon, target_delta, sampling and so on), and of
            `make_private` that say how the run is executed (micro_batch, resume and so on). target_epsilon and
            target_delta are required. Without settings="auto", so are steps or epochs, expected_batch, clip, step_size,
            smoothing, relation and sampling.

    Returns:
        The run. `run.run()` makes all its remaining steps, and `run.get_epsilon(delta)` returns the epsilon that may be
        claimed. What `make_private` says about the weights of a resumed run holds here too.

    Raises:
        ValueError: an argument is unknown, missing or outside its range; settings="auto" is given with an engine or in
            several processes; or public_data is given without settings="auto", or shares a record with `data`.
        PreconditionError: there is no least noise, because any noise meets the target (see `Plan.for_target`).
        Exception: any exception of `make_private`.
    """
    _require(module, losses, data, folder, options)
    public = None
    if settings is not None:
        choice("settings", settings, ("auto",))
        narrowed = narrow(module)
        try:
            options, public = _chosen(module, losses, data, folder, public_data, options, narrowed)
        except BaseException:
            if narrowed:
                module.requires_grad_(True)
            raise
    elif public_data is not None:
        raise ValueError("public_data must be left out without settings='auto', which reads it")
    how: Any = {name: value for name, value in options.items() if name in _Execution.__annotations__}
    target: Any = {name: value for name, value in options.items() if name not in how}
    budget = {name: target[name] for name in ("target_epsilon", "target_delta")}
    run = make_private(module, losses, data, Plan.for_target(n=len(data), **target), folder=folder, **budget, **how)
    if public is not None:
        run.public = public.losses, public.losses()
    return run


@named
def make_private(
    module: nn.Module,
    losses: Losses | None,
    data: Data,
    plan: Plan,
    *,
    target_delta: float,
    folder: _Place,
    target_epsilon: float | None = None,
    **execution: Unpack[_Execution],
) -> Run:
    """Start or resume a private run that follows a given plan, such as the result of `Plan.from_prescription`.

    Args:
        module: the module to train. Its parameters with requires_grad=True are trained, from their present values.
            Under torchrun every process calls this function, with its copy of the whole module or with its shard of a
            module under `fully_shard`.
        losses: a function that takes the module and a batch, and returns a tensor of shape (batch,), whose entry i is
            the loss of record i and depends on no other record. None if an `engine` is given.
        data: the private records, a map-style data set of plan.n records.
        plan: the settings of the run, a `Plan` with a private algorithm.
        target_delta: the delta at which the run's cost is stated, 0 < delta < 1; with Laplace noise also 0.
        folder: the folder for the run's files: a path that is new or empty, or with `resume` the folder of this run.
        target_epsilon: the largest epsilon > 0 that the plan may cost at target_delta. None allows what the plan costs.
        execution: the keyword arguments below, which say how the run is executed. All may be left out.
        micro_batch: how many records are evaluated at a time, >= 1; by default 64. Affects memory, speed and rounding.
        points_at_once: how many of a step's points are evaluated in one forward pass, an integer >= 1; by default 1. A
            point is the weights shifted along a direction. A step with K directions has 2 K points with central
            differences, K + 1 with forward differences, and K derivatives with exact ones. More than 1 requires
            low-rank directions. It affects memory, speed and rounding.
        collate: a function that takes a list of records and returns the batch for `losses`; None, the default, means
            torch's default_collate.
        resume: False, the default, starts a run, and refuses a folder that holds one. True continues the run in the
            folder. The arguments plan, losses, data, target_delta, target_epsilon, isolation and, unless it is None,
            paid_at_once must then be the same as at the run's start. "moved" does the same for a folder that was copied
            or brought from another disk; it is only safe if no other copy of the folder is ever resumed.
        paid_at_once: how many steps are charged to the privacy budget together, an integer m >= 1. The run writes the
            charge to its file before it draws the noise of these steps, and so waits for the disk twice in m steps.
            After a crash up to m steps stay charged although they were not made; after a power failure the file may
            lack the last m steps, but none that a checkpoint includes. None, the default, means up to 16 if a step is
            faster than the disk, and otherwise 1.
        isolation: how the run ensures that a record's loss depends on no other record. "probed", the default, tests
            some records at the start. "exact" evaluates each record alone (micro_batch is then 1), so that even
            rounding does not depend on other records. With a batch-invariant engine it is "exact" at any micro_batch.
        engine: an `engines.engine.Engine`, which computes the losses from lists of the records as `data` returns them;
            or "vllm", for a vLLM engine in this process, which requires the `vllm` extra and a causal language model of
            transformers with LoRA adapters of peft. `losses` and `collate` must then be None. By default None.
        states_memory: how much host memory, in GiB, may hold the outputs of frozen layers below the trained weights, a
            number >= 0; by default 2. These layers then run once for each record in the whole run, or once in each step
            for records that do not fit. 0 runs the whole module at every point. It affects memory, speed and rounding.

    Returns:
        The run, before its first step or resumed. The module of a resumed run must have the weights with which the run
        began, or the caller must load a checkpoint by `run.load_state_dict`; with any other weights the first step
        raises TranscriptError. The first step brings the weights to where the run stopped.

    Raises:
        ValueError: an argument is unknown, missing or outside its range, or differs from the resumed run's; the plan
            costs more than target_epsilon; its `shape` was measured on records that are in `data`; the module has
            weights that cannot be trained (`weights.module.Weights`) or an 8-bit layer of bitsandbytes with a threshold
            for outliers; or the tests at the start refuse the losses (`losses.isolation.examine` says for what).
        FileExistsError: the folder of a new run is not empty.
        FileNotFoundError: there is no run to resume.
        OSError: the folder of a new run cannot be made.
        LedgerError: the run's file is damaged, in use or, unless `resume` is "moved", a copy.
        Exception: the losses raise an exception for every record that is tested at the start.
    """
    _require(module, losses, data, folder, execution, plan)
    epsilon = plan.epsilon(target_delta).upper if target_epsilon is None else target_epsilon
    if Ranks().rank == 0:
        for note in weak(epsilon, target_delta, n=plan.n):
            warnings.warn(note, stacklevel=3)
    budget = (epsilon, target_delta)
    return _make(module, losses, data, plan, folder, os.urandom(_KEY), budget=budget, **execution)


@named
def make_from_seed_not_private(
    module: nn.Module,
    losses: Losses | None,
    data: Data,
    plan: Plan,
    *,
    seed: int,
    folder: _Place | None = None,
    **execution: Unpack[_Execution],
) -> Run:
    """Start or resume a run whose directions, batches and noise are computed from a seed, which makes it not private.

    Whoever knows the seed can remove the noise, so use this for tests and comparisons. The run has no privacy budget,
    and its `get_epsilon` returns infinity. With a plan of `Plan.without_privacy` the run is MeZO.

    Args:
        module: the module to train. Its parameters with requires_grad=True are trained.
        losses: a function that takes the module and a batch, and returns the losses of the records, shape (batch,).
            None if the setting `engine` is given, which then computes the losses.
        data: the records, a map-style data set of plan.n records.
        plan: the settings of the run, with any algorithm.
        seed: an integer in [0, 2^64).
        folder: the folder for the run's files, new or empty, or with resume=True that of the run. None: no files.
        execution: micro_batch, points_at_once, collate, resume, paid_at_once, isolation, engine and states_memory, all
            optional, as in `make_private`. With isolation="probed" the start only tests that `losses` returns one loss
            for each of two records and reads every trained parameter.

    Returns:
        The run, before its first step or resumed.

    Raises:
        Exception: any exception of `make_private`.
    """
    _require(module, losses, data, "" if folder is None else folder, execution, plan)
    key = integer("seed", seed, at_least=0, at_most=2**64 - 1).to_bytes(_KEY, "little")
    return _make(module, losses, data, plan, folder, key, seed=int(seed), **execution)


def _make(
    module: nn.Module,
    losses: Losses | None,
    data: Data,
    plan: Plan,
    folder: _Place | None,
    key: bytes,
    *,
    budget: tuple[float, float] | None = None,
    seed: int | None = None,
    micro_batch: int = 64,
    points_at_once: int = 1,
    collate: Collate = None,
    resume: bool | str = False,
    paid_at_once: int | None = None,
    isolation: str = "probed",
    engine: Engine | str | None = None,
    states_memory: float = 2.0,
) -> Run:
    # `key` has the 16 bytes from which a new run computes its directions. `budget` is the (epsilon, delta) that a
    # private run may cost, and None for a run that is not private. `seed` then determines its noise and its batches.
    # The other arguments are those of `make_private`.
    micro_batch = integer("micro_batch", micro_batch)
    at_once = integer("points_at_once", points_at_once, at_most=_points(plan))
    choice("isolation", isolation, ISOLATIONS)
    states_memory = real("states_memory", states_memory, at_least=0)
    if paid_at_once is not None:
        integer("paid_at_once", paid_at_once)
    if not (isinstance(resume, bool) or (isinstance(resume, str) and resume == "moved")):
        raise ValueError(f"resume must be True, False or 'moved'; got {shown(resume)}")
    if resume and folder is None:
        raise ValueError("resume must be False without a folder; got no folder")
    ranks = Ranks()
    if folder is not None and not resume:
        ranks.lead(lambda: require_new(Path(folder)))
    losses = _engine_or_losses(engine, losses, module, _points(plan))
    unit, digest = data.unit if isinstance(data, ByUser) else "", partial(of_records, data)
    same = f"{micro_batch} {at_once} {isolation}"
    plan = _same_on_every_rank(ranks, data, unit, digest, losses, plan, same)
    if plan.shape and not resume:
        ranks.every(lambda: require_public(Shape(plan.shape, plan.direction), data))
    ranks.share_(module)
    read, losses, collate, micro_batch = _evaluated(module, data, losses, collate, micro_batch, states_memory)
    private = budget is not None
    if isinstance(losses, Engine) and losses.invariant:
        isolation = "exact"
    elif isolation == "exact":  # Evaluated alone, a record has the same loss, to the last bit, whatever its batch
        micro_batch = 1
    isolation = isolation if private or isolation == "exact" else ""
    header = Header(plan, ranks.lead(key.hex), "", private=private, isolation=isolation, unit=unit)
    weights = header.weights(module)
    if unit and weights.collective:
        raise ValueError("data must not be by user where forwards need all ranks: users have unequal numbers of them")
    evaluation = examine(weights, losses, read, collate, plan, ranks, micro_batch, at_once, probe=isolation != "")
    header = replace(header, losses=of_losses(losses), fingerprint=weights.fingerprint())
    files: Folder | None = None  # Only rank 0 opens files

    def open_folder() -> Header:
        nonlocal files
        if folder is None:
            files = Folder(header, Ledger.for_records(None, header.to_json()), key)
        elif resume:
            files = opened(Path(folder), header, digest, budget, paid_at_once, moved=resume == "moved")
        else:
            files = create(Path(folder), header, digest, budget, paid_at_once or _default_paid_at_once(plan, weights.d))
        return files.header

    try:
        header = ranks.lead(open_folder)
        weights.directions = header.directions  # A resumed run takes the key of the directions from its file
        vectors = sum(weight.numel() for weight in weights.parameters if weight.ndim < 2)
        if weights.directions.law.rank and vectors and ranks.rank == 0 and watched():
            told = (
                f"{plan.direction}: {vectors:,} of {weights.d:,} trained weights are in no matrix and get random signs"
            )
            print(told, file=sys.stderr)
        # The accounting assumes that nobody knows the batches, so the operating system draws them. What several batches
        # share, such as the order of an epoch, is computed from `secret`, so that a resumed run can continue it.
        if seed is None:
            source: random.Random = random.SystemRandom()
            secret = files.secret if files else bytes(SECRET_BYTES)  # Only rank 0, which has `files`, draws batches
        else:
            source, secret = random.Random(seed), seed.to_bytes(SECRET_BYTES, "little")
        batches = plan.sampling.drawer(source, secret, plan.n)
        drawn = ranks.lead(lambda: secret) if isinstance(read, DrawnData) else b""
        sums = BatchSum(header.plan, weights, evaluation, ranks, micro_batch, at_once, drawn)
        noise = SystemNoise() if seed is None else SeededNoise(seed)
        file = files.file if files else None
        return Run(header, weights, sums, noise=noise, batches=batches, file=file, ranks=ranks)
    except BaseException:
        if files is not None:
            files.file.close()
        raise


def _chosen(
    module: nn.Module, losses: Any, data: Data, folder: _Place, public_data: Data | None, options: Any, narrowed: bool
) -> Any:
    # Implements settings="auto" of `make_private_with_epsilon`: returns `options` with the chosen settings added, and
    # what has measured the public records (None without them); prints a program that makes the run with the settings. A
    # resumed run takes them from its folder, and prints nothing. `narrowed` says whether `auto.narrow` has frozen most
    # of the module; the program then freezes it too.
    # The private `data` is used only for its length, and to check that no record is also in `public_data`.
    if options.get("engine") is not None or Ranks().count > 1:
        raise ValueError("settings must be given with an engine and with several processes; got 'auto'")
    collate, resumed = options.get("collate"), bool(options.get("resume"))
    kept = {name: options[name] for name in ("collate", "resume") if name in options}
    given = {name: value for name, value in options.items() if name not in (*kept, "engine")}
    if resumed:
        plan = transcript.read(folder).header.plan
        begun = {**plan.settings, "expected_batch": plan.expected_batch, "step_size": plan.step_size}
        given = {name: value for name, value in begun.items() if name in Target.__annotations__} | given
        given.pop("epochs", None)
    public = None
    if public_data is not None:
        require_data(public_data, "public_data")
        own, others = (each.texts if isinstance(each, ByUser) else each for each in (data, public_data))
        if both := shared(own, others):
            got = f"{len(both)} that data holds too, at {both[:5]} of public_data: leave them out"
            raise ValueError(f"public_data must hold no private records; got {got}")
        micro_batch, memory = given.get("micro_batch", 64), given.get("states_memory", 2.0)
        records, asked, join, _ = _evaluated(module, public_data, losses, collate, micro_batch, memory)
        public = asked, records, join
    if public and not (resumed or watched()):  # A terminal or a notebook shows a bar
        print(f"# choosing settings from {len(records):,} public records", file=sys.stderr, flush=True)
    found, program, seen = choose(module, len(data), given, public, narrowed=narrowed)
    if not resumed:
        more = "" if collate is None else "collate=collate, "
        call = f"run = make_private_with_epsilon(model, losses, data, {more}folder={os.fspath(folder)!r}, **private)"
        if Path(folder).name == transcript.OF_TRAINER:
            call = "# and give the trainer private=private"
        print(f"{program}{call}", file=sys.stderr)
    return {**found, **kept}, seen


def _engine_or_losses(engine: object, losses: Losses | None, module: nn.Module, points: int) -> Losses:
    # Returns what computes the losses. `points` is the number of shifted weights that a step evaluates.
    if engine is None:
        assert losses is not None  # `_require` has refused None here
        return losses
    if losses is not None:
        raise ValueError(f"losses must be None with an engine, which evaluates them; got {type(losses).__name__}")
    if isinstance(engine, Engine):
        return engine
    choice("engine, if it is no Engine,", engine, ("vllm",))
    from dpzero_theory.optim.engines.vllm import VLLMEngine

    return VLLMEngine.of(module, points)


def _evaluated(
    module: nn.Module, data: Data, losses: Losses, collate: Collate, micro_batch: int, states_memory: float
) -> tuple[Data, Losses, Collate, int]:
    # Returns the data set, losses, collate function and micro-batch size with which a run evaluates its records: the
    # arguments, but wrapped in four cases. An `Engine` gets the list of the records as its batch. If `collate` masks
    # tokens at random, the data set draws a record's mask in each step. Outputs of frozen layers are computed once for
    # each record, and kept while they fit into `states_memory` GiB (0: never kept). If a record is a user with many
    # texts (`ByUser`), the micro-batch is one user, whose texts are evaluated `micro_batch` at a time.
    users = data if isinstance(data, ByUser) else None
    if isinstance(losses, Engine):
        if collate is not None or users is not None:
            raise ValueError("collate must be None, and data not by user, with an engine, which gets lists of records")
        collate = list
    if Masked.by(collate):
        masked = Masked(data if users is None else users.texts, collate)
        data, collate = masked, masked.collate
        users = None if users is None else users.over(masked)
    if not isinstance(losses, Engine):
        losses, collate = with_states(module, losses, data if users is None else users.texts, collate, states_memory)
    if users is None:
        return data, losses, collate, micro_batch
    return users, users.losses(losses), users.collate(collate, micro_batch), 1


def _points(plan: Plan) -> int:
    return len(plan.difference_rule.at(range(plan.directions_per_step), plan.smoothing))


def _default_paid_at_once(plan: Plan, d: int) -> int:
    # How many steps are charged together, by public numbers alone: a step's time would depend on private records.
    small = 2 * d * _points(plan) * plan.expected_batch < _SMALL_STEP
    return max(1, min(_MOST_AT_ONCE, plan.steps // _LEAST_BLOCKS)) if small else 1


def _same_on_every_rank(
    ranks: Ranks, data: Data, unit: str, digest: Callable[[bytes], str], losses: Losses, plan: Plan, settings: str
) -> Plan:
    # Every rank calls this with its own arguments. Returns rank 0's plan, or raises ValueError if the arguments differ
    # between ranks or `data` does not have n records. `unit` says whether a record is a user, `digest(key)` returns a
    # keyed digest of all records, and `settings` is a text with micro_batch, points_at_once and isolation.
    first = ranks.lead(lambda: plan)
    ranks.every(lambda: plan.require_same(first, "rank 0"))
    if len(data) != first.n:
        raise ValueError(f"data must hold the plan's n = {first.n} records; got {len(data)}")
    ranks.require_same("micro_batch, points_at_once and isolation must be the same", lambda: settings)
    ranks.require_same("losses must be the same function", lambda: of_losses(losses))
    # The digests that ranks exchange use a key of their own, so that they reveal nothing about the records later
    secret = ranks.lead(lambda: os.urandom(SECRET_BYTES))
    ranks.require_same("data must hold the same records in the same order", lambda: unit + digest(secret))
    return first


def _require(module: object, losses: object, data: Data, folder: object, execution: Any, *plans: object) -> None:
    # Checks the arguments that the functions of this module share. `plans` is empty or holds the plan.
    engine, collate = execution.get("engine"), execution.get("collate")
    losses = list if losses is None and engine is not None else losses  # `_engine_or_losses` checks the two
    if not isinstance(folder, str | os.PathLike):
        raise ValueError(f"folder must be a path, where a private run keeps its ledger; got {shown(folder)}")
    if not isinstance(module, nn.Module):
        raise ValueError(f"module must be a torch.nn.Module; got {shown(module)}")
    require_data(data)
    # Compared first: ranks with different numbers of records have different plans, and that message would not name data
    Ranks().require_same("data must hold as many records", lambda: str(len(data)))
    for name, value in (("losses", losses), ("collate", default_collate if collate is None else collate)):
        if not callable(value):
            raise ValueError(f"{name} must be a function; got {type(value).__name__}")
    for plan in plans:
        if not isinstance(plan, Plan):
            raise ValueError(f"plan must be a Plan (Plan.for_target, Plan.from_prescription); got {shown(plan)}")
