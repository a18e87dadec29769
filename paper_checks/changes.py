"""Change one input of a check and run it again: a check whose verdict no change turns tests nothing.

A change is of one of these kinds:

    table      a number of `tables.toml`;
    rows       the measured columns of a benchmark's committed rows, in those rows that have one value in a grouping
               column;
    statement  a constant, a product or a sum of a formula in `paper_checks.formulas`;
    check      a constant in the check, or in a function of `paper_checks.checks` that it uses, and after those a
               product or a sum.

Thresholds (plain numbers in a comparison) are never changed, nor are seeds, tolerances, sizes from 1,000 on, zeros, and
what is only shown. So if no change turns the verdict, the verdict does not depend on what the check says it tests.
"""

import ast
import inspect
import math
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cache
from itertools import chain
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any, NamedTuple

from paper_checks import registry, rows, tables
from paper_checks.registry import Claim

FORMULAS = "paper_checks.formulas"  # the module that holds the paper's formulas
FACTORS: tuple[float, ...] = (10, 1000, 2, 1.1)
"""The factors by which a number is multiplied and then divided, tried in this order. Before the first of them an
integer is raised and lowered by 1."""
GROUPS: Mapping[str, tuple[str, ...]] = {
    "synthetic": ("method", "d"),
    "synthetic_dpgd": ("method", "d"),
    "llm_clip_lr": ("clip", "step_size"),
    "optimizer_step": ("method",),
}
"""The folders of benchmark rows that checks read, each with its grouping columns: a change of kind `rows` scales the
rows with one value of one of these columns."""
SWAPS: Mapping[type[ast.operator], type[ast.operator]] = {
    ast.Mult: ast.Div,
    ast.Div: ast.Mult,
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
}
"""For each arithmetic operator the one that a change puts in its place: products and quotients are exchanged, and
sums and differences."""
_NO_FORMULAS = {"SYNTHETIC", "STATEMENTS", "Statement", "paper_points", "value", "_compiled", "same"}
"""Names in `paper_checks.formulas` that are not formulas of the paper, so changes leave them alone."""
_UNCHANGED = {"Plot", "default_rng", "agree", "isclose", "allclose", "round"}
"""Functions whose plain numeric arguments are sizes, seeds, tolerances or axes, which changes leave alone."""
_SHOWN = {"numbers", "plot", "rtol", "atol", "size", "axis", "dtype", "repeat"}
"""Keyword arguments whose values changes leave alone, because they are only shown or are sizes, axes or tolerances."""


@dataclass(frozen=True)
class Change:
    """One changed input of a check.

    Attributes:
        kind: "table" for a number of `tables.toml`, "rows" for measured columns of a benchmark's rows, "statement" for
            a part of one of the paper's formulas, in `paper_checks.formulas`, and "check" for a part of the check's own
            code, or of a function that it uses.
        place: where the input is: a table and column, a folder and its rows, or a module and the name of a definition.
        index: which input of that place it is: 0, 1, ... for numbers, and -1, -2, ... for the operators +, -, * and /
            of a definition.
        old, new: the input's text before and after the change.
    """

    kind: str
    place: str
    index: int
    old: str
    new: str


def changes(claim: Claim) -> Iterator[Change]:
    """Yield every change that the claim's check may notice, the likeliest kind first.

    A claim of kind 'table arithmetic' may only be turned by numbers of tables, and a part of a theorem (such as
    thm1-alpha) only by the formula that it is named after, because that is what these claims are about.
    """
    own = own_formula(claim.id)
    if claim.kind == "table arithmetic":
        yield from _table_changes(claim)
    elif own:
        yield from _by_factor(_statement_sites({own.partition(":")[2]}))
    else:
        parts = list(_parts(claim.id))
        sites = [site for place, node in parts for site in _code_sites("check", place, node)]
        named = _entries(claim.id, [node for _, node in parts])
        yield from _by_factor(site for site in sites if site.node in named)
        constants = (site for site in sites if site.value is not None)
        statements = _statement_sites(_named([node for _, node in parts]))
        yield from _by_factor(chain(_row_sites(claim), statements, constants))
        if any("paper_checks.tables" in source_of(place.partition(":")[0]) for place, _ in parts):
            yield from _table_changes(claim)
        yield from _by_factor(site for site in sites if site.value is None)


def _entries(id: str, nodes: Iterable[ast.AST]) -> set[ast.AST]:
    """Return the syntax nodes of those dictionary entries, in the given trees, whose key is a text that the check of
    the claim `id` has as a default argument. Such a check tests one of many results that a function returns in a
    dictionary, and the entry is the formula of its result."""
    keys = {d for d in function_of(id).__defaults__ or () if isinstance(d, str)}
    tables = [n for root in nodes for n in ast.walk(root) if isinstance(n, ast.Dict)]
    entries = [pair for table in tables for pair in zip(table.keys, table.values, strict=True)]
    return {n for key, value in entries if getattr(key, "value", "") in keys for n in ast.walk(value)}


def smaller(claim: Claim, change: Change) -> list[Change]:
    """Return the changes of the same input as `change` that change it by a smaller factor, the smallest first. They are
    among those that `changes(claim)` yields."""

    def size(other: Change) -> float:
        if other.index < 0:
            return 0.0
        ratio = float(other.new) / (1.0 if other.kind == "rows" else float(other.old))
        return abs(math.log(ratio)) if ratio > 0 else math.inf

    same = [c for c in changes(claim) if replace(c, new=change.new) == change]
    return sorted((c for c in same if size(c) < size(change)), key=size)


def own_formula(id: str) -> str:
    """Return the one formula of `paper_checks.formulas` that the claim `id` is about, as MODULE:NAME, or '' if the
    claim is about none or several."""
    name, _, part = id.partition("-")
    fields = {"utility": "bound", "alpha": "alpha", "steps": "T", "clip": "C", "evaluations": "order"}
    if name[:3] not in ("thm", "cor") or name[3:] not in ("1", "2", "3"):
        return ""
    if part in ("noise", "privacy"):
        return f"{FORMULAS}:noise"
    if part == "smoothing":
        return f"{FORMULAS}:{name}.lam"
    return f"{FORMULAS}:{name}.{fields[part]}" if part in fields else ""


class Site(NamedTuple):
    """An input of a check that can be changed.

    Attributes:
        change: what is to be changed; for a number its field `new` is still empty.
        value: the number, or None for an operator.
        node: its syntax node; None for numbers of tables and rows.
    """

    change: Change
    value: float | None
    node: ast.AST | None = None


def _by_factor(sites: Iterable[Site]) -> Iterator[Change]:
    """Yield the changes of these inputs: those of all numbers by the first of FACTORS, then those of all by the next. A
    number is both multiplied and divided. An operator is exchanged once, together with the first factor."""
    listed = list(sites)
    for factor in FACTORS:
        for change, value, _ in listed:
            if value is not None:
                yield from (replace(change, new=f"{x:.17g}") for x in _values(value, factor))
            elif factor == FACTORS[0]:
                yield change


def _values(value: float, factor: float) -> list[float]:
    """Return the values that a number is changed to with this factor of FACTORS: the number times the factor and over
    it; for an integer and the first factor also one more and one less. A zero becomes 1,000 times the factor."""
    if value == 0:  # zeros come only from tables, as a zero in code is never changed
        return [factor * 1000]
    if isinstance(value, int):
        beside = [value + 1, value - 1] if factor == FACTORS[0] else []
        return [*beside, value * int(factor), value / factor]
    return [value * factor, value / factor]


# --- changes of the numbers of `tables.toml`, and of benchmarks' committed rows ---


def _table_changes(claim: Claim) -> Iterator[Change]:
    """Yield changes of the numbers of every table in `tables.toml`, those of the table that the claim names first."""
    data = tables.load()
    order = sorted(data, key=lambda label: (label != claim.label, label not in (tables.SENTENCES, tables.FACTS)))
    for label in order:
        yield from _by_factor(_table_sites(label, data[label]))


def _table_sites(label: str, table: Mapping[str, Any]) -> Iterator[Site]:
    for name, content in table.items():
        numbers = content["values"] if isinstance(content, dict) else content
        if name == "columns":
            continue
        for k, number in enumerate(numbers):
            yield Site(Change("table", f"{label}/{name}", k, f"{number:g}", ""), float(number))


def _row_sites(claim: Claim) -> Iterator[Site]:
    texts = {n.value for _, node in _parts(claim.id) for n in ast.walk(node) if isinstance(n, ast.Constant)}
    for folder, columns in GROUPS.items():
        if folder in texts:
            for column in columns:
                for value in sorted({row[column] for row in rows.read(folder)}):
                    yield Site(Change("rows", f"{folder}/{column}={value}", 0, "measured", ""), 1.0)


# --- changes of source code ---


@cache
def source_of(module: str) -> str:
    """Return the source text of a loaded module."""
    return Path(inspect.getsourcefile(sys.modules[module]) or "").read_text()


@cache
def tree_of(module: str) -> ast.Module:
    """Return the syntax tree of a loaded module."""
    return ast.parse(source_of(module))


def definitions_in(tree: ast.Module) -> dict[str, ast.AST]:
    """Return the syntax nodes of a module's top-level functions, classes and constants by name, and of each `Statement`
    of a theorem its fields, as "thm1.alpha". `tree` is the module's syntax tree."""
    found: dict[str, ast.AST] = {}
    for node in tree.body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            found[node.name] = node
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
                names = target.elts if isinstance(target, ast.Tuple) else [target]
                found |= {name.id: node for name in names if isinstance(name, ast.Name)}
    for name in ("THEOREMS", "COROLLARIES"):
        for call in ast.walk(found.pop(name, ast.Pass())):
            if isinstance(call, ast.Call) and getattr(call.func, "id", "") == "Statement":
                id = call.args[0]
                assert isinstance(id, ast.Constant)
                found |= {f"{id.value!s}.{keyword.arg}": keyword.value for keyword in call.keywords}
    return found


@cache
def imports_of(module: str) -> dict[str, str]:
    """Return, for each name that a module of checks imports from `paper_checks.formulas`, which has the paper's
    formulas, or from a module of `paper_checks.checks`, the dotted name of the module that it comes from. Other imports
    are left out. module: the dotted name of the importing module."""
    found: dict[str, str] = {}
    for node in ast.walk(tree_of(module)):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("paper_checks"):
            for name in node.names:
                whole = f"{node.module}.{name.name}"
                home = whole if whole in sys.modules else str(node.module)
                if home == FORMULAS or home.startswith("paper_checks.checks."):
                    found[name.asname or name.name] = home
    return found


def check_node(tree: ast.Module, function: FunctionType) -> ast.AST:
    """Return the syntax node of the registered check `function`, which may be a lambda, in its module's tree."""
    line = function.__code__.co_firstlineno
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.Lambda):
            decorators = node.decorator_list if isinstance(node, ast.FunctionDef) else []
            if line in (node.lineno, *(d.lineno for d in decorators)):
                return node
    raise ValueError(f"no source for the check in line {line}")


def function_of(id: str) -> FunctionType:
    """Return the function that is registered as the check of the claim `id`. Raises KeyError if there is none."""
    function = registry.registered()[id]
    assert isinstance(function, FunctionType)
    return function


def _parts(id: str) -> Iterator[tuple[str, ast.AST]]:
    """Yield the check of the claim `id` and the functions of `paper_checks.checks` that it uses, each as its place
    (MODULE:NAME) and its syntax tree."""
    function = function_of(id)
    module = function.__module__
    node = check_node(tree_of(module), function)
    yield f"{module}:{id}", node
    helpers = [d.__name__ for d in function.__defaults__ or () if isinstance(d, FunctionType)]
    waiting, seen = [(module, name) for name in [*helpers, *_names(node)]], set[tuple[str, str]]()
    while waiting:
        home, name = waiting.pop(0)
        home = imports_of(home).get(name, home)
        if home == FORMULAS or (home, name) in seen:
            continue
        seen.add((home, name))
        if definition := definitions_in(tree_of(home)).get(name):
            yield f"{home}:{name}", definition
            waiting += [(home, other) for other in _names(definition)]


def _named(nodes: Iterable[ast.AST]) -> set[str]:
    """Return the names in `paper_checks.formulas` of those formulas that the syntax trees `nodes` use, as `f.noise` or
    by the id of a theorem, and of all formulas that occur in these, in turn."""
    everything = definitions_in(tree_of(FORMULAS))
    walked = [node for root in nodes for node in ast.walk(root)]
    used = {n.attr for n in walked if isinstance(n, ast.Attribute) and getattr(n.value, "id", "") == "f"}
    ids = {n.value for n in walked if isinstance(n, ast.Constant) and isinstance(n.value, str)}
    statements = {name for name in everything if "." in name}
    chosen = {name for name in statements if name.partition(".")[0] in ids}
    if used & {"STATEMENTS", "THEOREMS", "COROLLARIES"}:
        used |= chosen or statements
    waiting, found = list(used), set[str]()
    while waiting:
        name = waiting.pop()
        if name in everything and name not in found:
            found.add(name)
            waiting += _names(everything[name])
    return found


def _statement_sites(names: set[str]) -> Iterator[Site]:
    for name, node in definitions_in(tree_of(FORMULAS)).items():
        if name in names - _NO_FORMULAS:
            place = f"{FORMULAS}:{name}"
            yield from _code_sites("statement", place, node)


def _names(node: ast.AST) -> list[str]:
    return [n.id for n in ast.walk(node) if isinstance(n, ast.Name)]


def _code_sites(kind: str, place: str, node: ast.AST) -> Iterator[Site]:
    """Yield the constants of a definition (its syntax tree `node`) as inputs, with index 0, 1, ..., then its operators,
    with index -1, -2, .... The inputs' changes have this kind and place."""
    for k, constant in enumerate(constants_in(node)):
        value = constant.value
        assert isinstance(value, int | float)
        yield Site(Change(kind, place, k, f"{value:g}", ""), value, constant)
    for k, operator in enumerate(operators_in(node)):
        new = ast.unparse(_swapped(operator))
        yield Site(Change(kind, place, -1 - k, ast.unparse(operator), new), None, operator)


def constants_in(node: ast.AST) -> Iterator[ast.Constant]:
    """Yield those numeric constants of a definition that changes may alter, in the order of the source. `node` is the
    definition's syntax tree."""
    if isinstance(node, ast.Constant):
        if isinstance(node.value, int | float) and not isinstance(node.value, bool) and 1e-5 < abs(node.value) < 1000:
            yield node
    elif isinstance(node, ast.Compare):
        for part in (node.left, *node.comparators):
            if not _is_plain(part):
                yield from constants_in(part)
    elif isinstance(node, ast.Call):
        name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
        if name != "Plot":
            yield from constants_in(node.func)
            for argument in node.args:
                if name not in _UNCHANGED or not isinstance(argument, ast.Constant):
                    yield from constants_in(argument)
            for keyword in node.keywords:
                if keyword.arg not in _SHOWN:
                    yield from constants_in(keyword.value)
    elif not isinstance(node, ast.JoinedStr | ast.Slice | ast.arguments):
        for child in ast.iter_child_nodes(node):
            if not (isinstance(node, ast.FunctionDef) and child in node.decorator_list):
                yield from constants_in(child)


def operators_in(node: ast.AST) -> list[ast.BinOp]:
    """Return the sums, differences, products and quotients in a definition, except those of two plain numbers. `node`
    is the definition's syntax tree."""
    return [n for n in ast.walk(node) if isinstance(n, ast.BinOp) and type(n.op) in SWAPS and not _is_plain(n)]


def _is_plain(node: ast.AST) -> bool:
    return not any(isinstance(n, ast.Name | ast.Call | ast.Attribute) for n in ast.walk(node))


def _swapped(node: ast.BinOp) -> ast.BinOp:
    return ast.BinOp(node.left, SWAPS[type(node.op)](), node.right)


# --- running a check with a change ---


def verdict(id: str) -> str:
    """Run the check of the claim `id` as it is registered now, with the smaller samples, and return its verdict: that
    of its finding, 'failed' if it finds that the library disagrees with the paper, or 'crashed' after any other
    error."""
    try:
        return registry.registered()[id](False).verdict
    except registry.Disagreement:
        return "failed"
    except Exception:
        return "crashed"


@contextmanager
def changed(change: Change | None, id: str) -> Iterator[None]:
    """Return a context in which the check of the claim `id` is loaded from the changed source or data (unchanged if
    `change` is None).

    Afterwards everything is as before. Raises ValueError if the source no longer has the value that the change
    replaces.
    """
    before, home = dict(registry._CHECKS), function_of(id).__module__
    modules = {name: module for name, module in sys.modules.items() if name.startswith("paper_checks.")}
    numbers = _numbers(change) if change and change.kind == "table" else []
    kept, edited = list(numbers), dict[str, ast.Module]()
    try:
        if change and change.kind == "table":
            numbers[change.index] = float(change.new)
        elif change and change.kind == "rows":
            setattr(rows, "read", _scaled(change.place, float(change.new)))  # noqa: B010  mypy knows no assignment to it
        elif change:
            place, _, name = change.place.partition(":")
            edited[place] = _edited(change, place, name)
        _load(home, edited)
        yield
    finally:
        numbers[:] = kept
        rows.read = _read
        registry._CHECKS.clear()
        registry._CHECKS.update(before)
        for own, module in modules.items():
            _install(own, module)


def _numbers(change: Change) -> list[float]:
    """Return the list of numbers that the change's place, SECTION/NAME of `tables.toml`, stands for. It is the loaded
    list itself: whoever changes it changes the table that all checks read."""
    label, _, name = change.place.partition("/")
    content = tables.load()[label][name]
    numbers: list[float] = content["values"] if isinstance(content, dict) else content
    return numbers


def _edited(change: Change, module: str, name: str) -> ast.Module:
    """Return the syntax tree of a module in which the definition `name`, or the check of the claim with the id `name`,
    has the change. Raises ValueError if the source no longer has the value that the change replaces."""
    tree = ast.parse(source_of(module))
    node = definitions_in(tree).get(name) or check_node(tree, function_of(name))
    if change.index < 0:
        operator = operators_in(node)[-1 - change.index]
        old = ast.unparse(operator)
        operator.op = SWAPS[type(operator.op)]()
    else:
        constant = list(constants_in(node))[change.index]
        assert isinstance(constant.value, int | float)
        old, number = f"{constant.value:g}", float(change.new)
        whole = isinstance(constant.value, int) and number.is_integer()
        constant.value = int(number) if whole else number
    if old != change.old:
        raise ValueError(f"{change.place} has {old} where the change expects {change.old}")
    return tree


def _install(name: str, module: ModuleType) -> None:
    sys.modules[name] = module
    package, _, own = name.rpartition(".")
    setattr(sys.modules[package], own, module)


def _load(home: str, edited: Mapping[str, ast.Module]) -> None:
    """Execute the module `home` again, and before it those modules that it imports whose tree is in `edited` or that
    depend on such a module."""
    registry._CHECKS.clear()

    @cache
    def fresh(name: str) -> bool:
        again = [fresh(other) for other in sorted(set(imports_of(name).values()))]
        if name != home and name not in edited and not any(again):
            return False
        module = ModuleType(name)
        module.__file__ = inspect.getsourcefile(sys.modules[name])
        _install(name, module)
        exec(compile(edited.get(name, tree_of(name)), str(module.__file__), "exec"), module.__dict__)
        return True

    fresh(home)


_read = rows.read


@cache
def _rows(folder: str) -> list[dict[str, str]]:
    return list(_read(folder))


def _scaled(place: str, factor: float) -> Callable[[str], Iterator[dict[str, str]]]:
    """Return a replacement of `rows.read` that multiplies the measured columns by `factor` in the rows that `place`
    (FOLDER/COLUMN=VALUE) names."""
    folder, _, pick = place.partition("/")
    column, _, value = pick.partition("=")
    measured = ("gradient", "loss", "dev", "test", "to_non_private", "peak_to", "ratio")

    def altered(name: str) -> Iterator[dict[str, str]]:
        for row in _rows(name):
            if name == folder and row[column] == value:
                row = {k: _times(v, factor) if k.startswith(measured) else v for k, v in row.items()}
            yield row

    return altered


def _times(text: str, factor: float) -> str:
    return f"{float(text) * factor:.17g}" if text and text != "none" else text
