"""Start or resume a run on a torch module: a private one, or one by a function whose name says that it is not private.

    import torch
    from torch.utils.data import TensorDataset
    from dpzero_theory.optim.private import make_private_with_epsilon

    # the same weights and records again, should the run be resumed
    torch.manual_seed(0)
    features = torch.randn(1000, 20)
    data = TensorDataset(features, (features[:, 0] > 0).long())
    model = torch.nn.Linear(20, 2)

    def losses(model, batch):
        return torch.nn.functional.cross_entropy(
            model(batch[0]), batch[1], reduction="none"
        )

    run = make_private_with_epsilon(
        model, losses, data, target_epsilon=2, target_delta=1e-5,
        steps=100, expected_batch=200, clip=1.0, step_size=0.1, smoothing=1e-3,
        relation="add-remove", sampling="poisson", folder="run",
    )
    run.run()
    print(run.get_epsilon(1e-5))

`make_private_with_epsilon` guarantees the following under the stated relation. Its adversary sees every file of the
folder but `data.key`, all iterates and the code, and knows all other records.

- All releases together are (target_epsilon, target_delta)-differentially private, exactly: what is released are
  integers, and their discrete noise comes from the operating system (`privacy.discrete`; with noise="laplace" the
  releases are target_epsilon-DP, `privacy.laplace`). A step releases K numbers, or d of them with dpgd-0th.
- n = len(data) and q n, the denominator of every average, are public. For `add-remove` both neighbours have the same.

What bounds a record's share of a release is that its loss depends on that record alone, so the losses must be so.
Modules are evaluated in eval mode: batch normalisation then does not mix records, and dropout does not disturb the
difference of two losses. Before a run begins, `losses.isolation` looks whether the losses keep records apart, as far as
that can be seen, and refuses what mixes them. The last bits of a loss may still depend on the other records of a
micro-batch, since kernels round by shape. With isolation="exact" they do not: shapes are fixed, and the start tests
their kernels. The transcript says which of the two it was.
"""

import os
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from torch import nn
from torch.utils.data import default_collate

from dpzero_theory.check import choice, integer, named, shown
from dpzero_theory.optim.files.folder import Budget, Folder, begun_with
from dpzero_theory.optim.files.new_folder import require_new, resolved
from dpzero_theory.optim.files.replay import directions_of, weights_of
from dpzero_theory.optim.files.transcript import Header
from dpzero_theory.optim.losses.batch_sum import BatchSum
from dpzero_theory.optim.losses.evaluation import Losses
from dpzero_theory.optim.losses.identity import layout, new_key, of_losses, of_records
from dpzero_theory.optim.losses.isolation import ISOLATIONS, examine
from dpzero_theory.optim.losses.masked import Masked, masks
from dpzero_theory.optim.losses.records import Collate, Data, DrawnData, require_data
from dpzero_theory.optim.losses.starting import public_clip, starting_values
from dpzero_theory.optim.losses.users import ByUser
from dpzero_theory.optim.plan import Plan
from dpzero_theory.optim.run import Run
from dpzero_theory.optim.step.distributed import Ranks
from dpzero_theory.optim.step.sampler import Batches, BatchesFromSeedNotPrivate
from dpzero_theory.optim.step.step_sizes import StepSize
from dpzero_theory.optim.weights.groups import Given
from dpzero_theory.privacy.noise import NoiseSource, SeededNoise, SystemNoise
from dpzero_theory.privacy.sampling import Sampling
from dpzero_theory.privacy.stopping import ANY

Place = str | os.PathLike[str]
_PUBLIC = "public"
"""The value that a user gives for clip, step_size or smoothing to have it computed from public records."""
_PLACEHOLDER = 1.0
"""The number that stands in a plan for a setting that is "public", until that is computed."""
_FIELDS = {"clip": "clip", "step_size": "step_sizes", "smoothing": "smoothing"}
"""The settings that may be "public", and their names in a `Plan`."""
_KEY = 16
"""The length, in bytes, of the public key from which a run's directions are computed."""
_SMALL_STEP, _MOST_AT_ONCE, _LEAST_BLOCKS = 4e7, 16, 100
"""A step of fewer floating-point operations than the first number, at 2 a weight for each evaluation of a record, may
be quicker than the two waits for the disk that paying for it takes, some milliseconds. Then one entry of the ledger
pays for as many steps as the second number, but a run has at least as many entries as the third."""


class Execution(NamedTuple):
    """How a run is executed, which changes neither its plan nor its privacy; `make_private` describes each setting."""

    precision: str = "nearest"
    micro_batch: int = 64
    points_at_once: int = 1
    collate: Collate = None
    resume: bool | str = False
    paid_at_once: int | None = None
    isolation: str = "probed"

    def checked(self, points: int) -> "Execution":
        """Return the same settings, with integers of other libraries turned into Python's.

        points: how many points a step evaluates. Raises ValueError for a setting out of its range.
        """
        micro_batch = integer("micro_batch", self.micro_batch)
        points_at_once = integer("points_at_once", self.points_at_once, at_most=points)
        choice("isolation", self.isolation, ISOLATIONS)
        if points_at_once > 1 and self.isolation == "exact":
            raise ValueError("points_at_once must be 1 where isolation is 'exact': bits go by the number of points")
        paid_at_once = None if self.paid_at_once is None else integer("paid_at_once", self.paid_at_once)
        if not (isinstance(self.resume, bool) or (isinstance(self.resume, str) and self.resume == "moved")):
            raise ValueError(f"resume must be True, False or 'moved'; got {shown(self.resume)}")
        return self._replace(micro_batch=micro_batch, points_at_once=points_at_once, paid_at_once=paid_at_once)


class _Sources(NamedTuple):
    """The random parts of a run: the source of its noise, the sampler of its batches, and the key of its directions."""

    noise: NoiseSource
    batches: Batches
    key: bytes


@named
def make_private_with_epsilon(
    module: nn.Module,
    losses: Losses,
    data: Data,
    *,
    target_epsilon: float,
    target_delta: float,
    steps: int,
    expected_batch: float,
    clip: float | str,
    step_size: StepSize | str,
    smoothing: float | str,
    relation: str,
    sampling: str | Sampling,
    folder: Place,
    algorithm: str = "dpzero",
    noise: str = "gaussian",
    direction: str = "rademacher",
    directions_per_step: int = 1,
    schedule: str = "constant",
    update: str = "plain",
    weight_decay: float = 0.0,
    groups: Given | None = None,
    difference: str = "central",
    stopping: str = ANY,
    public_data: Data | None = None,
    precision: str = "nearest",
    micro_batch: int = 64,
    points_at_once: int = 1,
    collate: Collate = None,
    resume: bool | str = False,
    paid_at_once: int | None = None,
    isolation: str = "probed",
) -> Run:
    """A run of `steps` private releases that together cost at most (target_epsilon, target_delta).

    Args:
        module: the torch module to train; its parameters with requires_grad are moved, from the values that they have.
        losses: a function (module, batch) -> a tensor of shape (batch,), whose entry i is the loss of record i and of
            no other record; see `losses.evaluation.Losses`.
        data: the private records, a map-style data set; n is their number.
        target_epsilon: the privacy budget epsilon, a number > 0.
        target_delta: the privacy budget delta, 0 < delta < 1; with Laplace noise also 0, for pure epsilon.
        steps: T, the number of releases, an integer from 1 to 10^9 (10^7 where the step size changes along the run).
            Each moves the weights once.
        expected_batch: the expected number q n of records in a batch, 0 < q n <= n. It is n for full batches, an
            integer for fixed-size ones, and K n over an integer for random-allocation:K.
        clip: C > 0, to which the K differences of a record's losses (difference over 2 lambda, so in units of a
            gradient's norm) are clipped jointly in L2 norm. With "public" it is sqrt(K) times the median gradient norm
            of the records of public_data at the module's weights; a resumed run has the clip that it was begun with.
        step_size: alpha >= 0 of the move x - alpha times the estimate, or a function from the number of the release,
            0 to T - 1, to alpha. It must not depend on the records. "public" chooses it with the clip from public_data
            (`losses.starting.starting_values`); clip is then "public" too, and algorithm, noise, update, weight_decay
            and groups are left at their defaults.
        smoothing: lambda > 0, the distance from the weights x at which losses are evaluated: at x + lambda u and
            x - lambda u. With difference="exact", which evaluates none beside x, it must be 0. "public" chooses it with
            the clip from public_data; clip is then "public" too.
        relation: which data sets are neighbours: "replace-one", "add-remove" or "zero-out". There is no default.
        sampling: how batches are drawn: a name of `dpzero_theory.SAMPLINGS` such as "poisson", "full" or "fixed-size",
            or a value such as `dpzero_theory.Poisson(1 / 16)`, whose rate must be expected_batch over n. There is no
            default.
        folder: a path that is new or empty, or with `resume` this run's folder. It holds what is paid for and what was
            released; see `files.folder`.
        algorithm: "dpzero" (the paper's Algorithm 2, which releases K numbers a step), or "dpgd-0th" (Algorithm 1,
            which releases a vector, so that no transcript can replay the run).
        noise: the family of the noise, "gaussian" or "laplace", which has a pure epsilon too.
        direction: the law of the random directions u: "rademacher", "sphere", "gaussian" or another name of
            `dpzero_theory.DIRECTIONS`.
        directions_per_step: K, the number of directions in a step, an integer from 1 to 65536; the estimate is the mean
            over them. It is 1 for Laplace noise and for dpgd-0th.
        schedule: what becomes of step_size, if that is a number, along the run: "constant", or another name of
            `step.step_sizes.SCHEDULES`.
        update: how an estimate moves the weights: "plain", "momentum:B" or "adam:B1,B2"; see `step.update`.
        weight_decay: w >= 0, decoupled: each step also takes alpha w x off the weights x.
        groups: step sizes and smoothings by parameter: a mapping from patterns of parameters' names to the factor of
            step_size, or to two factors, of step_size and of smoothing. A parameter has those of the first pattern that
            matches its name; see `weights.groups`.
        difference: how a record's change of loss along u is found: "central" (from x + lambda u and x - lambda u, 2 K
            evaluations of a record), "forward" (from x + lambda u and x, K + 1 evaluations) or "exact" (the derivative,
            for losses that have one by forward-mode differentiation). Privacy is the same.
        stopping: what a run may claim that is stopped early (by a callback, early stopping, `optim.signal`): "any", the
            epsilon of its plan; "fixed", if the number of steps made will not depend on anything that they release, the
            epsilon of the steps paid for; "looks:M", with a look every M steps, that of a curve which is safe to stop
            at and ends at target_epsilon, for a little more noise. See `privacy.stopping`.
        public_data: the records from which every "public" value is computed. That they are public is taken on trust;
            records that `data` holds too are refused.
        precision: how half-precision weights are rounded when they move: "nearest", "stochastic" or "master". For this
            setting and those that follow `make_private` says more.
        micro_batch: how many records are evaluated at a time, an integer >= 1.
        points_at_once: how many of a step's points are evaluated in one pass, an integer from 1 to their number.
        collate: a function from a list of records to the batch that `losses` takes; torch's default_collate if None.
        resume: whether to go on with the run in the folder: True, False, or "moved" for a folder that was copied.
        paid_at_once: how many releases one payment covers, an integer >= 1. None: 1, or up to 16, but at
            most a hundredth of the steps, where a step is so small that it may be quicker than the disk; a resumed run
            goes on with its own number.
        isolation: how it is made sure that a record's loss depends on no other record: "probed", by tests of a few
            records at the start, or "exact", to the last bit, by fixed shapes of batches too.

    Returns:
        The run, at its start or where it was. `run.run()` makes all its steps, `run.get_epsilon(delta)` says what may
        be claimed.

    Raises:
        ValueError: an argument that is unknown, missing or outside its range, a setting that is not the resumed run's,
            or losses that `make_private` refuses.
        FileExistsError, FileNotFoundError: a new run's folder is not empty; or there is no run to resume.
        LedgerError: the run's file is damaged or in use.
    """
    _require_folder(folder)
    require_module(module)
    require_data(data)
    Ranks().require_as_first("data must hold as many records", str(len(data)))
    given: dict[str, Any] = dict(zip(_FIELDS, (clip, step_size, smoothing), strict=True))
    asked = [name for name, value in given.items() if isinstance(value, str) and value == _PUBLIC]
    if asked:
        if public_data is None:
            raise ValueError(f"public_data must be given with {asked[0]}='public': records that are not private")
        if "clip" not in asked:
            raise ValueError(f"clip must be 'public' where {asked[0]} is; got {shown(clip)}")
        plain = {"algorithm": "dpzero", "noise": "gaussian", "update": "plain", "weight_decay": 0.0, "groups": None}
        for name, value in zip(plain, (algorithm, noise, update, weight_decay, groups), strict=True):
            if "step_size" in asked and value != plain[name]:
                raise ValueError(f"{name} must be left at {plain[name]!r} where step_size is 'public'; got {value!r}")
        given |= dict.fromkeys(asked, _PLACEHOLDER)
        if difference == "exact" and "smoothing" in asked:
            given["smoothing"] = 0.0
    elif public_data is not None:
        raise ValueError(f"public_data must be left out unless clip is 'public'; got clip {shown(clip)}")
    plan = Plan.for_target(
        n=len(data), target_epsilon=target_epsilon, target_delta=target_delta, steps=steps,
        expected_batch=expected_batch, relation=relation, sampling=sampling, algorithm=algorithm, noise=noise,
        direction=direction, directions_per_step=directions_per_step, schedule=schedule, update=update,
        weight_decay=weight_decay, groups=groups, difference=difference, stopping=stopping, **given,
    )  # fmt: skip
    if public_data is not None:
        target = {"target_epsilon": target_epsilon, "target_delta": target_delta}
        plan = _with_public_values(
            module, losses, data, public_data, plan, asked, target, collate, isolation, folder, resume
        )
    execution = Execution(precision, micro_batch, points_at_once, collate, resume, paid_at_once, isolation)
    budget = Budget(target_epsilon, target_delta, paid_at_once)
    return _make(module, losses, data, plan, _from_the_system(plan), budget, folder, execution)


@named
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
    precision: str = "nearest",
    micro_batch: int = 64,
    points_at_once: int = 1,
    collate: Collate = None,
    resume: bool | str = False,
    paid_at_once: int | None = None,
    isolation: str = "probed",
) -> Run:
    """A run of the private releases of a plan, for example of a theorem's (`Plan.from_prescription`).

    Args:
        module: its parameters with requires_grad are trained, from the values that they have. Under torchrun every
            process makes the same run, of the whole module or of one that `fully_shard` has sharded over them.
        losses: a function (module, batch) -> a tensor of shape (batch,), whose entry i is the loss of record i and of
            no other record; see `losses.evaluation.Losses`.
        data: the private records, a map-style data set; their number is the plan's n.
        plan: what is released and how it moves the weights; of a private algorithm.
        target_delta: the ledger's budget delta, 0 < delta < 1; with Laplace noise also 0.
        folder: a path that is new or empty, or with `resume` this run's folder. It holds what is paid for and what was
            released; see `files.folder`.
        target_epsilon: the ledger's budget epsilon > 0, which the plan must meet; by default what the plan costs at
            target_delta.
        key: 16 public bytes from which the random directions are computed; from the operating system if None.
        precision: how half-precision weights are rounded when they move: "nearest", "stochastic" or "master"; see
            `weights.precision`.
        micro_batch: the number of records that are evaluated at a time, an integer >= 1. It changes memory and speed.
        points_at_once: how many of a step's points are evaluated in one pass, an integer from 1 to their number: 2 K
            with central differences, K + 1 with forward ones, and K derivatives with exact ones. See `weights.stacked`.
            It changes memory, speed and rounding.
        collate: a function from a list of records to the batch that `losses` takes; torch's default_collate if None.
        resume: True goes on with the run in the folder, which must have been begun with all of this; False refuses a
            folder that holds one. "moved" goes on with a folder that was copied, or brought from another disk, which is
            sound only if no other copy goes on.
        paid_at_once: how many releases one payment covers, an integer >= 1; the disk is waited for twice for all of
            them together. After a crash up to so many releases stay paid for though they were not made, and
            after a power failure the file may lack as many (but none that a checkpoint has). None chooses it as
            in `make_private_with_epsilon`.
        isolation: how it is made sure that a record's loss depends on no other record: "probed", by tests of a few
            records at the start, or "exact", to the last bit, by fixed shapes of batches too; see `losses.isolation`.

    Returns:
        The run, at its start or where it was.

    Raises:
        ValueError: an argument that is unknown, missing or outside its range, a setting that is not the resumed run's,
            losses that are not one for each record or depend on other records, trained parameters that they do not
            read.
        FileExistsError, FileNotFoundError: a new run's folder is not empty; or there is no run to resume.
        LedgerError: the run's file is damaged or in use.
    """
    _require_folder(folder)
    require_plan(plan)
    epsilon = plan.claimed(plan.steps, target_delta).upper if target_epsilon is None else target_epsilon
    if key is not None and not (isinstance(key, bytes) and len(key) == _KEY):
        raise ValueError(f"key must be {_KEY} bytes; got {key!r:.60}")
    execution = Execution(precision, micro_batch, points_at_once, collate, resume, paid_at_once, isolation)
    budget = Budget(epsilon, target_delta, paid_at_once)
    return _make(module, losses, data, plan, _from_the_system(plan, key), budget, folder, execution)


@named
def make_from_seed_not_private(
    module: nn.Module,
    losses: Losses,
    data: Data,
    plan: Plan,
    *,
    seed: int,
    folder: Place | None = None,
    precision: str = "nearest",
    micro_batch: int = 64,
    points_at_once: int = 1,
    collate: Collate = None,
    resume: bool | str = False,
    paid_at_once: int | None = None,
    isolation: str = "probed",
) -> Run:
    """A reproducible run of any plan, for tests and comparisons: directions, batches and noise all come from the seed.

    The run is not private, whatever the plan's noise: whoever knows the seed removes the noise. No ledger is kept, and
    `get_epsilon` is infinity. With a plan from `Plan.without_privacy` the run is MeZO, without clip and noise.

    Args:
        module: the torch module to train; its parameters with requires_grad are moved, from the values that they have.
        losses: a function (module, batch) -> a tensor of shape (batch,), whose entry i is the loss of record i and of
            no other record; see `losses.evaluation.Losses`.
        data: the records, a map-style data set; their number is the plan's n.
        plan: what is released and how it moves the weights, of any algorithm.
        seed: an integer in [0, 2^64).
        folder: a path for the transcript, new or empty, or with `resume` this run's folder; None keeps no transcript.
        precision: how half-precision weights are rounded when they move: "nearest", "stochastic" or "master"; see
            `weights.precision`.
        micro_batch: how many records are evaluated at a time, an integer >= 1.
        points_at_once: how many of a step's points are evaluated in one pass, an integer from 1 to their number.
        collate: a function from a list of records to the batch that `losses` takes; torch's default_collate if None.
        resume: whether to go on with the run in the folder: True, False, or "moved", which here is the same as True.
        paid_at_once: an integer >= 1 or None, which has no effect, since there is no ledger.
        isolation: with "probed" the start tests only that `losses` gives one loss for each of a few records and reads
            every trained parameter; with "exact" it tests that the losses keep records apart to the last bit, as in a
            private run (see `losses.isolation`).

    Returns:
        The run, at its start or where it was.

    Raises:
        ValueError: an argument outside its range, a setting that is not the resumed run's, or losses that are refused.
        FileExistsError, FileNotFoundError: a new run's folder is not empty; or there is no run to resume.
        LedgerError: the run's file is damaged or in use.
    """
    require_plan(plan)
    batches = BatchesFromSeedNotPrivate(plan.batches, plan.n, seed)
    key = integer("seed", seed, at_least=0, at_most=2**64 - 1).to_bytes(_KEY, "little")
    execution = Execution(precision, micro_batch, points_at_once, collate, resume, paid_at_once, isolation)
    return _make(module, losses, data, plan, _Sources(SeededNoise(seed), batches, key), None, folder, execution)


def _from_the_system(plan: Plan, key: bytes | None = None) -> _Sources:
    return _Sources(SystemNoise(), Batches(plan.batches, plan.n), key or os.urandom(_KEY))


def _make(
    module: nn.Module,
    losses: Losses,
    data: Data,
    plan: Plan,
    sources: _Sources,
    budget: Budget | None,
    folder: Place | None,
    execution: Execution,
) -> Run:
    """Test the losses, create or open the folder's files, and return the run.

    sources: where noise, batches and directions come from. budget: what the run may cost; None where no ledger is kept.
    folder: where the files are; None where none are kept. execution: settings that do not change the plan. module,
    losses, data, plan: as in `make_private`. Raises what that raises.
    """
    execution = execution.checked(len(plan.difference_rule.at(range(plan.directions_per_step), plan.smoothing)))
    collate = execution.collate
    require_module(module)
    require_data(data)
    for name, value in (("losses", losses), ("collate", default_collate if collate is None else collate)):
        if not callable(value):
            raise ValueError(f"{name} must be a function; got {type(value).__name__}")
    ranks = Ranks()
    if budget is not None and ranks.rank == 0 and budget.delta * plan.n > 1:
        warnings.warn(
            f"target_delta = {budget.delta:g} is above 1/n = {1 / plan.n:.3g}: to publish whole records, one in n of"
            " them, would be allowed",
            stacklevel=4,
        )
    plan = _same_on_every_rank(ranks, data, plan, execution, folder)
    unit = data.unit if isinstance(data, ByUser) else ""
    given, (data, losses, collate, micro_batch) = data, _evaluated(data, losses, collate, execution.micro_batch)
    ranks.share_(module)
    isolation = execution.isolation if budget is not None or execution.isolation == "exact" else ""
    header = ranks.lead(
        lambda: Header(
            plan, sources.key.hex(), "", execution.precision, private=budget is not None, isolation=isolation, unit=unit
        )
    )
    weights = weights_of(header, module)
    if unit and weights.collective:
        raise ValueError("data must not be by user where forwards need all ranks: users have unequal numbers of them")
    if not plan.scalars:
        plan.rule.require_vectors(weights.d, weights.squared_norm(0), weights.directions.largest, plan.n)
    found = replace(header, losses=of_losses(losses))
    if ranks.count > 1:
        ranks.require_as_first("losses must be the same function", found.losses)
        ranks.require_as_first("data must have the same records", unit)
        key = ranks.lead(new_key)  # a key for this comparison between ranks alone
        ranks.require_as_first("data must hold the same records in the same order", of_records(given, key))
    evaluation = examine(weights, losses, data, collate, plan, ranks, micro_batch, isolation, execution.points_at_once)
    found = replace(found, fingerprint=weights.fingerprint(), layout=layout(weights))
    if budget is not None and budget.paid_at_once is None and not execution.resume:
        budget = budget._replace(paid_at_once=_paid_at_once(plan, weights.d))
    files: Folder | None = None

    def open_folder() -> Header:
        nonlocal files
        if folder is None:
            files = Folder.nowhere(found, sources.key)
        elif execution.resume:
            files = Folder.open(Path(folder), found, given, budget, moved=execution.resume == "moved")
        else:
            files = Folder.create(Path(folder), found, given, budget)
        if folder is not None:
            sources.batches.keep(files.secret)
        return files.header

    try:
        header = ranks.lead(open_folder)
        weights.directions = directions_of(header)  # the header of a resumed run has that run's key
        sums = BatchSum(header.plan, weights, evaluation, ranks, micro_batch, execution.points_at_once)
        if isinstance(data, DrawnData):
            sums.keep(ranks.lead(lambda: files.secret if files is not None else b""))
        return Run(
            header,
            weights,
            sums,
            noise=sources.noise,
            batches=sources.batches,
            files=files,
            ranks=ranks,
        )
    except BaseException:
        if files is not None:
            files.close()
        raise


def _paid_at_once(plan: Plan, d: int) -> int:
    """Return how many steps of the plan one entry of the ledger pays for by default. d: the number of weights.

    Only public numbers decide: a step is not timed, since its time depends on the records.
    """
    points = len(plan.difference_rule.at(range(plan.directions_per_step), plan.smoothing))
    small = 2 * d * points * plan.expected_batch < _SMALL_STEP
    return max(1, min(_MOST_AT_ONCE, plan.steps // _LEAST_BLOCKS)) if small else 1


def _evaluated(data: Data, losses: Losses, collate: Collate, micro_batch: int) -> tuple[Data, Losses, Collate, int]:
    """Return the data set, losses, collate and micro-batch with which a run evaluates its records.

    They are those given, with two exceptions. Where the collator masks tokens at random, masks are drawn by record and
    step (`losses.masked`). Where a record is a user, users are evaluated one by one, in parts of `micro_batch` texts;
    the micro-batch that is returned is then 1, a user.
    """
    users = data if isinstance(data, ByUser) else None
    if masks(collate):
        masked = Masked(data if users is None else users.texts, collate)
        data, collate = masked, masked.collate
        users = None if users is None else users.over(masked)
    if users is None:
        return data, losses, collate, micro_batch
    return users, users.losses(losses), users.collate(collate, micro_batch), 1


def _same_on_every_rank(ranks: Ranks, data: Data, plan: Plan, execution: Execution, folder: Place | None) -> Plan:
    """Return rank 0's plan.

    Raises ValueError where ranks have different plans, settings or numbers of records, where the number of records is
    not the plan's n, and FileExistsError where a new run's folder is not empty.
    """
    ranks.require_as_first("data must hold as many records", str(len(data)))
    if len(data) != plan.n:
        raise ValueError(f"data must hold the plan's n = {plan.n} records; got {len(data)}")
    if folder is not None and not execution.resume:
        ranks.lead(lambda: require_new(resolved(Path(folder))))
    first = ranks.lead(lambda: plan)
    ranks.every(lambda: plan.require_same(first, "rank 0"))
    ranks.require_as_first(
        "micro_batch, points_at_once and isolation must be the same",
        f"{execution.micro_batch} {execution.points_at_once} {execution.isolation}",
    )
    return first


def _with_public_values(
    module: nn.Module,
    losses: Losses,
    data: Data,
    public_data: Data,
    plan: Plan,
    asked: Sequence[str],
    target: Mapping[str, Any],
    collate: Collate,
    isolation: str,
    folder: Place,
    resume: bool | str,
) -> Plan:
    """Return the plan with the values that are "public", computed from public records at rank 0's weights.

    With `resume` they are those with which the run in the folder was begun. asked: the names of these settings, of
    which "clip" is one. target: the budget, target_epsilon and target_delta. The other arguments are those of
    `make_private_with_epsilon`; the plan has the other settings of the run, and `_PLACEHOLDER` for these.
    """
    ranks = Ranks()
    if isinstance(data, ByUser) != isinstance(public_data, ByUser):
        raise ValueError("public_data must be made by by_user where data is, and only there: the clip is for a record")
    public_data, _, _, _ = _evaluated(public_data, losses, collate, 64)
    data, losses, collate, _ = _evaluated(data, losses, collate, 64)
    if resume:
        begun = ranks.lead(lambda: begun_with(Path(folder))).plan
        return replace(plan, **{_FIELDS[name]: getattr(begun, _FIELDS[name]) for name in asked})
    ranks.share_(module)
    same: dict[str, Any] = {
        "direction": plan.direction, "directions_per_step": plan.directions_per_step, "difference": plan.difference,
        "collate": collate,
    }  # fmt: skip
    if asked == ["clip"]:
        found = {"clip": public_clip(module, losses, public_data, data, smoothing=plan.smoothing, **same)}
    else:
        found = starting_values(
            module, losses, public_data, declared=_PUBLIC, private_data=data, n=plan.n, relation=plan.relation,
            evaluations=plan.steps * plan.directions_per_step, expected_batch=plan.sample_rate * plan.n,
            sampling=plan.batches, isolation=isolation, **target, **same,
        ).target  # fmt: skip
    changed: dict[str, Any] = {name: found[name] for name in asked if name != "step_size"}
    if "step_size" in asked:
        changed["step_sizes"] = tuple(found["step_size"] * factor for factor in plan.step_sizes)
    return ranks.lead(lambda: replace(plan, **changed))


def require_module(module: object) -> None:
    """Raise ValueError unless `module` is a torch.nn.Module."""
    if not isinstance(module, nn.Module):
        raise ValueError(f"module must be a torch.nn.Module; got {shown(module)}")


def require_plan(plan: object) -> None:
    """Raise ValueError unless `plan` is a `Plan`."""
    if not isinstance(plan, Plan):
        raise ValueError(f"plan must be a Plan (Plan.for_target, Plan.from_prescription); got {shown(plan)}")


def _require_folder(folder: object) -> None:
    if not isinstance(folder, str | os.PathLike):
        raise ValueError(f"folder must be a path, where a private run keeps its ledger; got {shown(folder)}")
