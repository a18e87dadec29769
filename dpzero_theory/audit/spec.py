"""Reads the specification of an audit from a TOML file or a function.

This is a TOML file. Its paths and modules are looked for in its own folder first:

    train = "train:run"                      # MODULE:FUNCTION
    records = "train:records"                # MODULE:FUNCTION that returns them, or a file of numpy.save

    [claim]                                  # the fields of `claim.Claim`
    epsilon = 2.2
    delta = 1e-5
    relation = "add-remove"
    sampling = "poisson"
    n = 48
    batch = 12
    steps = 12
    noise_multiplier = 2.0
    clip = 1.0
    [view]                                   # the fields of `claim.View`; may be left out
    seed = "secret"
    names = { step_size = "lr" }
    [settings]                               # the loop is given these as they are
    lr = 0.1
    [variations."four micro-batches"]        # further settings under which the claim must hold
    micro_batches = 4

In its place MODULE:FUNCTION may name a function without arguments that returns a `Spec`. Modules that are named are
imported, with the file's folder on `sys.path` meanwhile, and functions that make records or a `Spec` are called.
"""

import importlib
import sys
import tomllib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from dpzero_theory import check
from dpzero_theory.audit.claim import Claim, View
from dpzero_theory.audit.conformance import check as conformance
from dpzero_theory.audit.datasets import Records
from dpzero_theory.audit.loop import Train
from dpzero_theory.audit.report import AuditReport

_TABLES = ("claim", "view", "settings", "variations")
_LONGEST_SPEC = 1 << 20  # At most this many bytes of a TOML file with a specification are read


@dataclass(frozen=True)
class Spec:
    """The specification of an audit.

    Attributes:
        train: the loop, a function (records, seed, settings) -> releases, the noised average or sum of each of T steps,
            shape (T,) or (T, k); or a mapping with the entry "releases" and the others of the module `audit.loop`. Its
            `settings` are a dictionary with all fields of the claim but `average`, such as "clip" (or the loop's name
            for it in `view.names`), and the settings below.
        records: the claim's n records, an array with one record a row, or a list whose entries are numbers, arrays,
            tensors or tuples of these.
        claim: what the loop's author says of its privacy.
        view: what an attacker sees.
        settings: what the loop is given in addition to the claim's numbers, by the loop's own names.
        variations: further settings under which the claim must hold, by a name for the report, as in {"four
            micro-batches": {"micro_batches": 4}}.
    """

    train: Train
    records: Records
    claim: Claim
    view: View = field(default_factory=View)
    settings: Mapping[str, Any] = field(default_factory=dict)
    variations: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)

    def audit(self, **how: Any) -> AuditReport:
        """Audit the loop and return the report; `how` are keyword arguments of `conformance.check`, such as `runs`."""
        return conformance(
            self.train, self.records, self.claim, self.view, self.settings, variations=self.variations, **how
        )


def load(text: str) -> Spec:
    """Return the specification that `text` names.

    Args:
        text: the path of a TOML file, which ends in .toml; or MODULE:FUNCTION, a function without arguments that
            returns a `Spec`. The file has an entry "train", the MODULE:FUNCTION of the loop; an entry "records", a file
            of `numpy.save` or the MODULE:FUNCTION of a function without arguments that returns the records; the tables
            "claim" and "view", with the fields of `Claim` and `View`; the table "settings", which the loop is given;
            and tables "variations.NAME" with settings to replace. All but "train", "records" and "claim" may be
            missing. Paths are relative to the file's folder, where modules are looked for first; the module of a `text`
            that is no file is looked for in the working directory first.

    Raises:
        ValueError: there is no such file or function, or it has a fault; the message is one line.
    """
    if not text.endswith(".toml"):
        with _modules_looked_for_in(Path.cwd()):
            made = _called("spec", text)
        if not isinstance(made, Spec):
            raise ValueError(f"spec must be a .toml file or a function that returns a Spec; got {type(made).__name__}")
        return made
    path = Path(text).absolute()
    try:
        content = tomllib.loads(path.read_bytes()[:_LONGEST_SPEC].decode())
    except (OSError, ValueError) as error:
        raise ValueError(f"spec must be a TOML file that can be read; got {text!r} ({error})") from None
    for key in content:
        check.choice("spec", key, ("train", "records", *_TABLES))
    for table in _TABLES:
        if not isinstance(content.get(table, {}), dict):
            raise ValueError(f"{table} must be a table; got {check.shown(content[table])}")
    view = {k: tuple(v) if isinstance(v, list) else v for k, v in content.get("view", {}).items()}
    claim = _made(Claim, "claim", content.get("claim", {}))
    with _modules_looked_for_in(path.parent):
        train = _function("train", content.get("train"))
        records = _records(content.get("records"), path.parent)
    rest = {name: content.get(name, {}) for name in ("settings", "variations")}
    return Spec(train, records, claim, _made(View, "view", view), **rest)


def _made(kind: Callable[..., Any], name: str, values: dict[str, Any]) -> Any:
    try:
        return kind(**values)
    except TypeError as error:
        # Python's message is, for example: __init__() missing 1 required keyword-only argument: 'clip'
        said = str(error).partition(") ")[2]
        raise ValueError(f"{name} must have the fields of claim.{kind.__name__}; {said}") from None


def _records(given: object, folder: Path) -> Records:
    if not isinstance(given, str):
        raise ValueError(f"records must be MODULE:FUNCTION or a file of numpy.save; got {check.shown(given)}")
    if given.endswith(".npy"):
        try:
            return np.load(folder / given)
        except (OSError, ValueError) as error:
            raise ValueError(f"records must be a file of numpy.save; got {given!r} ({error})") from None
    return _called("records", given)


@contextmanager
def _modules_looked_for_in(folder: Path) -> Iterator[None]:
    sys.path.insert(0, str(folder))
    try:
        yield
    finally:
        if str(folder) in sys.path:
            sys.path.remove(str(folder))


def _called(name: str, text: object) -> Any:
    function = _function(name, text)
    try:
        return function()
    except Exception as error:
        said = f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"
        raise ValueError(f"{name} must be a function without arguments; {text!r} raised {said}") from error


def _function(name: str, text: object) -> Callable[..., Any]:
    rule = f"{name} must be MODULE:FUNCTION of a module that can be imported"
    module, _, function = text.partition(":") if isinstance(text, str) else ("", "", "")
    if not all(part.isidentifier() for part in module.split(".")) or not function.isidentifier():
        raise ValueError(f"{rule}; got {check.shown(text)}")
    try:
        member = getattr(importlib.import_module(module), function, None)
    except Exception as error:
        raise ValueError(f"{rule}; got {text!r} ({type(error).__name__}: {' '.join(str(error).split())})") from None
    if not callable(member):
        raise ValueError(f"{rule}; got {text!r}, which is no function")
    return member  # type: ignore[no-any-return]
