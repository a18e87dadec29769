"""Tests of which parts of the project may import which, read from the import statements.

The order is check, sphere -> privacy -> theory -> optim -> synthetic -> curvature; render and params are on top of the
theory; benchmarks and paper_checks join them; figures import only the reader of results.
"""

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

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
    "__main__": 0,
    "_lazy": 0,
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


def test_arrows_of_the_library_run_one_way() -> None:
    """No part of the library imports one above it; optimisers and problems take numbers, so that of the theory the
    optimiser imports what a prescription is, and no more."""
    for name in (name for name in SOURCES if within(name, "dpzero_theory")):
        for other in IMPORTS[name]:
            assert not within(other, "benchmarks", "figures", "paper_checks", "tests"), f"{name} imports {other}"
            if part(name) and within(other, "dpzero_theory") and part(other) not in ("", part(name)):
                assert RANKS[part(other)] < RANKS[part(name)], f"{name} imports {other}"
            if part(name) in ("optim", "synthetic", "curvature") and part(other) == "theory":
                known = {"dpzero_theory.theory", *(["dpzero_theory.theory.problem"] if part(name) == "optim" else [])}
                assert other in known, f"{name} imports {other}"


MAY_READ = {
    "figures": ("figures", "benchmarks.kit.rows", "dpzero_theory.cli"),
    "paper_checks": ("paper_checks", "benchmarks.kit.rows", "benchmarks.problems", "dpzero_theory"),
    "benchmarks": ("benchmarks", "dpzero_theory"),
}
"""What parts that only show results may import.

Figures compute no formula: of the project they import the reader of rows. Nothing imports a figure or a check.
"""


def test_arrows_between_the_packages_run_one_way() -> None:
    for name in (name for name in SOURCES if name.partition(".")[0] in MAY_READ):
        own = {other for other in IMPORTS[name] if within(other, *PACKAGES)} - {"benchmarks", "dpzero_theory"}
        assert not {other for other in own if not within(other, *MAY_READ[name.partition(".")[0]])}, name


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


def test_the_calculator_starts_with_numpy_and_scipy_alone_and_can_never_import_torch() -> None:
    """Starting the calculator imports nothing but the library, the standard library, numpy and scipy, and no module
    that it reaches imports torch, not even inside a function."""
    others = {name.split(".")[0] for name in reachable(CALCULATOR)} - set(sys.stdlib_module_names)
    assert others == {"dpzero_theory", "numpy", "scipy"}
    for name in reachable(CALCULATOR):
        if name in SOURCES:
            tree = for_types_aside(ast.parse(SOURCES[name].read_text()))
            assert not {other for other in imports_of(name, ast.unparse(tree)) if within(other, "torch")}, name
