"""Tests of which parts of the project may import which, read from the import statements.

The order is check, sphere -> privacy -> theory -> optim -> synthetic -> curvature; render and params are on top of the
theory; benchmarks and paper_checks join them; figures import only the reader of results.
"""

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = ("dpzero_theory", "benchmarks", "figures", "paper_checks")
SOURCES = {
    ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): path
    for package in PACKAGES
    for path in sorted((ROOT / package).rglob("*.py"))
}
CALCULATOR = "dpzero_theory.params"
RANKS = {
    "check": 0,
    "bisection": 1,
    "cli": 1,
    "registry": 1,
    "problem_file": 1,
    "datasets": 1,
    "document": 1,
    "difference": 2,
    "sphere": 2,
    "privacy": 3,
    "theory": 4,
    "optim": 5,
    "synthetic": 6,
    "audit": 6,
    "curvature": 7,
    "render": 8,
    "params": 9,
    "_front": 10,
}
"""The rank of each part of the library: it may import itself and parts of lower rank. Imports in functions count."""


def statements(tree: ast.AST) -> Iterator[ast.AST]:
    """Yields all statements below a node of a syntax tree, wherever they stand.

    What is inside an expression is no statement.
    """
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, (ast.stmt, ast.excepthandler, ast.match_case)):
            yield node
            yield from statements(node)


def imports_of(name: str, source: str) -> set[str]:
    """Returns every module that is named in an import statement anywhere in a source text.

    `name` is the name of the module with the text `source`. Submodules are included where they exist.
    """
    found: set[str] = set()
    package = name if SOURCES.get(name, Path()).name == "__init__.py" else name.rpartition(".")[0]
    for node in statements(ast.parse(source)):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                above = package.split(".")[: len(package.split(".")) - node.level + 1]
                base = ".".join([*above, *([base] if base else [])])
            found.add(base)
            found |= {f"{base}.{alias.name}" for alias in node.names if f"{base}.{alias.name}" in SOURCES}
    return found


IMPORTS = {name: imports_of(name, path.read_text()) for name, path in SOURCES.items()}


def top_level(name: str) -> set[str]:
    """Returns every module that the module `name` imports when it is itself imported, outside of functions."""
    tree = ast.parse(SOURCES[name].read_text())
    for node in ast.walk(tree):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            node.body = [ast.Pass()]
    return imports_of(name, ast.unparse(for_types_aside(tree)))


def for_types_aside(tree: ast.Module) -> ast.Module:
    """Returns the syntax tree without the statements that only a type checker reads."""
    for node in ast.walk(tree):
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            node.body = [ast.Pass()]
    return tree


def reachable(start: str) -> set[str]:
    """Returns all modules, of the project and of others, that importing the module `start` imports."""
    seen: set[str] = set()
    waiting = [start]
    while waiting:
        name = waiting.pop()
        if name not in seen:
            seen.add(name)
            waiting += top_level(name) if name in SOURCES else ()
    return seen


def within(name: str, *packages: str) -> bool:
    return any(name == package or name.startswith(package + ".") for package in packages)


def part(name: str) -> str:
    return name.split(".")[1] if "." in name else ""


def test_the_files_are_found() -> None:
    assert {CALCULATOR, "dpzero_theory", "dpzero_theory.privacy.gaussian", "dpzero_theory.theory.pl"} <= set(SOURCES)


def test_the_reader_of_imports_sees_every_form() -> None:
    source = "import a.b\nfrom c import d\ndef f():\n    from .check import real\n    from . import sphere\n"
    assert imports_of(CALCULATOR, source) == {
        "a.b",
        "c",
        "dpzero_theory",
        "dpzero_theory.check",
        "dpzero_theory.sphere",
    }


@pytest.mark.parametrize("name", [name for name in SOURCES if within(name, "dpzero_theory")])
def test_the_library_imports_nothing_above_it(name: str) -> None:
    above = {other for other in IMPORTS[name] if within(other, "benchmarks", "figures", "paper_checks", "tests")}
    assert not above


@pytest.mark.parametrize("name", [name for name in SOURCES if within(name, "dpzero_theory") and part(name)])
def test_arrows_of_the_library_run_one_way(name: str) -> None:
    for other in IMPORTS[name]:
        if within(other, "dpzero_theory") and part(other) not in ("", part(name)):
            assert RANKS[part(other)] < RANKS[part(name)], f"{name} imports {other}"


@pytest.mark.parametrize("name", [name for name in SOURCES if part(name) in ("optim", "synthetic", "curvature")])
def test_optimisers_and_problems_take_numbers(name: str) -> None:
    """Optimisers and problems take numbers: of the theory the optimiser imports what a prescription is, and no more."""
    known = "dpzero_theory.theory.problem" if part(name) == "optim" else ""
    theory = {other for other in IMPORTS[name] if within(other, "dpzero_theory.theory")} - {"dpzero_theory.theory"}
    assert theory <= {known}


MAY_READ = {
    "figures": ("figures", "benchmarks.kit.rows", "dpzero_theory.cli"),
    "paper_checks": ("paper_checks", "benchmarks.kit.rows", "benchmarks.problems", "dpzero_theory"),
    "benchmarks": ("benchmarks", "dpzero_theory"),
}
"""What parts that only show results may import.

Figures compute no formula: of the project they import the reader of rows. Nothing imports a figure or a check.
"""


@pytest.mark.parametrize("name", [name for name in SOURCES if name.partition(".")[0] in MAY_READ])
def test_arrows_between_the_packages_run_one_way(name: str) -> None:
    own = {other for other in IMPORTS[name] if within(other, *PACKAGES)} - {"benchmarks", "dpzero_theory"}
    assert not {other for other in own if not within(other, *MAY_READ[name.partition(".")[0]])}


def test_no_import_cycles_between_modules() -> None:
    """There is no cycle of imports between modules; imports inside functions count."""
    edges = {name: {other for other in IMPORTS[name] if other in SOURCES and other != name} for name in SOURCES}
    done: set[str] = set()

    def visit(name: str, path: tuple[str, ...]) -> None:
        assert name not in path, " -> ".join([*path, name])
        if name not in done:
            for other in edges[name]:
                if not name.startswith(other + "."):
                    visit(other, (*path, name))
            done.add(name)

    for name in SOURCES:
        visit(name, ())


def test_the_calculator_starts_with_numpy_and_scipy_alone() -> None:
    """Starting the calculator imports nothing but the library, the standard library, numpy and scipy."""
    others = {name.split(".")[0] for name in reachable(CALCULATOR)} - set(sys.stdlib_module_names)
    assert others == {"dpzero_theory", "numpy", "scipy"}


def test_the_calculator_can_never_import_torch() -> None:
    """No module that the calculator reaches imports torch, not even inside a function."""
    for name in reachable(CALCULATOR):
        if name in SOURCES:
            tree = for_types_aside(ast.parse(SOURCES[name].read_text()))
            assert not {other for other in imports_of(name, ast.unparse(tree)) if within(other, "torch")}, name


def test_packages_re_export_nothing() -> None:
    """No package re-exports names, except the library itself and the packages of the accounting and of the audit."""
    doors = ("dpzero_theory", "dpzero_theory.privacy", "dpzero_theory.audit")
    for name, path in SOURCES.items():
        if path.name == "__init__.py" and name not in doors:
            assert not {other for other in IMPORTS[name] if within(other, *PACKAGES)}, name


def root_searches(source: str) -> set[str]:
    """Returns the functions in a source text that narrow an interval down in a loop of their own.

    They are known by the statement that replaces one end: `low, high = (x, high) if g(x) else (low, x)`.
    """

    def replaces_an_end(node: ast.AST) -> bool:
        match node:
            case ast.Assign(
                [ast.Tuple([ast.Name(a), ast.Name(b)])],
                ast.IfExp(_, ast.Tuple([ast.Name(c), ast.Name(d)]), ast.Tuple([ast.Name(e), ast.Name(f)])),
            ):
                return (d, e) == (b, a) or (c, f) == (a, b)
        return False

    functions = [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.FunctionDef)]
    loops = [(f.name, n) for f in functions for n in ast.walk(f) if isinstance(n, (ast.While, ast.For))]
    return {name for name, loop in loops if any(replaces_an_end(node) for node in ast.walk(loop))}


def test_root_searches_are_found_in_syntax_trees() -> None:
    halving = "def f(low, high):\n while high - low > 1:\n  m = h(low, high)\n  low, high = {}"
    for ends in ("(m, high) if g(m) else (low, m)", "(low, m) if g(m) else (m, high)"):
        assert root_searches(halving.format(ends)) == {"f"}
    assert root_searches(halving.format("(m, m)")) == set()


def test_roots_are_searched_for_by_bisection_or_scipy() -> None:
    """One search stays, whose values give the derivative too."""
    found = {(name, each) for name, path in SOURCES.items() for each in root_searches(path.read_text())}
    assert {each for each in found if each[0] != "dpzero_theory.bisection"} == {
        ("dpzero_theory.privacy.certified.analytic.tilting", "saddle"),
    }


def constants(source: str) -> Iterator[tuple[str, str]]:
    """Yields the constants that a source text assigns at its top level, each with the text of its value."""
    for node in ast.parse(source).body:
        if isinstance(node, ast.Assign):
            pairs = [(target, node.value) for target in node.targets]
        elif isinstance(node, ast.AnnAssign) and node.value is not None:
            pairs = [(node.target, node.value)]
        else:
            continue
        for target, value in pairs:
            names = target.elts if isinstance(target, ast.Tuple) else [target]
            values = (
                value.elts if isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple) else [value] * len(names)
            )
            found = ((ast.unparse(name), ast.unparse(each)) for name, each in zip(names, values, strict=True))
            yield from ((name, each) for name, each in found if name.isupper())


def test_constants_are_found_in_syntax_trees() -> None:
    source = "A = 1\nB, _C = 2, 3\nD: int = 4\nE, F = g()\nlow = 5\ndef f():\n    G = 6\n"
    assert dict(constants(source)) == {"A": "1", "B": "2", "_C": "3", "D": "4", "E": "g()", "F": "g()"}


def test_no_name_of_a_constant_has_two_values_within_a_room() -> None:
    values: dict[tuple[Path, str], set[str]] = {}
    for name, path in SOURCES.items():
        if within(name, "dpzero_theory"):
            for constant, value in constants(path.read_text()):
                values.setdefault((path.parent.relative_to(ROOT), constant), set()).add(value)
    assert len(values) > 300
    assert {where: found for where, found in values.items() if len(found) > 1} == {}
