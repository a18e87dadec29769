"""What a run's folder proves, without the data.  python -m dpzero_theory.optim.verify FOLDER

Every number of the claim is computed again from the transcript and the ledger: that they belong together, that the
noise on the lattice is no less than the multiplier that is accounted for, what is paid for and what was recorded, and
epsilon of both the releases so far and the whole plan. With --initial, a file of the trainable parameters by name
(`torch.save`; a checkpoint's are taken), the run is replayed, and with --final compared bit for bit. Exit status 1
where anything does not fit. Nothing is written, and the run may go on meanwhile.

What it cannot tell: whether the noise was random, the losses kept records apart, or the records were n.
"""

import html
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from dpzero_theory.cli import Parser, input_file, input_folder
from dpzero_theory.optim.folder import LEDGER, TRANSCRIPT, require_fit
from dpzero_theory.optim.transcript import TranscriptError, contents, replay
from dpzero_theory.privacy.accountant import epsilon_of_history
from dpzero_theory.privacy.ledger import LedgerError, read


class Finding(NamedTuple):
    """One line of the report. holds: None for what is only said."""

    name: str
    value: str | int | float
    holds: bool | None = None


def verify(folder: Path, initial: Mapping[str, Tensor] | None, final: Mapping[str, Tensor] | None) -> list[Finding]:
    """What is found; files that cannot be read, or do not belong together, are a finding that does not hold."""
    found: list[Finding] = []
    try:
        content, account = contents(folder / TRANSCRIPT), read(folder / LEDGER)
        require_fit(content, account, folder)
    except (TranscriptError, LedgerError, OSError, ValueError) as error:
        return [Finding("files", str(error), holds=False)]
    plan, header, delta = content.header.plan, content.header, account.target_delta
    found.append(Finding("files", "the transcript and the ledger are of one run, and whole", holds=True))
    found.append(Finding("private", str(header.private), header.private))
    said = ("algorithm", "noise", "relation", "sampling", "n", "sample_rate", "steps", "clip", "noise_multiplier")
    found += [Finding(name, getattr(plan, name)) for name in said]
    found.append(Finding("isolation", header.isolation or "not looked at"))
    law = plan.law
    if law is not None and law.lattice:
        least = law.scale(plan.noise_multiplier, plan.levels)
        found.append(Finding("noise on the lattice", plan.scale, plan.scale >= least))
    found.append(Finding("releases paid for", account.spent, account.spent <= account.steps))
    found.append(Finding("releases recorded", len(content.records)))
    found.append(Finding("moved to another disk", account.moves))
    history = [account.settings.release(account.spent)] if account.spent else []
    spent = epsilon_of_history(history, delta).upper
    whole = epsilon_of_history([account.settings.release(account.steps)], delta).upper
    target = account.target_epsilon * (1 + 1e-9)
    found.append(Finding("delta", delta))
    found.append(Finding("epsilon spent", spent, spent <= target))
    found.append(Finding("epsilon of the plan", whole, whole <= target))
    found.append(Finding("target epsilon", account.target_epsilon))
    if initial is not None:
        found += _replayed(folder, initial, final)
    return found


def _replayed(folder: Path, initial: Mapping[str, Tensor], final: Mapping[str, Tensor] | None) -> list[Finding]:
    module = _module(initial)
    try:
        replay(folder / TRANSCRIPT, module)
    except (TranscriptError, ValueError) as error:
        return [Finding("initial weights", str(error), holds=False)]
    found = [Finding("initial weights", "those that the run began with", holds=True)]
    if final is not None:
        names = dict(module.named_parameters())
        equal = set(final) == set(names) and all(torch.equal(names[name], value) for name, value in final.items())
        said = "those of the replay, bit for bit" if equal else "not those of the replay"
        found.append(Finding("final weights", said, equal))
    return found


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


def _load(path: Path | None) -> Mapping[str, Tensor] | None:
    if path is None:
        return None
    state: Any = torch.load(path, map_location="cpu", weights_only=True)
    state = state.get("parameters", state) if isinstance(state, Mapping) else None
    if not isinstance(state, Mapping) or not all(isinstance(value, Tensor) for value in state.values()):
        raise ValueError(f"{path} must hold the trainable parameters by name")
    return state


def _shown(found: Sequence[Finding], form: str) -> str:
    if form == "json":
        return json.dumps({"holds": _holds(found), "findings": [finding._asdict() for finding in found]}, indent=2)
    marks = {None: "", True: "holds", False: "DOES NOT HOLD"}
    if form == "html":
        cells = "".join(
            f"<tr><th>{html.escape(f.name)}</th><td>{html.escape(str(f.value))}</td><td>{marks[f.holds]}</td></tr>"
            for f in found
        )
        return f"<!doctype html><meta charset=utf-8><title>A private run</title><table>{cells}</table>"
    return "\n".join(f"{f.name:24} {f.value!s:64} {marks[f.holds]}".rstrip() for f in found)


def _holds(found: Sequence[Finding]) -> bool:
    return all(finding.holds is not False for finding in found)


def _parser() -> Parser:
    parser = Parser("dpzero_theory.optim.verify", __doc__)
    parser.add_argument("folder", type=input_folder(), help="of the run")
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
    found = verify(options.folder, initial, final)
    print(_shown(found, options.format))
    return int(not _holds(found))


if __name__ == "__main__":
    sys.exit(main())
