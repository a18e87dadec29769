"""Take the folder of a private run apart, change it and write it again with valid checksums, as a forger could who
has the code."""

import hashlib
import json
import struct
from collections.abc import Callable, Iterator
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpzero_theory.optim.files.folder import LEDGER, TRANSCRIPT

JsonPath = tuple[str | int, ...]
"""The path to a value inside a JSON document: names of members and indices of lists, the outermost first."""
_CHECK = 8


def dumped(values: Any) -> str:
    """Return the value as JSON text."""
    return json.dumps(values)


@dataclass
class Folder:
    """The parts of a run's folder.

    header: the values of the transcript's first line, a JSON object. releases: for each release in the transcript its
    number, from 0. sums: the noisy sums that were released, as integers in the unit that the plan rounds to, shape (T,
    K) for T releases of K directions; a vector release (dpgd-0th) has K = 0, as the transcript does not hold it. lines:
    for each line of the ledger its JSON object.
    """

    header: Any
    releases: list[int]
    sums: NDArray[np.int64]
    lines: list[Any]

    @classmethod
    def read(cls, path: Path) -> "Folder":
        """Return the parts of the run's folder at `path`. Its files must be intact: they are not verified here, and
        damaged ones may raise an exception of any type."""
        line, _, rest = (path / TRANSCRIPT).read_bytes().partition(b"\n")
        header = json.loads(line)
        layout = struct.Struct(f"<I{_numbers(header['plan'])}q")
        size = layout.size + _CHECK
        found = [layout.unpack_from(rest, start) for start in range(0, len(rest) - size + 1, size)]
        sums = np.array([sums for _, *sums in found], dtype=np.int64).reshape(len(found), _numbers(header["plan"]))
        lines = [json.loads(line) for line in (path / LEDGER).read_text().splitlines()]
        return cls(header, [release for release, *_ in found], sums, lines)

    def copy(self) -> "Folder":
        return deepcopy(self)

    def write(self, path: Path, header: Callable[[Any], str] = dumped, line: Callable[[Any], str] = dumped) -> None:
        """Write the transcript and the ledger into the folder `path`, with every checksum computed anew, so that
        nothing shows that a value was changed. Each ledger line's digest of the run and its state of the transcript,
        where it has them, are computed anew too.

        header and line are functions that turn the transcript's header and a ledger's line into JSON text; a forger may
        write a text that this module would not write.
        """
        first = (header(self.header) + "\n").encode("utf-8", "surrogatepass")
        check, checks, text = hashlib.sha256(first).digest(), [], first
        checks.append(check[:_CHECK])
        for release, sums in zip(self.releases, self.sums.tolist(), strict=True):
            body = struct.pack(f"<I{len(sums)}q", release, *sums)
            check = hashlib.sha256(check + body).digest()[:_CHECK]
            checks.append(check)
            text += body + check
        (path / TRANSCRIPT).write_bytes(text)
        before, ledger = "0" * 64, b""
        for values in self.lines:
            body_of = {name: value for name, value in values.items() if name != "check"}
            if isinstance(body_of.get("run"), str):
                body_of["run"] = hashlib.sha256(first).hexdigest()
            if isinstance(body_of.get("state"), str) and isinstance(body_of.get("release"), int):
                count = sum(release < body_of["release"] for release in self.releases)
                body_of["state"] = f"{count}:{checks[count].hex()}"
            said = line(body_of)
            before = hashlib.sha256((before + said).encode("utf-8", "surrogatepass")).hexdigest()
            ledger += f'{said[:-1]}, "check": "{before}"}}\n'.encode("utf-8", "surrogatepass")
        (path / LEDGER).write_bytes(ledger)


def _numbers(plan: Any) -> int:
    return int(plan["directions_per_step"]) if plan["algorithm"] == "dpzero" else 0


def places(values: Any, at: JsonPath = ()) -> Iterator[JsonPath]:
    """Yield the paths to all values inside `values`, at any depth; `at` is the path of `values` itself."""
    inside = values.items() if isinstance(values, dict) else enumerate(values) if isinstance(values, list) else ()
    for name, value in inside:
        yield (*at, name)
        yield from places(value, (*at, name))


def replaced(values: Any, place: JsonPath, value: Any) -> Any:
    """Return a copy of `values` with `value` at the path `place`, or with nothing there if `value` is `...`."""
    found = deepcopy(values)
    *path, last = place
    inside = found
    for name in path:
        inside = inside[name]
    if value is ...:
        del inside[last]
    else:
        inside[last] = value
    return found


def value_at(values: Any, place: JsonPath) -> Any:
    for name in place:
        values = values[name]
    return values


def twice(values: Any, place: JsonPath, first: Any) -> str:
    """Return `values` as JSON text in which the member at the path `place` stands twice: first with the value `first`,
    then with its own. The path must lead through JSON objects only, not through lists."""
    mark = "@first@"
    text = dumped(replaced(values, place, mark))
    name, value = dumped(place[-1]), dumped(value_at(values, place))
    return text.replace(f'{name}: "{mark}"', f"{name}: {dumped(first)}, {name}: {value}", 1)
