"""What a run's folder proves, without the data.  python -m dpzero_theory.optim.verify FOLDER

The file must be whole, and the releases that are paid for must be those that its plan states, noise included.
The number of releases paid for and recorded, and epsilon of the whole plan, are computed again.
Then the privacy statement (`optim.files.statement`) is printed in ten lines (all of it with --full), as JSON or as one
HTML page.

With --initial, a file of torch.save with the trainable parameters by name (or a checkpoint), the run is replayed. With
--final the weights in that file are compared bit for bit with those at the end of the replay, or, if the file is a
checkpoint, with the replay up to there.
Where anything does not fit, the exit status is 1 and one line on standard error says what. Nothing is written into the
folder, and the run may go on meanwhile.

What this cannot tell is said at the end of each full report (`_CANNOT_TELL`).
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
    """One line of the report: `name`, what is checked or told; `value`, what was found or, if a check fails, what is
    wrong; and `holds`, whether the check passed, or None if the value is told and not checked."""

    name: str
    value: str | int | float
    holds: bool | None = None


class Report(NamedTuple):
    """What was found in a run's folder.

    Attributes:
        findings: a `Finding` for each check or value.
        statement: the privacy statement; None unless the files can be read, belong together and are of a private run.
    """

    findings: list[Finding]
    statement: Statement | None = None

    @property
    def fault(self) -> str:
        """One line that says what does not hold; "" if everything does."""
        return "; ".join(f"{f.name}: {f.value}" for f in self.findings if f.holds is False)


_REFUSALS = (RuntimeError, OSError, ValueError, ArithmeticError, MemoryError)
"""The exceptions that reading and checking the files of a run can raise, whatever the files hold; each becomes a
finding that does not hold."""


def verify(
    folder: Path,
    initial: Checkpoint | None = None,
    final: Checkpoint | None = None,
    loss_at_start: float = LOSS_AT_START,
) -> Report:
    """Check a run's folder, and return the report.

    Checked are that the files are whole, that no more releases are paid for or recorded than the plan has, and that its
    epsilon, computed anew, is within the budget; with `initial` and `final` also the weights. Files that cannot be read
    or do not belong together, and a run that is not private, make a finding that fails; nothing is raised for them.

    Args:
        folder: the folder that the run wrote, or a Trainer's output folder.
        initial: the weights at the start, from which the run is replayed, as Checkpoint(tensors), where `tensors` has
            the trainable parameters by their names in the module, of its shapes and dtypes; None to leave that out.
        final: the weights that are compared bit for bit with the end of the replay, as `initial`, which must be given;
            or Checkpoint.of(run.state_dict()), compared with the replay up to there. None to leave that out. Weights
            of another model or run make a finding that fails.
        loss_at_start: about what the mean loss was before training, above 0; the verdict whether the run has learned
            rests on it (`verdict.Descent`).

    Raises:
        ValueError: `final` without `initial`.
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
    # Return findings: whether the run began with the weights `initial` and, unless `final` is None, whether the run's
    # releases, those before it if it is a checkpoint, move these to `final`. An error is a finding that does not hold.
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
        # Fingerprints compare bits: a NaN equals a NaN with the same bits, and 0 is not -0
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
    # A run's checkpoint, or trainable parameters alone
    if path is None:
        return None
    rule = f"{name} must be a file of torch.save with the trainable parameters by name, or a run's state_dict"
    if not path.is_file():  # To open a pipe could wait for ever
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
    # `form` is "text", "json" or "html". The text is empty if something does not hold; else it has some ten lines, or
    # with `full` the whole privacy statement, all findings and `_CANNOT_TELL`. The other forms always have all of it.
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
    """Run the command `python -m dpzero_theory.optim.verify`, which checks the files of a run and prints its privacy
    statement. `arguments` are the words after the command, by default the process's own. Returns 0 if everything holds,
    else 1. Bad arguments exit with status 2."""
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
