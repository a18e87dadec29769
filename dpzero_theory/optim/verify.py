"""Checks the folder of a training run, without the data:  python -m dpzero_theory.optim.verify FOLDER

The run's file must be complete, and the steps that it counts towards the budget must be steps of its plan, with the
plan's noise. The epsilon of the whole plan is computed again. Then ten lines of the privacy statement are printed, all
of it with --full, or the report as JSON or as an HTML page.

--initial names a file of torch.save with the initial trainable parameters by name, or a checkpoint. The run's steps are
then made again from these weights. --final names such a file with the final weights, which are compared bit for bit
with the result, or a checkpoint, which is compared with the result of the steps before it.

If a check fails, the exit status is 1 and one line on standard error says why. Nothing is written into the folder, and
the run may continue meanwhile. A full report ends with what it cannot tell.
"""

import json
import sys
import textwrap
import warnings
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any, NamedTuple

from dpzero_theory.check import printable
from dpzero_theory.cli import Parser, command, extra, input_file, input_folder, number

with extra("torch", "dpzero_theory.optim.verify") if __name__ == "__main__" else nullcontext():
    import torch
    from torch import Tensor, nn

    from dpzero_theory.document import document
    from dpzero_theory.optim.files.statement import Statement, statement
    from dpzero_theory.optim.files.transcript import Checkpoint, Content, read
    from dpzero_theory.optim.losses.identity import versions
    from dpzero_theory.optim.losses.isolation import ISOLATIONS
    from dpzero_theory.optim.verdict import LOSS_AT_START, Descent

_CANNOT_TELL = (
    "that the noise came from the operating system and that nobody kept it, or that all of it is there: what the"
    " records add may be as large, and hide that noise is missing",
    "that batches were drawn as the sampling says, with its sample rate q, and were not shown",
    "that what a record adds was clipped at the stated clip: no number of one record is in the files",
    "that there were n records, one entry or one person each, and that the relation is the one that a reader needs",
    "that the losses kept records apart, and did what their name says; isolation is what the run wrote",
    "that the numbers were released by a run at all, with the software that the files name, and not written, put in"
    " another order or taken from another run by somebody who computed every check again",
    "that other runs on the same records are counted, or copies of this one",
)


class Finding(NamedTuple):
    """One line of a report: `name`, what the line is about; `value`, what was found or, if a check failed, what is
    wrong; and `holds`, True if the check passed, False if it failed, and None if the line is not a check."""

    name: str
    value: str | int | float
    holds: bool | None = None


class Report(NamedTuple):
    """The result of checking a run's folder.

    Attributes:
        findings: the lines of the report.
        statement: the privacy statement; None if the run's file cannot be read or the run is not private.
    """

    findings: list[Finding]
    statement: Statement | None = None

    @property
    def fault(self) -> str:
        """The names and values of all checks that failed, on one line; "" if every check passed."""
        return "; ".join(f"{f.name}: {f.value}" for f in self.findings if f.holds is False)


_REFUSALS = (RuntimeError, OSError, ValueError, ArithmeticError, MemoryError)
"""The exceptions that reading and checking a run's file may raise. `verify` turns each into a failed check."""


def verify(
    folder: Path,
    initial: Checkpoint | None = None,
    final: Checkpoint | None = None,
    loss_at_start: float = LOSS_AT_START,
) -> Report:
    """Check the folder of a private run, and return the report.

    The checks are that the run's file is complete, that it does not count or record more steps than the plan has, and
    that the plan's epsilon, computed again, is within the budget; with `initial` and `final` also that the steps lead
    from the former to the latter. A file that cannot be read, a run that is not private and weights of another model or
    run give a failed check, not an exception.

    Args:
        folder: the folder of the run, or the output folder of a Trainer.
        initial: the weights before the first step, Checkpoint(tensors), where `tensors` maps the names of the trainable
            parameters to tensors of their shapes and dtypes. None checks no weights.
        final: the weights after the last step, in the same form, or a checkpoint of the run as
            Checkpoint.of(run.state_dict()). They are compared bit for bit with the weights that the steps in the file,
            or those before the checkpoint, make from `initial`. None compares nothing.
        loss_at_start: a public guess of the mean loss before training, > 0. Only the line "verdict", which says whether
            the run has learned, depends on it.

    Raises:
        ValueError: `final` is given without `initial`.
    """
    if final is not None and initial is None:
        raise ValueError("initial must be given with final: the replay begins with it; got None")
    try:
        content = read(folder)
        if not content.header.private:
            return Report([Finding("private", "made from a seed, which whoever has it redraws", holds=False)])
        claimed, account = statement(content), content.account
    except _REFUSALS as error:
        return Report([Finding("files", printable(" ".join(str(error).split())), holds=False)])
    header, cost = content.header, claimed.costs[account.target_delta].upper
    target, known = account.target_epsilon * (1 + 1e-9), header.isolation in ("", *ISOLATIONS)
    found = [
        Finding("files", "the run's file is whole", holds=True),
        Finding("private", str(header.private), header.private),
        Finding("isolation", header.isolation or "not looked at", None if known else False),
        Finding("releases paid for", account.spent, account.spent <= account.steps),
        Finding("releases recorded", len(content.records), len(content.records) <= account.spent),
        Finding("epsilon of the plan", cost, cost <= target),
        Finding("verdict", str(Descent(header.plan, loss_at_start, content.records).verdict)),
        Finding("verified with", versions()),
    ]
    if initial is not None:
        found += _replayed(content, initial, final)
    shown = [f._replace(value=printable(f.value)) if isinstance(f.value, str) else f for f in found]
    return Report(shown, claimed)


def _replayed(content: Content, initial: Checkpoint, final: Checkpoint | None) -> list[Finding]:
    # Returns lines of the report: whether the run began with the weights `initial` and, unless `final` is None, whether
    # the run's steps (those before `final`, if it is a checkpoint) lead from there to `final`. An exception of
    # `_REFUSALS` becomes a failed check.
    try:
        content.replayed(_module_of(initial.weights), 0)
    except _REFUSALS as error:
        return [Finding("initial weights", " ".join(str(error).split()), holds=False)]
    found = [Finding("initial weights", "those that the run began with", holds=True)]
    if final is None:
        return found
    if final.key not in ("", content.header.key):
        return [*found, Finding("final weights", "a checkpoint of another run", holds=False)]
    try:
        weights = content.replayed(_module_of(initial.weights), final.position)
        # Fingerprints are hashes of the weights' bits: a NaN equals a NaN with the same bits, and 0 is not -0
        equal = content.header.weights(_module_of(final.weights)).fingerprint() == weights.fingerprint()
    except _REFUSALS as error:
        return [*found, Finding("final weights", f"no replay: {' '.join(str(error).split())}", holds=False)]
    replay = "the replay" if final.position is None else f"the replay of the first {final.position} steps"
    return [*found, Finding("final weights", f"{'' if equal else 'not '}those of {replay}, bit for bit", equal)]


def _module_of(parameters: Mapping[str, Tensor]) -> nn.Module:
    root = nn.Module()
    for name, value in parameters.items():
        *path, last = name.split(".")
        part = root
        for step in path:
            if step not in dict(part.named_children()):
                part.add_module(step, nn.Module())
            part = part.get_submodule(step)
        part.register_parameter(last, nn.Parameter(value.detach().clone()))
    return root


def _load(name: str, path: Path | None) -> Checkpoint | None:
    # Loads the file of the flag `name`: a checkpoint of a run, or trainable parameters alone
    if path is None:
        return None
    rule = f"{name} must be a file of torch.save with the trainable parameters by name, or a run's state_dict"
    if not path.is_file():  # Opening a pipe could wait forever
        raise ValueError(f"{rule}; got {path}")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            state = torch.load(path, map_location="cpu", weights_only=True)
        found = Checkpoint.of(state) if "run.key" in state else Checkpoint(dict(state))
        for name, value in found.weights.items():
            whole = value.numel() * value.element_size() <= value.untyped_storage().nbytes()
            if not (whole and value.is_floating_point() and value.device.type == "cpu"):
                raise ValueError(f"{name!r:.60} is no tensor of floating-point numbers")
        _module_of(found.weights)
        return found
    except Exception as error:
        said = str(error) if type(error) is ValueError else f"not read, {type(error).__name__}"
        raise ValueError(f"{rule}; got {path}: {printable(said):.120}") from None


def _shown(report: Report, form: str, *, full: bool = False) -> str:
    # Returns the report as "text", "json" or "html" (`form`). The text is empty if a check failed; otherwise it has ten
    # lines, or with `full` the whole privacy statement, all findings and `_CANNOT_TELL`. JSON and HTML have all of it.
    findings, claimed = report
    if form == "html":
        return document(
            "statement.html",
            title="Privacy statement of a run",
            width=46,
            command="python -m dpzero_theory.optim.verify",
            holds=not report.fault,
            statement=claimed,
            checks=findings,
            untold=_CANNOT_TELL,
        )
    if form == "json":
        values: dict[str, Any] = {"holds": not report.fault, "findings": [finding._asdict() for finding in findings]}
        if claimed:
            ends = {delta: {"lower": cost.lower, "upper": cost.upper} for delta, cost in claimed.costs.items()}
            costs = [{"delta": delta, "paid": both, "planned": both} for delta, both in ends.items()]
            values |= {"claim": claimed.claim, "statement": claimed.facts, "epsilon": costs, "attack": claimed.attack}
            values |= {"certificate": claimed.certificate, "assumed": claimed.assumed}
        return json.dumps({**values, "cannot_tell": _CANNOT_TELL}, indent=2)
    if report.fault or not claimed:
        return ""
    if not full:
        return _in_ten_lines(findings, claimed)
    marks = {None: "", True: "holds"}
    lines = [f"{f.name:24} {f.value!s:64} {marks.get(f.holds, '')}".rstrip() for f in findings]
    untold = (textwrap.wrap(f"- {said}", 100, subsequent_indent="  ") for said in _CANNOT_TELL)
    told = [line for sentence in untold for line in sentence]
    return "\n".join([claimed.text(), "", "checked", *lines, "", "what this cannot tell", *told])


def _in_ten_lines(findings: Sequence[Finding], claimed: Statement) -> str:
    facts, found = claimed.facts, {finding.name: finding for finding in findings}
    paid = found["releases paid for"].value
    shares = f"{len(claimed.assumed)} assumptions, and {len(_CANNOT_TELL)} things that this cannot tell: see --full"
    told = {
        "steps": f"{facts['steps made']}, {paid} paid for, {facts['steps planned']} planned",
        "noise": facts["noise"],
        "attack": claimed.attack_text,
        "verdict": found["verdict"].value,
        "holds": ", ".join(name for name, finding in found.items() if finding.holds),
        "rests on": shares,
    }
    lines = [textwrap.wrap(claimed.claim, 100)]
    lines += [textwrap.wrap(f"{name:22}{value}", 100, subsequent_indent=" " * 22) for name, value in told.items()]
    return "\n".join(line for wrapped in lines for line in wrapped)


def _parser() -> Parser:
    parser = Parser("dpzero_theory.optim.verify", __doc__)
    parser.add_argument("folder", type=input_folder(), help="of the run, or the Trainer's output folder")
    parser.add_argument("--initial", type=input_file, metavar="FILE", help="the trainable parameters at the start")
    parser.add_argument("--final", type=input_file, metavar="FILE", help="and at the end; needs --initial")
    parser.add_argument("--format", choices=("text", "json", "html"), default="text", help="of the report")
    start = f"about the mean loss before training, for the verdict (default: {LOSS_AT_START:g})"
    parser.add_argument("--loss-at-start", type=number(above=0), default=LOSS_AT_START, metavar="LOSS", help=start)
    parser.add_argument("--full", action="store_true", help="the whole statement in place of ten lines")
    return parser


@command
def main(arguments: Sequence[str] | None = None) -> int:
    """Run `python -m dpzero_theory.optim.verify`, which checks the folder of a run, and return the exit status: 0 if
    every check passed, else 1. `arguments` are the folder and the flags, such as ["run", "--full"], by default those of
    the process. Bad ones exit with status 2."""
    parser = _parser()
    options = parser.parse_args(arguments)
    if options.final is not None and options.initial is None:
        parser.error("--final must come with --initial")
    with parser.refusals():
        initial, final = _load("initial", options.initial), _load("final", options.final)
    found = verify(options.folder, initial, final, options.loss_at_start)
    with parser.refusals("--format"):
        shown = _shown(found, options.format, full=options.full)
    if shown:
        print(shown)
    if found.fault:
        print(f"{parser.prog}: {printable(str(options.folder))}: DOES NOT HOLD: {found.fault}", file=sys.stderr)
    return int(bool(found.fault))


if __name__ == "__main__":
    sys.exit(main())
