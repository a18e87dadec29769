"""Start or resume a run on a torch module: a private one, or one by a function whose name says that it is not private.

`make_private_with_epsilon` guarantees the following under the stated neighbouring relation, against an adversary who
sees every file of the run's folder but `data.key`, all iterates and the code, and knows all other records.

- All releases together are (target_epsilon, target_delta)-differentially private, exactly: what is released are
  integers, and their discrete noise comes from the operating system (`privacy.mechanism`; with noise="laplace" the
  releases are target_epsilon-DP). A step releases K numbers.
- n = len(data) and q n (q: the sample rate), the denominator of every average, are public. For `add-remove` the
  neighbour with a record less counts as a data set with the same n and q n.

What bounds a record's share of a release is that its loss depends on that record alone. Modules are evaluated in eval
mode: batch normalisation then does not mix records, and dropout does not disturb the difference of two losses. Before a
run begins, `losses.isolation` refuses losses that mix records, as far as that can be seen.

A start reads every record once, for a digest, makes or opens the folder and, under torchrun, gives every process the
weights of rank 0. Steps write the folder's file and the trainable weights; modes and buffers are put back. Directions
come from a public key, batches and noise from the operating system (from the seed in `make_from_seed_not_private`), so
that the process's generators of random numbers are neither read nor seeded, except while a start tests the losses.
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
"""The length, in bytes, of the public key from which a run's directions are computed."""
_SMALL_STEP, _MOST_AT_ONCE, _LEAST_BLOCKS = 4e7, 16, 100
"""A step of fewer floating-point operations than `_SMALL_STEP`, at 2 a weight for each evaluation of a record, may be
quicker than the two waits for the disk that paying for it takes, some milliseconds. Then one payment covers up to
`_MOST_AT_ONCE` steps, but a run has at least `_LEAST_BLOCKS` payments."""


class _Execution(TypedDict, total=False):
    # How a run is executed, which changes neither its plan nor its privacy
    micro_batch: int
    points_at_once: int
    collate: Collate
    resume: bool | str
    paid_at_once: int | None
    isolation: str
    engine: Engine | str | None
    states_memory: float


class _Options(Target, _Execution, total=False):
    pass  # The keyword arguments of `make_private_with_epsilon`


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
    """Start or resume a run of private releases that together cost at most (target_epsilon, target_delta).

    The run follows the plan with the least noise for this target.

    Args:
        module: the module whose parameters with requires_grad are trained.
        losses: a function (module, batch) -> a tensor of shape (batch,), one loss for each record; None with the option
            `engine`, which evaluates them.
        data: the private records, a map-style data set. Their number is n.
        folder: the folder of the run, new or empty, or with resume=True the folder of an earlier run.
        settings: "auto" chooses every setting that is not among the options, prints on standard error how much time
            and memory the run takes and a program that repeats the choice. If all parameters of a transformers model
            have requires_grad, it takes that from all but the last normalisation and a new head: that of a model
            without output embeddings, such as a classifier, or one whose biases are all 0. Of the private records only
            their number counts; they are read to be compared with the public ones. None, the default, chooses nothing.
        public_data: public or synthetic records like the private ones, from which settings="auto" chooses in at most
            about a minute; made by `by_user` if the private ones are. It must share no record with `data`. None chooses
            what was good in earlier runs that trained such weights: adapters, a normalisation, all weights, or a head
            or small model.
        options: the settings of the plan, as `Plan.for_target` describes them, of which target_epsilon and target_delta
            must be given, and unless `settings` is "auto" also steps (or epochs), expected_batch, clip, step_size,
            smoothing, relation and sampling; and any settings of how the run is executed, as `make_private` describes
            them.

    Returns:
        The run, as `make_private` returns it. `run.run()` makes all steps that are left, and `run.get_epsilon(delta)`
        says what may be claimed.

    Raises:
        ValueError: an argument that is unknown, missing or outside its range; settings="auto" with an engine or with
            several processes; public_data without it, or that shares a record with data.
        PreconditionError: there is no least noise; see `Plan.for_target`.
        Exception: the errors of `make_private`.
    """
    _require(module, losses, data, folder, options)
    if settings is not None:
        choice("settings", settings, ("auto",))
        narrowed = narrow(module)
        try:
            options = _chosen(module, losses, data, folder, public_data, options, narrowed)
        except BaseException:
            if narrowed:
                module.requires_grad_(True)
            raise
    elif public_data is not None:
        raise ValueError("public_data must be left out without settings='auto', which reads it")
    how: Any = {name: value for name, value in options.items() if name in _Execution.__annotations__}
    target: Any = {name: value for name, value in options.items() if name not in how}
    budget = {name: target[name] for name in ("target_epsilon", "target_delta")}
    return make_private(module, losses, data, Plan.for_target(n=len(data), **target), folder=folder, **budget, **how)


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
    """Start or resume a run of the private releases of a plan, for example of a theorem's (`Plan.from_prescription`).

    Args:
        module: its parameters with requires_grad are trained, from the values that they have. Under torchrun every
            process makes the same run, of the whole module or of one that `fully_shard` has sharded over them.
        losses: a function (module, batch) -> a tensor of shape (batch,), whose entry i is the loss of record i and of
            no other record; see `losses.evaluation.Losses`. None with an `engine`.
        data: the private records, a map-style data set; their number is the plan's n.
        plan: what is released and how it moves the weights; of a private algorithm.
        target_delta: the delta that the run's cost must meet, 0 < delta < 1; with Laplace noise also 0.
        folder: a path that is new or empty, or with `resume` this run's folder. It holds what is paid for and what was
            released; see `files.folder`.
        target_epsilon: the largest epsilon > 0 that the plan may cost at target_delta; None for what the plan costs
            there.
        execution: how the run is executed, any of the following settings; where no default is named it is None.
        micro_batch: the number of records that are evaluated at a time, an integer >= 1; 64 if left out. It changes
            memory, speed and rounding.
        points_at_once: how many of a step's points (the weights x + shift u) are evaluated in one pass, an integer from
            1, the default, to their number: 2 K with central differences, K + 1 with forward ones, and K derivatives
            with exact ones. More than 1 needs low-rank directions (`weights.shifted`). It changes memory, speed and
            rounding.
        collate: a function from a list of records to the batch that `losses` takes; torch's default_collate if None.
        resume: True goes on with the run in the folder, for which plan, losses, data, target_delta, target_epsilon,
            isolation and, unless it is None, paid_at_once must be those with which the run was begun; the other
            settings may differ. False, the default, begins a run, and refuses a folder that holds one. "moved" is True
            for a folder that was copied, or brought from another disk, which is sound only if no other copy of the
            folder is ever resumed.
        paid_at_once: how many releases are paid for together, an integer m >= 1. To pay for a release is to write into
            the run's file that the release counts towards the budget, before its noise is drawn. For m releases the run
            waits twice for the disk: once for the payment and once for what was released. After a crash up to m
            releases count though they were not made; after a power failure the file may lack the last m releases (but
            none that a checkpoint has). None takes up to 16 where a step is quicker than the disk, else 1.
        isolation: how it is made sure that a record's loss depends on no other record: "probed" (the default), by tests
            of a few records at the start, or "exact", to the last bit, since every record is evaluated by itself
            (micro_batch is then 1); see `losses.isolation`. With a batch-invariant engine it is "exact" at any
            micro_batch.
        engine: evaluates the losses in place of `losses` and `collate`, which must then be None: an
            `engines.engine.Engine`, which gets lists of records as the data set returns them; or "vllm", for an engine
            of vLLM (the `vllm` extra) in this process, if the module is a causal language model of transformers with
            LoRA factors of peft (`engines.texts` describes the records). None evaluates `losses` with the module.
        states_memory: how much host memory, in GiB (2^30 bytes), may hold what frozen layers below the trained weights
            compute from each record, a number >= 0; 2 if left out. These layers then run once for each record, and
            beyond that memory once in each step (`losses.states`). 0 runs the whole module at every point. It changes
            memory, speed and rounding.

    Returns:
        The run, before its first step or resumed. A resumed run's module must have the weights with which the run
        began, or the caller loads a checkpoint with `run.load_state_dict` before the first step, which moves the
        weights to where the run was. That step raises TranscriptError for any other weights.

    Raises:
        ValueError: an argument that is unknown, missing or outside its range, a setting that is not the resumed run's,
            a plan that costs more than the target, a plan whose `shape` (how much longer directions are along some
            weights) was measured on records that are in data, a module whose weights cannot be trained
            (`weights.module.Weights`), or losses that `losses.isolation.examine` refuses: losses that are not one for
            each record, depend on other records, do not read every trained parameter, are not finite for two or more,
            and over a quarter, of up to 32 records spread over the data, do not change with the weights, or cannot be
            evaluated at several points in one pass; and bitsandbytes' 8-bit layers with a threshold for outliers.
        FileExistsError, FileNotFoundError: a new run's folder is not empty; or there is no run to resume.
        OSError: a new run's folder cannot be made.
        LedgerError: the run's file is damaged, in use or, unless `resume` is "moved", a copy.
        Exception: what the losses raise, if they raise for every record that the start tests.
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
    """Start or resume a reproducible run of any plan, whose directions, batches and noise all come from a seed.

    It is for tests and comparisons, and not private, whatever the plan's noise: whoever knows the seed removes the
    noise. It has no budget, and `get_epsilon` is infinity. With a plan from `Plan.without_privacy` the run is MeZO,
    without clip and noise.

    Args:
        module: the module whose parameters with requires_grad are trained.
        losses: a function (module, batch) -> a tensor of shape (batch,), one loss for each record; None with `engine`,
            one of the settings, which evaluates them.
        data: the records, a map-style data set.
        plan: the plan of the run, of any algorithm.
        seed: an integer in [0, 2^64).
        folder: the folder of the run, new or empty, or with resume=True the folder of an earlier run; None for no file.
        execution: settings of how the run is executed, as `make_private` describes them. With isolation="probed" the
            start tests only that `losses` gives one loss for each of a few records and reads every trained parameter.

    Returns:
        The run, before its first step or resumed.

    Raises:
        Exception: the errors of `make_private`.
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
    # `key` is the public key of the directions of a new run, 16 bytes; `budget` (epsilon, delta) is the most that a
    # private run may cost; `seed` is that of the noise and batches of a run that is not private. The other arguments
    # are those of `make_private`.
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
    elif isolation == "exact":  # A record that is evaluated alone has the same loss, to the last bit, in every batch
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
        weights.directions = header.directions  # A resumed run goes on with the key in its file
        vectors = sum(weight.numel() for weight in weights.parameters if weight.ndim < 2)
        if weights.directions.law.rank and vectors and ranks.rank == 0 and watched():
            told = (
                f"{plan.direction}: {vectors:,} of {weights.d:,} trained weights are in no matrix and get random signs"
            )
            print(told, file=sys.stderr)
        # Sampling amplifies privacy only if nobody knows the batches, so the operating system draws them. What batches
        # have in common, such as the order of an epoch, comes from the secret, so that a resumed run goes on with it.
        if seed is None:
            source: random.Random = random.SystemRandom()
            secret = files.secret if files else bytes(SECRET_BYTES)  # Only rank 0 draws batches and needs the secret
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
    # Does what settings="auto" of `make_private_with_epsilon`, whose arguments these are, says: returns all options,
    # and prints them as a program. A resumed run gets the settings in its folder, and nothing is printed. `narrowed`
    # says whether `auto.narrow` has frozen most of the module, which the program must then do too. Of the private
    # `data` only the number of records is used, and that none of them is in `public_data`.
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
            raise ValueError(f"public_data must hold no private records; got {both} that data holds too")
        micro_batch, memory = given.get("micro_batch", 64), given.get("states_memory", 2.0)
        records, asked, join, _ = _evaluated(module, public_data, losses, collate, micro_batch, memory)
        public = asked, records, join
    found, program = choose(module, len(data), given, public, narrowed=narrowed)
    if not resumed:
        more = "" if collate is None else "collate=collate, "
        call = f"run = make_private_with_epsilon(model, losses, data, {more}folder={os.fspath(folder)!r}, **private)"
        print(f"{program}{call}", file=sys.stderr)
    return {**found, **kept}


def _engine_or_losses(engine: object, losses: Losses | None, module: nn.Module, points: int) -> Losses:
    # `points` is how many points a step evaluates, for an engine of vLLM, which is made here if `engine` is "vllm".
    if engine is None:
        assert losses is not None  # `_require` has refused it
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
    # Returns the data set, losses, collate function and micro-batch with which a run evaluates its records. They are
    # the arguments, with four exceptions. If `losses` is an `Engine`, the batch is the list of the records. If
    # `collate` masks tokens at random, the data set draws masks by record and step. The outputs of frozen layers are
    # computed once for each record and kept while they fit into `states_memory` GiB (0 for never). If `data` is by
    # user, users are evaluated one by one, in parts of `micro_batch` texts, and the micro-batch returned is 1, a user.
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
    # Only public numbers decide: a step is not timed, since its time depends on the records.
    small = 2 * d * _points(plan) * plan.expected_batch < _SMALL_STEP
    return max(1, min(_MOST_AT_ONCE, plan.steps // _LEAST_BLOCKS)) if small else 1


def _same_on_every_rank(
    ranks: Ranks, data: Data, unit: str, digest: Callable[[bytes], str], losses: Losses, plan: Plan, settings: str
) -> Plan:
    # Returns rank 0's plan; raises ValueError if the arguments differ between ranks, each of which calls this with its
    # own, or if data has not n records. `unit` says what a record is, `digest(key)` digests the records under a secret
    # key, and `settings` has micro_batch, points_at_once and isolation.
    first = ranks.lead(lambda: plan)
    ranks.every(lambda: plan.require_same(first, "rank 0"))
    if len(data) != first.n:
        raise ValueError(f"data must hold the plan's n = {first.n} records; got {len(data)}")
    ranks.require_same("micro_batch, points_at_once and isolation must be the same", lambda: settings)
    ranks.require_same("losses must be the same function", lambda: of_losses(losses))
    # Ranks exchange digests under a key that nothing else uses, so that they say nothing of the records later
    secret = ranks.lead(lambda: os.urandom(SECRET_BYTES))
    ranks.require_same("data must hold the same records in the same order", lambda: unit + digest(secret))
    return first


def _require(module: object, losses: object, data: Data, folder: object, execution: Any, *plans: object) -> None:
    # `plans` is the plan alone, or empty for `make_private_with_epsilon`, which makes its plan afterwards.
    engine, collate = execution.get("engine"), execution.get("collate")
    losses = list if losses is None and engine is not None else losses  # `_engine_or_losses` looks at both
    if not isinstance(folder, str | os.PathLike):
        raise ValueError(f"folder must be a path, where a private run keeps its ledger; got {shown(folder)}")
    if not isinstance(module, nn.Module):
        raise ValueError(f"module must be a torch.nn.Module; got {shown(module)}")
    require_data(data)
    # Compared first, since plans for other n on some ranks would be refused with a message that does not name data
    Ranks().require_same("data must hold as many records", lambda: str(len(data)))
    for name, value in (("losses", losses), ("collate", default_collate if collate is None else collate)):
        if not callable(value):
            raise ValueError(f"{name} must be a function; got {type(value).__name__}")
    for plan in plans:
        if not isinstance(plan, Plan):
            raise ValueError(f"plan must be a Plan (Plan.for_target, Plan.from_prescription); got {shown(plan)}")
