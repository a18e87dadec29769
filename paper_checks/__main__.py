"""Check every claim of the paper.  python -m paper_checks [--quick | --full] [--format table|json|html] [--only ID ...]

Progress goes to standard error, the report to standard output. Exit status 0 if every check agrees with the
status stated in claims.toml, 1 if one does not, 2 for bad arguments.
"""

import importlib
import pkgutil
import sys
import time
from collections.abc import Sequence

from dpzero_theory import check
from dpzero_theory.cli import Parser, Several, command
from paper_checks import checks, registry, report, sharpened


def load_checks() -> None:
    """Import every module of `paper_checks.checks`. Importing them registers their checks."""
    for module in pkgutil.iter_modules(checks.__path__):
        importlib.import_module(f"{checks.__name__}.{module.name}")


def _parser() -> Parser:
    parser = Parser("paper_checks", __doc__)
    size = parser.add_mutually_exclusive_group()
    size.add_argument("--quick", action="store_true", help="small samples and grids, about half a minute (default)")
    size.add_argument("--full", action="store_true", help="larger samples and grids, and the sharpened theorem")
    parser.add_argument("--format", choices=sorted(report.FORMATS), default="table")
    parser.add_argument(
        "--only",
        nargs="+",
        action=Several,
        metavar="ID",
        help='these claims only: ids, or what the paper prints, such as "Table 2"',
    )
    return parser


def _names(claim: registry.Claim) -> set[str]:
    """Return the names by which --only finds a claim, in small letters: id, label, and what the label is printed as."""
    names = {claim.id, claim.label, registry.PRINTED.get(claim.label, "")}
    return {name.lower() for name in names if name}


@command
def main(argv: Sequence[str] | None = None) -> int:
    """Run the checks that the command line asks for and print the report. Returns the exit status: 0 if every check
    agrees with the stated status of its claim, 1 if one does not."""
    parser = _parser()
    options = parser.parse_args(argv)

    load_checks()
    claims = registry.load_claims()
    if options.full:
        claims += sharpened.register()
    if options.only:
        known = {name for claim in claims for name in _names(claim)}
        if unknown := [name for name in options.only if name.lower() not in known]:
            rule = '--only must be ids of claims, or what the paper prints and claims are about, such as "Table 2"'
            parser.error(f"{rule}; got {check.shown(unknown[0])}")
        asked = {name.lower() for name in options.only}
        claims = [claim for claim in claims if asked & _names(claim)]
    start, results = time.perf_counter(), []
    for done, result in enumerate(registry.run(claims, options.full), 1):
        results.append(result)
        line = f"[{done}/{len(claims)}] {result.claim.id}: {result.verdict} ({result.seconds:.1f} s)"
        print(line, file=sys.stderr)
    print(report.FORMATS[options.format](results, options.full, time.perf_counter() - start))
    return 0 if all(result.agrees for result in results) else 1


if __name__ == "__main__":
    sys.exit(main())
