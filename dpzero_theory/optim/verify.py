"""What a run's folder proves, without the data.  python -m dpzero_theory.optim.verify FOLDER

Every number of the claim is computed again from the transcript and the ledger: that they belong together, that the
noise on the lattice is no less than the multiplier that is accounted for, what is paid for and what was recorded, and
epsilon of both the releases so far and the whole plan. Then the privacy statement is written (`optim.statement`) as
text, JSON or one HTML page with the spending curve. With --initial, a file of the trainable parameters by name
(`torch.save`; a checkpoint's are taken), the run is replayed, and with --final compared bit for bit: with all of it,
or where FILE is a checkpoint with the run up to there. Where anything does not fit: exit status 1, and one line on
standard error. Nothing is written elsewhere, and the run may go on meanwhile.

What it cannot tell: whether the noise was random, the losses kept records apart, or the records were n.
"""

import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from dpzero_theory.cli import Parser, input_file, input_folder
from dpzero_theory.optim.checkpoint import Checkpoint, is_checkpoint
from dpzero_theory.optim.folder import OF_TRAINER, TRANSCRIPT, both
from dpzero_theory.optim.identity import versions
from dpzero_theory.optim.moves import Moves
from dpzero_theory.optim.page import page
from dpzero_theory.optim.statement import Statement, spending_curve, statement
from dpzero_theory.optim.transcript import Content, TranscriptError, contents, require_initial
from dpzero_theory.privacy.ledger import Account, LedgerError


class Finding(NamedTuple):
    """One line of the report. holds: None for what is only said."""

    name: str
    value: str | int | float
    holds: bool | None = None


class Recorded(NamedTuple):
    """Trainable parameters by name from a file; of a checkpoint also the run's key and where in it they are."""

    parameters: Mapping[str, Tensor]
    key: str | None = None
    position: int | None = None


class Report(NamedTuple):
    """What was found; statement and curve where the files can be read and belong together."""

    findings: list[Finding]
    statement: Statement | None = None
    account: Account | None = None

    @property
    def fault(self) -> str:
        """What does not hold, in one line; "" if everything does."""
        return "; ".join(f"{f.name}: {f.value}" for f in self.findings if f.holds is False)


def verify(folder: Path, initial: Recorded | None, final: Recorded | None) -> Report:
    """What is found; files that cannot be read, or do not belong together, are a finding that does not hold."""
    try:
        content = contents(folder / TRANSCRIPT)
        if not content.header.private:
            return Report([Finding("private", "made from a seed, which whoever has it redraws", holds=False)])
        content, account = both(folder)
        claimed = statement(content, account)
    except (TranscriptError, LedgerError, OSError, ValueError) as error:
        return Report([Finding("files", " ".join(str(error).split()), holds=False)])
    plan, header, cost = content.header.plan, content.header, claimed.costs[0]
    found = [
        Finding("files", "the transcript and the ledger are of one run, and whole", holds=True),
        Finding("private", str(header.private), header.private),
    ]
    said = ("algorithm", "noise", "relation", "sampling", "n", "sample_rate", "steps", "clip", "noise_multiplier")
    found += [Finding(name, getattr(plan, name)) for name in said]
    found.append(Finding("update", claimed.facts["update"]))
    found.append(Finding("isolation", header.isolation or "not looked at"))
    law = plan.law
    if law is not None and law.lattice:
        least = law.scale(plan.noise_multiplier, plan.levels)
        found.append(Finding("noise on the lattice", plan.scale, plan.scale >= least))
    found.append(Finding("releases paid for", account.spent, account.spent <= account.steps))
    made = len(content.records)
    found.append(Finding("releases recorded", made, made <= account.spent))
    found.append(Finding("moved to another disk", account.moves))
    target = account.target_epsilon * (1 + 1e-9)
    found.append(Finding("delta", account.target_delta))
    found.append(Finding("epsilon spent", cost.paid.upper, cost.paid.upper <= target))
    found.append(Finding("epsilon of the plan", cost.planned.upper, cost.planned.upper <= target))
    found.append(Finding("target epsilon", account.target_epsilon))
    found.append(Finding("verified with", versions()))
    if initial is not None:
        found += _replayed(content, initial, final)
    return Report(found, claimed, account)


def _replayed(content: Content, initial: Recorded, final: Recorded | None) -> list[Finding]:
    """Whether the initial weights are the run's, and the final ones those of the replay up to where they are of."""
    header = content.header
    module = _module(initial.parameters)
    try:
        weights = header.weights(module)
        require_initial(header, weights)
    except (TranscriptError, ValueError) as error:
        return [Finding("initial weights", " ".join(str(error).split()), holds=False)]
    found = [Finding("initial weights", "those that the run began with", holds=True)]
    if final is None:
        return found
    if final.key not in (None, header.key):
        return [*found, Finding("final weights", "a checkpoint of another run", holds=False)]
    if not header.plan.scalars:
        text = f"cannot be replayed: releases of {header.plan.algorithm} are vectors and are not kept"
        return [*found, Finding("final weights", text, holds=False)]
    last = header.plan.steps if final.position is None else final.position
    moves = Moves(header.plan, weights)
    for record in content.records:
        if record.release < last:
            moves.make(*record)
    values = weights.values()
    equal = set(final.parameters) == set(values) and all(
        torch.equal(values[name], value) for name, value in final.parameters.items()
    )
    replay = "the replay" if final.position is None else f"the replay of the first {final.position} steps"
    return [*found, Finding("final weights", f"{'' if equal else 'not '}those of {replay}, bit for bit", equal)]


def _module(values: Mapping[str, Tensor]) -> nn.Module:
    """A module that has these parameters and nothing else."""
    root = nn.Module()
    for name, value in values.items():
        *path, last = name.split(".")
        part = root
        for step in path:
            if step not in dict(part.named_children()):
                part.add_module(step, nn.Module())
            part = part.get_submodule(step)
        part.register_parameter(last, nn.Parameter(value.detach().clone()))
    return root


def _load(path: Path | None) -> Recorded | None:
    if path is None:
        return None
    state: Any = torch.load(path, map_location="cpu", weights_only=True)
    if not isinstance(state, Mapping):
        raise ValueError(f"{path} must hold the trainable parameters by name")
    found = Recorded(state)
    if is_checkpoint(state):
        checkpoint = Checkpoint.of(state)
        found = Recorded(checkpoint.weights, checkpoint.key, checkpoint.position)
    if not found.parameters or not all(isinstance(value, Tensor) for value in found.parameters.values()):
        raise ValueError(f"{path} must hold the trainable parameters by name")
    return found


def _shown(report: Report, form: str) -> str:
    """The report; as text nothing where there is a fault."""
    findings, claimed, account = report
    curve = spending_curve(account) if account and form != "text" else []
    if form == "html":
        checks = [(f.name, str(f.value), f.holds) for f in findings]
        spent, target = (account.spent, account.target_epsilon) if account else (0, 0.0)
        return page(claimed, checks, curve, spent, target)
    if form == "json":
        values: dict[str, Any] = {"holds": not report.fault, "findings": [finding._asdict() for finding in findings]}
        if claimed:
            costs = [
                {
                    "delta": c.delta,
                    "paid": {"lower": c.paid.lower, "upper": c.paid.upper},
                    "planned": {"lower": c.planned.lower, "upper": c.planned.upper},
                }
                for c in claimed.costs
            ]
            values |= {"claim": claimed.claim, "statement": claimed.facts, "epsilon": costs}
            values |= {"assumed": claimed.assumed, "curve": curve}
        return json.dumps(values, indent=2)
    if report.fault or not claimed:
        return ""
    marks = {None: "", True: "holds"}
    lines = [f"{f.name:24} {f.value!s:64} {marks.get(f.holds, '')}".rstrip() for f in findings]
    return "\n".join([claimed.text(), "", "checked", *lines])


def _parser() -> Parser:
    parser = Parser("dpzero_theory.optim.verify", __doc__)
    parser.add_argument("folder", type=input_folder(), help="of the run, or the Trainer's output folder")
    parser.add_argument("--initial", type=input_file, metavar="FILE", help="the trainable parameters at the start")
    parser.add_argument("--final", type=input_file, metavar="FILE", help="and at the end; needs --initial")
    parser.add_argument("--format", choices=("text", "json", "html"), default="text")
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit status 0 if everything holds, else 1."""
    parser = _parser()
    options = parser.parse_args(arguments)
    if options.final is not None and options.initial is None:
        parser.error("--final must come with --initial")
    with parser.refusals():
        try:
            initial, final = _load(options.initial), _load(options.final)
        except Exception as error:
            raise ValueError(f"--initial and --final must be files of torch.save; {error}") from None
    inside = options.folder / OF_TRAINER
    folder = (
        inside if (inside / TRANSCRIPT).is_file() and not (options.folder / TRANSCRIPT).exists() else options.folder
    )
    found = verify(folder, initial, final)
    shown = _shown(found, options.format)
    if shown:
        print(shown)
    if found.fault:
        print(f"{parser.prog}: {options.folder}: DOES NOT HOLD: {found.fault}", file=sys.stderr)
    return int(bool(found.fault))


if __name__ == "__main__":
    sys.exit(main())
