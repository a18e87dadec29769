"""Problem files: JSON files with the measured constants of an optimisation problem, which the calculator reads.

`python -m dpzero_theory.curvature --out FILE` writes one and `python -m dpzero_theory.params --problem FILE` reads it:

    {"format": "dpzero-theory/problem", "version": 1,
     "problem": {"d": 2410, "r": 31.2, "lipschitz": 4.1, "smoothness": 9.7, "gap": 2.31, "loss_bound": 2.31},
     "data": "public",
     "caveats": ["one sentence each, printed beside every certificate"],
     "measurements": {...}}

"problem" has d and any of the other names in `CONSTANTS`, which are fields of `theory.problem.Problem`. "data" is one
of `DATA`. "measurements" is any JSON object.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

from dpzero_theory import check

CONSTANTS = ("d", "r", "lipschitz", "smoothness", "gap", "loss_bound", "sample_rank", "layer_rank")
"""The names that the entry "problem" of a problem file may have; they are fields of `theory.problem.Problem`."""
DATA = ("public", "synthetic", "private")
"""The allowed values of the entry "data" of a problem file, the kind of data on which its constants were measured."""

_FORMAT, _VERSION = "dpzero-theory/problem", 1  # The values of a problem file's entries "format" and "version"
_LARGEST_FILE = 1 << 24  # The size in bytes above which a problem file is refused

_PRIVATE = (
    "the constants were measured on private data: they, and every parameter below, depend on it, and the "
    "(epsilon, delta) below does not cover that"
)


@dataclass(frozen=True, kw_only=True)
class ProblemFile:
    """The content of a problem file: measured constants of an optimisation problem, and caveats about them.

    Attributes:
        constants: the constants by name, with names in `CONSTANTS`. "d" must be among them and is an integer >= 1; the
            others are numbers > 0, in the units of `theory.problem.Problem`.
        caveats: sentences that are shown beside every result computed from the constants. If `data` is "private", the
            class puts a sentence about that first.
        data: the kind of data on which the constants were measured: "public", "synthetic" or "private".
        measurements: further measurements, as a JSON object. No result is computed from them.

    Raises:
        ValueError: `data` is another word, "d" is missing, a name is unknown, or a constant is outside its range.
    """

    constants: Mapping[str, float]
    caveats: tuple[str, ...]
    data: str
    measurements: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        check.choice("data", self.data, DATA)
        for name, value in self.constants.items():
            check.choice("problem", name, CONSTANTS)
            if name == "d":
                check.integer("d", value)
            else:
                check.real(name, value, above=0)
        if "d" not in self.constants:
            raise ValueError("problem must name d; got none")
        private = (_PRIVATE,) if self.data == "private" else ()
        object.__setattr__(self, "caveats", private + tuple(c for c in self.caveats if c != _PRIVATE))

    @classmethod
    def read(cls, path: Path) -> Self:
        """Read the problem file at `path`.

        Raises:
            OSError: the file cannot be read.
            ValueError: the content is not a valid problem file, or the file has more than 16 MiB. The message is one
                line.
        """
        with path.open("rb") as file:
            text = file.read(_LARGEST_FILE + 1)
        if len(text) > _LARGEST_FILE:
            raise ValueError(f"a problem file must have at most {_LARGEST_FILE} bytes; got more")
        try:
            content = json.loads(text)
        except (ValueError, RecursionError):
            raise ValueError("a problem file must be JSON; got something else") from None
        if not isinstance(content, dict) or (content.get("format"), content.get("version")) != (_FORMAT, _VERSION):
            raise ValueError(f'a problem file must have "format": "{_FORMAT}" and "version": {_VERSION}')
        constants, caveats = content.get("problem"), content.get("caveats", [])
        measured = content.get("measurements", {})
        if not (isinstance(constants, dict) and isinstance(caveats, list) and isinstance(measured, dict)):
            raise ValueError('a problem file must have objects "problem" and "measurements", and a list "caveats"')
        if not all(isinstance(caveat, str) for caveat in caveats):
            raise ValueError('"caveats" of a problem file must be sentences')
        return cls(
            constants=constants,
            caveats=tuple(" ".join(caveat.split()) for caveat in caveats),
            data=content.get("data", ""),
            measurements=measured,
        )

    def as_json(self) -> str:
        """Return the JSON text of this problem file. Raises ValueError if `measurements` contains NaN or infinity."""
        content = {"format": _FORMAT, "version": _VERSION, "problem": dict(self.constants), "data": self.data}
        content |= {"caveats": list(self.caveats), "measurements": dict(self.measurements)}
        return json.dumps(content, indent=2, allow_nan=False) + "\n"
