"""Test whether a training loop does what it claims:  python -m dpzero_theory.audit SPEC

SPEC is a TOML file, or MODULE:FUNCTION that returns a specification (`audit.spec` describes both), or the folder that a
private run of this package wrote. The loop is run some thousand times on the small data of the specification. Each
check then says held, violated or could not be tested, with what was seen and how to mend the loop. The exit status is 1
where a check is violated.
"""

import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from dpzero_theory.audit.conformance import every
from dpzero_theory.audit.junit import junit
from dpzero_theory.audit.page import page
from dpzero_theory.audit.report import AuditReport
from dpzero_theory.audit.sarif import sarif
from dpzero_theory.audit.spec import load
from dpzero_theory.cli import Parser, Several, command, extra, integer, number, output_file

RUN = "run.sqlite"
"""The name of a run's file in its folder, copied from `optim.files.transcript`, whose import takes seconds."""


def _parser() -> Parser:
    parser = Parser("dpzero_theory.audit", __doc__)
    parser.add_argument("spec", help="a TOML file, MODULE:FUNCTION, or the folder of a run")
    parser.add_argument(
        "--checks",
        nargs="+",
        action=Several,
        choices=tuple(check.name for check in every()),
        default=[],
        metavar="NAME",
        help="some of them",
    )
    parser.add_argument("--runs", type=integer(at_least=24, at_most=10**6), default=200, help="of the statistics (200)")
    parser.add_argument(
        "--false-alarm", type=number(above=0, below=0.5), default=1e-6, help="probability for a sound loop (1e-6)"
    )
    parser.add_argument("--format", choices=("text", "json", "html", "junit", "sarif"), default="text")
    parser.add_argument(
        "--require",
        nargs="+",
        action=Several,
        choices=("core", "none", *(check.name for check in every())),
        default=["core"],
        metavar="NAME",
        help="checks that must have been made, else the exit status is 3: names, core (as if left out), or none",
    )
    parser.add_argument(
        "--seconds", type=number(above=0), help="for the loop's runs; then the remaining checks are not tested"
    )
    parser.add_argument("--progress", action="store_true", help="name each check on a line of stderr before it is made")
    parser.add_argument("--page", type=output_file(".html"), metavar="FILE", help="write the HTML page as well")
    return parser


def _shown(report: AuditReport, form: str, spec: str) -> str:
    forms: dict[str, Callable[[AuditReport], str]] = {
        "html": page, "json": AuditReport.as_json, "junit": junit, "sarif": partial(sarif, place=spec),
        "text": AuditReport.text,
    }  # fmt: skip
    return forms[form](report)


def _report(parser: Parser, spec: str, **how: Any) -> AuditReport:
    with parser.refusals("spec"):
        if _is_folder(spec):
            if not (Path(spec) / RUN).is_file():
                raise ValueError(f"spec must be a folder with a run's {RUN}; got {spec!r}")
            with extra("torch", "dpzero_theory.audit"):
                from dpzero_theory.audit.adapters.folder import report_of_folder
            return report_of_folder(Path(spec))
        return load(spec).audit(**how)


def _is_folder(spec: str) -> bool:
    try:
        return bool(spec) and Path(spec).is_dir()
    except (OSError, ValueError):
        return False


def _progress(name: str) -> None:
    if sys.stderr.isatty():
        print(f"\r\033[K{name} ...", end="", file=sys.stderr, flush=True)


def _line(name: str) -> None:
    print(f"{name} ...", file=sys.stderr, flush=True)


@command
def main(arguments: Sequence[str] | None = None) -> int:
    """Run the audit command on the words `arguments` (those of the process if None).

    Returns the exit status: 1 if a check is violated and not waived, 3 if none is but one that `--require` names could
    not be made, else 0.
    """
    parser = _parser()
    options = parser.parse_args(arguments)
    report = _report(
        parser,
        options.spec,
        checks=options.checks,
        runs=options.runs,
        false_alarm=options.false_alarm,
        seconds=options.seconds,
        progress=_line if options.progress else _progress,
    )
    if sys.stderr.isatty() and not options.progress:
        print("\r\033[K", end="", file=sys.stderr)
    if options.page:
        options.page.write_text(page(report))
    print(_shown(report, options.format, options.spec))
    if report.unwaived:
        print(f"{parser.prog}: {options.spec}: VIOLATED: {', '.join(report.unwaived)}", file=sys.stderr)
    missing = report.untested_of(options.require)
    if missing and not report.unwaived:
        print(f"{parser.prog}: {options.spec}: NOT TESTED: {', '.join(missing)}", file=sys.stderr)
    return report.exit_code_of(options.require)


if __name__ == "__main__":
    sys.exit(main())
