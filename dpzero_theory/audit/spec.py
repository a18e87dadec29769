"""Reads the specification of an audit from a TOML file or a function.

In a TOML file, paths are relative to the folder of the file, and modules are looked for there first:

    train = "train:run"                      # MODULE:FUNCTION of the loop
    records = "train:records"                # MODULE:FUNCTION that returns the records, or a file of numpy.save

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
    [settings]                               # further settings of the loop, by its own names; may be left out
    lr = 0.1
    [variations."four micro-batches"]        # further settings under which the claim must hold; may be left out
    micro_batches = 4

Instead of a file, MODULE:FUNCTION may name a function without arguments that returns a `Spec`. Modules that are named
are imported, and functions that make records or a `Spec` are called.
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
        train: the loop, a function (records, seed, settings) -> an array of releases, or a mapping of outputs by name,
            as `conformance.check` describes it.
        records: the claim's n records, as an array with one record in each row, or as a list of numbers, arrays,
            tensors or tuples of these.
        claim: what the loop's author claims about its privacy.
        view: what an attacker sees of a run.
        settings: settings that the loop is given in addition to those of the claim, by its own names.
        variations: further settings under which the claim must hold, by a name for the report, such as {"four
            micro-batches": {"micro_batches": 4}}.
    """

    train: Train
    records: Records
    claim: Claim
    view: View = field(default_factory=View)
    settings: Mapping[str, Any] = field(default_factory=dict)
    variations: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)

    def audit(self, **how: Any) -> AuditReport:
        """Audit the loop and return the report. `how` holds keyword arguments of `conformance.check`, such as
        runs=100."""
        return conformance(
            self.train, self.records, self.claim, self.view, self.settings, variations=self.variations, **how
        )


def load(text: str) -> Spec:
    """Return the specification from a TOML file or from a function.

    Args:
        text: the path of a TOML file, which ends in .toml; or MODULE:FUNCTION, for a function without arguments that
            returns a `Spec`, in a module that is looked for in the working directory first. The TOML file has the
            entries "train", the MODULE:FUNCTION of the loop, and "records", a file of `numpy.save` or the
            MODULE:FUNCTION of a function without arguments that returns the records; a table "claim" with the fields of
            `Claim`; and, if needed, tables "view", with fields of `View`, "settings", with further settings of the
            loop, and "variations.NAME", with settings under which the claim must also hold. Its paths are relative to
            its folder, where modules are looked for first.

    Raises:
        ValueError: there is no such file or function, or it has a fault.
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
