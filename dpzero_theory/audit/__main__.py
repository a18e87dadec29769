"""Test whether a training loop does what it claims:  python -m dpzero_theory.audit SPEC

SPEC is a TOML file, or MODULE:FUNCTION that returns a specification (`audit.spec` describes both). The loop is run some
thousand times on the small data of the specification. Each check reports "held", "violated" or "could not be tested",
with what was seen and how to repair the loop. The exit status is 1 if a check is violated. It is 3 if no check is
violated, but a check that is needed to defend the claim could not be made.
"""

import sys
from collections.abc import Sequence

from dpzero_theory.audit.conformance import CHECKS
from dpzero_theory.audit.report import AuditReport
from dpzero_theory.audit.spec import load
from dpzero_theory.cli import Parser, Several, command, integer, number

# The functions that write a report, by the value of --format
_FORMS = {"text": AuditReport.text, "json": AuditReport.as_json, "html": AuditReport.html}


def _parser() -> Parser:
    parser = Parser("dpzero_theory.audit", __doc__)
    parser.add_argument("spec", help="a TOML file, or MODULE:FUNCTION")
    parser.add_argument(
        "--checks", nargs="+", action=Several, choices=tuple(CHECKS), default=[], metavar="NAME", help="some of them"
    )
    parser.add_argument("--runs", type=integer(at_least=24, at_most=10**6), default=200, help="of the statistics (200)")
    parser.add_argument(
        "--false-alarm", type=number(above=0, below=0.5), default=1e-6, help="probability for a sound loop (1e-6)"
    )
    parser.add_argument("--format", choices=tuple(_FORMS), default="text")
    return parser


@command
def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command: audit the loop that the arguments name, and print the report.

    Args:
        arguments: the command's arguments, such as ["spec.toml", "--runs", "100"]; the process's own if None.

    Returns:
        The exit status: 1 if a check is violated; else 3 if a check that is needed to defend the claim could not be
        made; else 0.

    Raises:
        SystemExit: with status 2, after one line on standard error, if an argument or the specification has a fault.
    """
    parser = _parser()
    options = parser.parse_args(arguments)
    with parser.refusals("spec"):
        report = load(options.spec).audit(checks=options.checks, runs=options.runs, false_alarm=options.false_alarm)
    print(_FORMS[options.format](report))
    if report.violations:
        print(f"{parser.prog}: {options.spec}: VIOLATED: {', '.join(report.violations)}", file=sys.stderr)
    elif report.core_untested:
        print(f"{parser.prog}: {options.spec}: NOT TESTED: {', '.join(report.core_untested)}", file=sys.stderr)
    return report.exit_code


if __name__ == "__main__":
    sys.exit(main())
