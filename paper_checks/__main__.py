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
from dpzero_theory.cli import Parser, Several
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
    parser.add_argument("--only", nargs="+", action=Several, metavar="ID", help="these claims only")
    return parser


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
        known = {claim.id for claim in claims}
        if unknown := [id for id in options.only if id not in known]:
            parser.error(f"--only must be ids of claims; got {check.shown(unknown[0])}")
        claims = [claim for claim in claims if claim.id in options.only]
    start, results = time.perf_counter(), []
    for done, result in enumerate(registry.run(claims, options.full), 1):
        results.append(result)
        line = f"[{done}/{len(claims)}] {result.claim.id}: {result.verdict} ({result.seconds:.1f} s)"
        print(line, file=sys.stderr)
    print(report.FORMATS[options.format](results, options.full, time.perf_counter() - start))
    return 0 if all(result.agrees for result in results) else 1


if __name__ == "__main__":
    sys.exit(main())
