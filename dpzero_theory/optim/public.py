"""Clip, step size and smoothing of a run that are computed from public records, in the place of the word "public"."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from torch import nn

from dpzero_theory.check import shown
from dpzero_theory.optim.files.folder import begun_with
from dpzero_theory.optim.losses.evaluation import Losses
from dpzero_theory.optim.losses.masked import Masked, masks
from dpzero_theory.optim.losses.records import Collate, Data
from dpzero_theory.optim.losses.starting import public_clip, starting_values
from dpzero_theory.optim.losses.users import ByUser
from dpzero_theory.optim.plan import Plan, Target
from dpzero_theory.optim.step.distributed import Ranks

_PUBLIC = "public"
"""The value that a user gives for clip, step_size or smoothing to have it computed from public records."""
_PLACEHOLDER = 1.0
"""The number that stands in a plan for a setting that is "public", until that is computed."""
_FIELDS = {"clip": "clip", "step_size": "step_sizes", "smoothing": "smoothing"}
"""The settings that may be "public", and their names in a `Plan`."""


def plan_for(
    module: nn.Module,
    losses: Losses,
    data: Data,
    target: Target,
    public_data: Data | None,
    execution: Mapping[str, Any],
    folder: Path,
) -> Plan:
    """Return the plan of a run that meets a target, with all values that are "public".

    target: settings of the run; clip, step_size and smoothing may be "public". execution: arguments of `make_private`,
    of which collate, isolation and resume matter here. The other arguments are those of `make_private_with_epsilon`.
    Raises ValueError for settings that do not fit together.
    """
    given: dict[str, Any] = {name: target[name] for name in _FIELDS}  # type: ignore[literal-required]
    asked = [name for name, value in given.items() if isinstance(value, str) and value == _PUBLIC]
    if asked:
        if public_data is None:
            raise ValueError(f"public_data must be given with {asked[0]}='public': records that are not private")
        if "clip" not in asked:
            raise ValueError(f"clip must be 'public' where {asked[0]} is; got {shown(given['clip'])}")
        plain = {"algorithm": "dpzero", "noise": "gaussian", "update": "plain", "weight_decay": 0.0, "groups": None}
        for name, expected in plain.items():
            if "step_size" in asked and (value := target.get(name, expected)) != expected:
                raise ValueError(f"{name} must be left at {expected!r} where step_size is 'public'; got {value!r}")
        given |= dict.fromkeys(asked, _PLACEHOLDER)
        if target.get("difference") == "exact" and "smoothing" in asked:
            given["smoothing"] = 0.0
    elif public_data is not None:
        raise ValueError(f"public_data must be left out unless clip is 'public'; got clip {shown(given['clip'])}")
    plan = Plan.for_target(n=len(data), **{**target, **given})
    if public_data is None:
        return plan
    budget = {"target_epsilon": target["target_epsilon"], "target_delta": target["target_delta"]}
    collate, isolation = execution.get("collate"), execution.get("isolation", "probed")
    return _with_public_values(
        module, losses, data, public_data, plan, asked, budget, collate, isolation, folder, execution.get("resume")
    )


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
    folder: Path,
    resume: Any,
) -> Plan:
    """Return the plan with the values that are "public", computed from public records at rank 0's weights.

    With `resume` they are those with which the run in the folder was begun. asked: the names of these settings, of
    which "clip" is one. target: the budget, target_epsilon and target_delta. The other arguments are those of
    `make_private_with_epsilon`; the plan has the other settings of the run, and `_PLACEHOLDER` for these.
    """
    ranks = Ranks()
    if isinstance(data, ByUser) != isinstance(public_data, ByUser):
        raise ValueError("public_data must be made by by_user where data is, and only there: the clip is for a record")
    public_data, _, _, _ = evaluated(public_data, losses, collate, 64)
    data, losses, collate, _ = evaluated(data, losses, collate, 64)
    if resume:
        begun = ranks.lead(lambda: begun_with(folder)).plan
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


def evaluated(data: Data, losses: Losses, collate: Collate, micro_batch: int) -> tuple[Data, Losses, Collate, int]:
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
