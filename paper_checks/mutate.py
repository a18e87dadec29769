"""Can the checks fail?  python -m paper_checks.mutate [--list | --turned [ID ...]]

With --turned, for each check (or those named): which smallest change of one of its inputs turns its verdict? An input
is a number of tables.toml, of a formula, of committed rows or of the check itself. The changes are written to
mutations.csv, and it is printed how many of them are coarse: a check that only a tenfold change turns says little about
a small error. The exit status is 1 if a check is constant. This takes some minutes.

Without --turned: does a wrong constant in the library make a check fail? Each numeric constant of the library's
Theorems 1-3, Corollaries 1-3 and lemmas is raised by 10%, one at a time, and the checks that call the library run
against the changed code, in a forked process; no file is written. Constants that are zero, indices, array axes and
tolerances are not constants of a statement and are left out. What no check noticed is printed, and the share that was
caught; the exit status is 1 if that is below 95%.

mutations.csv declares one break for each check. A mutation tool from the package index cannot take its place.
cosmic-ray 8.7 was tried on 20 checks drawn at random, with at most 25 of its 23 to 4,300 mutations of each kind. It
turned 16 of them by inputs that are changed here too, where the changes here turn all 20. It cannot change tables and
rows, and it changes a number by 1, never by 10%. And it turned 16 by exchanging the comparison that decides the
verdict, and 15 by a threshold, seed or size. Such a mutation turns every check, also one that does not depend on its
inputs, so the tool would report a constant check as sound.
"""

import ast
import importlib
import importlib.abc
import importlib.machinery
import importlib.util
import multiprocessing
import os
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

from dpzero_theory.cli import Parser, integer

LEAST_SHARE = 0.95  # the least share of changed library constants that must make a check fail
FACTOR = 1.1  # the factor by which a constant of the library is multiplied

TARGETS = {
    "dpzero_theory.theory.theorems": ("theorem_1", "theorem_2", "theorem_3"),
    "dpzero_theory.theory.pl": ("_horizon", "_dpgd_0th", "corollary_1", "corollary_2", "corollary_3"),
    "dpzero_theory.theory.closed_form": ("noise_level", "trivial_bound"),
    "dpzero_theory.theory.inequalities": (
        "gradient",
        "last_iterate",
        "_terms",
        "clipping_probability",
        "dpgd_0th_rank",
        "dpzero",
    ),
    "dpzero_theory.sphere": (
        "_sphere_fourth",
        "_gaussian_fourth",
        "_sign_fourth",
        "projection_outer",
        "subgaussian_tail",
        "paper_tail",
    ),
    "dpzero_theory.privacy.gaussian": ("paper_gdp", "sensitivity"),
    "dpzero_theory.privacy.relation": ("sensitivity",),
    "dpzero_theory.optim.step.estimator": ("two_point_difference",),
}
"""For each module of the library the functions that contain constants of the paper."""

CHECKS = ("sphere", "sphere_tails", "privacy", "audits", "theorems", "low_rank", "extensions")
"""The modules of `paper_checks.checks` that call the library."""


@dataclass(frozen=True)
class Mutant:
    """A constant in the library's source that is multiplied by FACTOR: its value, and the module, function, line and
    column where it stands."""

    module: str
    function: str
    line: int
    column: int
    value: float

    def __str__(self) -> str:
        return f"{self.module}.{self.function}, line {self.line}: {self.value:g} -> {self.value * FACTOR:g}"


def mutants() -> list[Mutant]:
    """Return a `Mutant` for every constant in the functions of `TARGETS` that `changes.constants_in` yields, which
    leaves out those, such as zeros and indices, whose change says nothing about a formula."""
    found = []
    for module, functions in TARGETS.items():
        tree = ast.parse(_path(module).read_text())
        definitions = {node.name: node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}
        for function in functions:
            for constant in _constants(definitions[function]):
                value = constant.value
                assert isinstance(value, int | float)
                found.append(Mutant(module, function, constant.lineno, constant.col_offset, value))
    return found


def _path(module: str) -> Path:
    spec = importlib.util.find_spec(module)
    if spec is None or spec.origin is None:
        raise ValueError(f"no source for {module}")
    return Path(spec.origin)


def _constants(function: ast.FunctionDef) -> Iterator[ast.Constant]:
    """Yield the numbers other than zero that are operands or arguments in the function's body.

    Left out are subscripts; arguments given by keyword, unless they are formulas (`step_size=1 / (4 * ...)`); calls of
    `check` and the text of messages; comparisons, which guard; and factors closer to 1 than 1e-6, which allow for
    rounding.
    """
    stack: list[ast.AST] = [*function.body]
    while stack:
        node = stack.pop()
        if isinstance(node, ast.Constant):
            number = isinstance(node.value, int | float) and not isinstance(node.value, bool)
            if number and node.value != 0:
                yield node
        elif isinstance(node, ast.Call):
            if not _is_check(node.func):
                stack += node.args
                stack += [k.value for k in node.keywords if not isinstance(k.value, ast.Constant)]
                stack.append(node.func)
        elif isinstance(node, ast.BinOp) and isinstance(node.right, ast.BinOp) and _is_slack(node.right):
            stack.append(node.left)
        elif not isinstance(node, ast.Subscript | ast.JoinedStr | ast.Compare | ast.arguments):
            stack += list(ast.iter_child_nodes(node))


def _is_check(function: ast.expr) -> bool:
    """Return whether the function that is called (its syntax tree) validates an argument, as check.real does, or is
    range or round."""
    if isinstance(function, ast.Attribute) and isinstance(function.value, ast.Name):
        return function.value.id == "check"
    return isinstance(function, ast.Name) and function.id in ("range", "round")


def _is_slack(node: ast.BinOp) -> bool:
    numbers = [n.value for n in ast.walk(node) if isinstance(n, ast.Constant)]
    return any(isinstance(v, float) and 0 < v < 1e-6 for v in numbers)


class _Changed(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """An import hook that loads the mutant's module with its constant multiplied by FACTOR, and leaves all other
    modules alone. The module must not have been imported before."""

    def __init__(self, mutant: Mutant) -> None:
        self.mutant, self.path = mutant, _path(mutant.module)

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if name != self.mutant.module:
            return None
        return importlib.util.spec_from_file_location(name, self.path, loader=self)

    def exec_module(self, module: ModuleType) -> None:
        tree = ast.parse(self.path.read_text())
        for node in ast.walk(tree):
            if isinstance(node, ast.Constant) and (node.lineno, node.col_offset) == (
                self.mutant.line,
                self.mutant.column,
            ):
                node.value = self.mutant.value * FACTOR
        exec(compile(tree, str(self.path), "exec"), module.__dict__)


def _caught(mutant: Mutant | None) -> str:
    """Return the id of the first claim whose check no longer agrees with its stated status when the constant is
    changed, or '' if all agree; "import (...)" if importing the checks fails already. Without a mutant nothing is
    changed. It is to be called in a forked process, which has not imported the library."""
    if mutant is not None:
        sys.meta_path.insert(0, _Changed(mutant))
    from paper_checks import registry

    try:
        for name in CHECKS:
            importlib.import_module(f"paper_checks.checks.{name}")
    except Exception as error:
        return f"import ({type(error).__name__})"
    claims = {claim.id: claim for claim in registry.load_claims()}
    likely = "theorems" if mutant and ".theory." in mutant.module else "sphere"
    checks = sorted(registry.registered().items(), key=lambda item: likely not in item[1].__module__)
    chosen = [claims[id] for id, _ in checks]
    return next((r.claim.id for r in registry.run(chosen, False) if not r.agrees), "")


def _parser() -> Parser:
    parser = Parser("paper_checks.mutate", __doc__)
    parser.add_argument("--list", action="store_true", help="only list the constants")
    parser.add_argument(
        "--turned",
        nargs="+",
        metavar="ID",
        help="search for what turns these checks, all, or those that are missing in mutations.csv",
    )
    parser.add_argument("--seconds", type=integer(1, 10**6), default=600, help="longest search for one check")
    parser.add_argument("--jobs", type=integer(1, 256), default=os.cpu_count() or 1)
    return parser


def _turned(parser: Parser, ids: list[str], jobs: int, seconds: float) -> int:
    from paper_checks import registry, turned
    from paper_checks.__main__ import load_checks

    load_checks()
    stated = {c.id: c.status for c in registry.load_claims() if c.status != registry.NOT_TESTABLE}
    if ids in (["all"], ["missing"]):
        done = turned.read() if ids == ["missing"] else {}
        ids = [id for id in stated if id not in done]
    if unknown := [id for id in ids if id not in stated]:
        parser.error(f"--turned must be ids of claims with a check; got {unknown[0]!r}")
    chosen = [claim for claim in registry.load_claims() if claim.id in stated and claim.id in ids]
    found = {id: row for id, row in turned.read().items() if id not in {claim.id for claim in chosen}}
    constant = []
    for claim, row in turned.search(chosen, jobs, seconds):
        if row is None:
            constant.append(claim.id)
        else:
            found[claim.id] = row
            turned.write(found, stated)
        change = f"{row.change.kind}, {row.change.place}: {row.change.old} -> {row.change.new}" if row else "CONSTANT"
        print(f"{claim.id}: {change}", file=sys.stderr, flush=True)
    print(turned.coarse(found))
    print(f"{len(constant)} constant checks of {len(chosen)}" + "".join(f"\n{id}" for id in constant))
    return 1 if constant else 0


def main(argv: Sequence[str] | None = None) -> int:
    """Change the library's constants one by one, or with --turned search for what turns each check's verdict. Returns
    the exit status: 1 if too few changes are noticed or a check is constant, else 0."""
    parser = _parser()
    options = parser.parse_args(argv)
    if options.turned is not None:
        return _turned(parser, options.turned, options.jobs, options.seconds)
    chosen = mutants()
    if options.list:
        print("\n".join(map(str, chosen)))
        return 0
    import mpmath  # noqa: F401  heavy modules are imported before the fork, the library after it
    import scipy.stats  # noqa: F401
    import sympy  # noqa: F401

    if loaded := [name for name in TARGETS if name in sys.modules]:
        raise RuntimeError(f"imported too early to be changed: {', '.join(loaded)}")
    with multiprocessing.get_context("fork").Pool(options.jobs, maxtasksperchild=1) as pool:
        if noticed := pool.apply(_caught, (None,)):
            print(f"the unchanged library fails {noticed}", file=sys.stderr)
            return 1
        missed = []
        for mutant, by in zip(chosen, pool.imap(_caught, chosen), strict=True):
            print(f"{mutant}: {by or 'NOT CAUGHT'}", file=sys.stderr)
            missed += [] if by else [mutant]
    share = 1 - len(missed) / len(chosen)
    for mutant in missed:
        print(f"not caught: {mutant}")
    print(f"{len(chosen) - len(missed)} of {len(chosen)} changed constants caught ({share:.1%})")
    return 0 if share >= LEAST_SHARE else 1


if __name__ == "__main__":
    sys.exit(main())
