"""Forged, damaged and threaded folders of private runs: what the command that verifies a folder makes of them.

    python -m benchmarks.forged_folders

Each of 1,000 folders is of a small run, with a random method (direction law, number of directions), to which one of
three things happens:

    forged     one to three of the lies listed in this module are written into it, and every checksum is made anew
    damaged    one to three times bytes are lost, changed, added, moved, or replaced by those of another run
    threaded   two to four threads step the run at once, while another thread verifies it

The folder is verified, with the answer as text, JSON or HTML. Then the run is resumed. Then the folder's files are
replaced by the intact ones, and the run is continued to its end. A row counts what went wrong:

    accepted   the folder was found to be right although it could be known that something is wrong: a listed lie, or, in
               a damaged folder, a transcript that is no beginning of what was released, or a ledger that counts fewer
    unclear    a refusal was not exactly one line, or had a character that is not printable ASCII
    traceback  an exception was raised that is none of the refusals
    wedged     there was no end within two minutes, or the run could not be continued with its files put back, or it
               was refused at its end

Some changes cannot be noticed by anyone (other texts, another order of the numbers). They are made too, and do not
count as accepted.
"""

import contextlib
import io
import json
import math
import sys
import threading
from argparse import Namespace
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from unittest import mock

import numpy as np
import torch
from torch import nn
from torch.utils.data import TensorDataset

from benchmarks.kit.experiment import Experiment, flag
from benchmarks.kit.forged import Folder, dumped, places, replaced, twice, value_at
from benchmarks.kit.limits import TooLong, limited
from benchmarks.kit.rows import read_rows
from benchmarks.optim.forged_tables import forged_folders
from dpzero_theory.cli import integer
from dpzero_theory.optim.files.folder import LEDGER, TRANSCRIPT
from dpzero_theory.optim.files.transcript import TranscriptError
from dpzero_theory.optim.private import make_private_with_epsilon
from dpzero_theory.optim.run import Run
from dpzero_theory.optim.verify import main as verify
from dpzero_theory.privacy import ledger
from dpzero_theory.privacy.ledger import BudgetSpentError, LedgerError
from dpzero_theory.privacy.noise import SystemNoise

SEED, RECORDS, STEPS, SECONDS = 20267, 12, 24, 120
REFUSALS = (LedgerError, TranscriptError, ValueError, OSError)
JUDGED = ("accepted", "unclear", "traceback", "wedged")
KINDS = ("forged", "damaged", "forged", "damaged", "threaded")
METHODS: dict[str, dict[str, Any]] = {
    "gaussian": {},
    "gaussian, K = 3": {"directions_per_step": 3},
    "laplace": {"noise": "laplace"},
    "dpgd-0th": {"algorithm": "dpgd-0th"},
}
TARGET: dict[str, Any] = {
    "target_epsilon": 4.0, "target_delta": 1e-5, "steps": STEPS, "expected_batch": RECORDS, "clip": 1.0,
    "step_size": 0.01, "smoothing": 1e-3, "relation": "replace-one", "sampling": "full",
}  # fmt: skip
DATA = TensorDataset(torch.randn(RECORDS, 3, generator=torch.Generator().manual_seed(SEED)))

Rng = np.random.Generator
Forge = Callable[[Folder, Rng], None]


def fresh() -> nn.Module:
    torch.manual_seed(SEED)
    return nn.Linear(3, 1).double()


def losses(module: nn.Module, batch: Any) -> torch.Tensor:
    found: torch.Tensor = (module(batch[0].double())[:, 0] - 1) ** 2
    return found


def started(folder: Path, method: str, block: int, resume: bool | str = False) -> Run:
    target = {**TARGET, **METHODS[method], "paid_at_once": block}
    return make_private_with_epsilon(fresh(), losses, DATA, folder=folder, resume=resume, **target)


def _sums(change: Callable[[Any], Any]) -> Forge:
    """Return a function (parts, random generator) that forges the released numbers: it replaces the sums in a folder's
    parts by `change` of fresh noise, drawn by the law and with the scale that the plan in the folder states. What it
    draws does not come from the given generator."""

    def forge(parts: Folder, rng: Rng) -> None:
        plan, source = parts.header["plan"], SystemNoise()
        draw = source.discrete_laplace if plan["noise"] == "laplace" else source.discrete_gaussian
        parts.sums = change(draw(plan["scale"], parts.sums.shape)).astype(np.int64)

    return forge


SUMS: dict[str, Forge] = {
    "zeros": _sums(lambda z: 0 * z),
    "one sum": _sums(lambda z: 0 * z + z[:1]),
    "a thousandth": _sums(lambda z: z // 1000),
    "a thousandth about a sum": _sums(lambda z: z[:1] + z // 1000),
    "multiples of 1000": _sums(lambda z: z // 1000 * 1000),
    "the first half again": _sums(lambda z: z[np.arange(len(z)) % (len(z) // 2)]),
    "too large": _sums(lambda z: z + 500 * 2**30),
    "in a line": _sums(lambda z: z[:1] + np.arange(len(z))[:, None] * 10**6),
}

ODD: tuple[Any, ...] = (None, True, -1, 1.5, 10**40, math.nan, math.inf, "x\ny\x1b[31m", [1], [[[]]], {"a": 1}, ...)


def _odd(values: Any, rng: Rng) -> Any:
    """Return a copy of the JSON values in which one value, drawn with `rng` from any depth, is replaced by a value of
    another type. Values named "check" or "format" at the top are not touched."""
    found = [place for place in places(values) if place[0] not in ("check", "format")]
    place = found[int(rng.integers(len(found)))]
    now = value_at(values, place)
    others = [odd for odd in ODD if odd is not ... and _kind(odd) is not _kind(now)]
    return replaced(values, place, others[int(rng.integers(len(others)))])


def _kind(value: object) -> type:
    return float if type(value) is int else type(value)


def _odd_header(parts: Folder, rng: Rng) -> None:
    parts.header = _odd(parts.header, rng)


def _set(**values: Any) -> Forge:
    def forge(parts: Folder, rng: Rng) -> None:
        parts.header["plan"].update(values)

    return forge


HEADERS: dict[str, Forge] = {
    "a value of another kind": _odd_header,
    "another isolation": lambda parts, rng: parts.header.update(isolation="exact\nepsilon spent   0.1      holds"),
    "less noise": _set(scale=1),
    "another lattice": _set(levels=1000),
    "more records": _set(n=10**6),
    "another relation": _set(relation="zero-out"),
    "another clip": _set(clip=0.5),
    "fewer steps": _set(steps=3),
    "no noise": _set(algorithm="mezo", noise="none"),
    "from a seed": lambda parts, rng: parts.header.update(private=False),
    "a short key": lambda parts, rng: parts.header.update(key="00"),
}


def _line(number: int, **values: Any) -> Forge:
    def forge(parts: Folder, rng: Rng) -> None:
        parts.lines[number].update(values)

    return forge


def _odd_line(parts: Folder, rng: Rng) -> None:
    at = int(rng.integers(len(parts.lines)))
    parts.lines[at] = _odd(parts.lines[at], rng)


def _cheaper(parts: Folder, rng: Rng) -> None:
    parts.lines[1]["settings"]["noise_multiplier"] *= 3


LEDGERS: dict[str, Forge] = {
    "a value of another kind": _odd_line,
    "a budget of less than was spent": _line(0, target_epsilon=0.01),
    "another mechanism": lambda parts, rng: parts.lines[1]["settings"].update(mechanism="gaussian"),
    "more noise in the ledger": _cheaper,
    "a payment less": lambda parts, rng: parts.lines.pop(),
    "payments swapped": lambda parts, rng: parts.lines.insert(2, parts.lines.pop()),
    "a release again": lambda parts, rng: parts.lines.append(parts.lines[-1]),
    "no plan": lambda parts, rng: parts.lines.pop(1),
    "an unknown line": lambda parts, rng: parts.lines.append({"kind": "gift", "count": 1}),
}


def _in_another_order(parts: Folder, rng: Rng) -> None:
    parts.sums = parts.sums[rng.permutation(len(parts.sums))]


UNTOLD: dict[str, Forge] = {
    "other texts": lambda parts, rng: parts.header.update(
        software="x\nnoise 0   holds\x1b[31m\u202e", losses="<script>", layout="\ud800"
    ),
    "another order": _in_another_order,
}


def _forged(folder: Path, rng: Rng, method: str) -> tuple[str, bool]:
    """Write lies into the folder of a run by `method`, a key of METHODS, in place of its files. Returns the lies' names
    joined by " + ", and whether the verification can notice them: in one folder of ten it cannot."""
    parts, texts = Folder.read(folder), dumped
    if rng.random() < 0.1:
        name = str(rng.choice(list(UNTOLD)))
        UNTOLD[name](parts, rng)
        parts.write(folder)
        return name, False
    kinds = [SUMS] * (method != "dpgd-0th") + [LEDGERS, HEADERS]
    count = min(int(rng.choice([1, 1, 1, 2, 3])), len(kinds))
    chosen = sorted(rng.choice(len(kinds), count, replace=False))
    names = []
    for kind in (kinds[index] for index in chosen):
        name = str(rng.choice(list(kind)))
        kind[name](parts, rng)
        names.append(name)
    if rng.random() < 0.1 and isinstance(parts.header.get("plan"), dict):
        place = (("plan", "n"), ("key",), ("plan",))[int(rng.integers(3))]
        names.append("a name twice")

        def texts(values: Any) -> str:
            return twice(values, place, 1) if "key" in values else dumped(values)

    parts.write(folder, header=texts)
    return " + ".join(names), True


def _damaged(folder: Path, rng: Rng, method: str) -> str:
    names = []
    for _ in range(int(rng.choice([1, 1, 1, 2, 3]))):
        path = folder / str(rng.choice([TRANSCRIPT, LEDGER]))
        text = bytearray(path.read_bytes())
        name = str(rng.choice(["cut", "flip", "zeros", "append", "empty", "a part twice", "moved", "another run"]))
        at, size = (int(rng.integers(len(text) + 1)) for _ in range(2))
        if name == "cut":
            text = text[: len(text) - min(size, 400)]
        elif name == "flip" and text:
            text[at % len(text)] ^= 1 << int(rng.integers(8))
        elif name == "zeros":
            text[at : at + size // 4] = bytes(len(text[at : at + size // 4]))
        elif name == "append":
            text += rng.bytes(int(rng.integers(1, 300)))
        elif name == "empty":
            text = bytearray()
        elif name == "a part twice":
            text[at:at] = text[at : at + size // 2]
        elif name == "moved":
            text = text[at:] + text[:at]
        elif name == "another run":
            with TemporaryDirectory() as other:
                started(Path(other) / "run", method, 1).close()
                text = bytearray((Path(other) / "run" / path.name).read_bytes())
        path.write_bytes(text)
        names.append(f"{name} {path.name.partition('.')[0]}")
    return " + ".join(names)


def _true(folder: Path, whole: dict[str, bytes], made: int) -> bool:
    """Return whether all that is left in a damaged folder is true: the complete releases in the transcript are a
    beginning of the real ones, and the ledger can be read and counts at least the `made` releases. A torn release at
    the end is no lie. `whole` has the intact files by name."""
    before, now = whole[TRANSCRIPT], (folder / TRANSCRIPT).read_bytes()
    start = before.find(b"\n") + 1
    size = (len(before) - start) // made
    kept = start + (len(now) - start) // size * size
    try:
        return now[:kept] == before[:kept] and ledger.read(folder / LEDGER).spent >= made
    except REFUSALS:
        return False


def _verified(folder: Path, form: str) -> tuple[int, bool]:
    """Verify the folder, with the answer as "text", "json" or "html" (`form`). Returns the exit status, and whether the
    message is clear: one line on standard error if the status is 1 and none if it is 0, in printable ASCII. Raises what
    the verification raises."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        status = verify([str(folder), "--format", form])
    said = out.getvalue() + err.getvalue()
    clear = err.getvalue().count("\n") == status and set(said) <= {"\n", *map(chr, range(32, 127))}
    if form == "json":
        clear = clear and json.loads(out.getvalue())["holds"] is (status == 0)
    return status, clear


def _threaded(folder: Path, rng: Rng, method: str, block: int) -> dict[str, int]:
    """Start a run in `folder` and let two to four threads, as `rng` says, step it until all of its steps are made,
    while this thread verifies the folder. Returns how often each thing that may go wrong did: "accepted" is 1 if a step
    is missing or was made twice. `method` is a key of METHODS, and `block` is how many releases the ledger pays for at
    once."""
    run, wrong = started(folder, method, block), {"unclear": 0, "traceback": 0, "accepted": 0}
    made: list[int] = []

    def stepping() -> None:
        while True:
            try:
                made.append(run.step().release)
            except BudgetSpentError:
                return
            except TranscriptError as error:
                wrong["unclear"] += "\n" in str(error)
            except Exception:
                wrong["traceback"] += 1
                return

    threads = [threading.Thread(target=stepping) for _ in range(int(rng.integers(2, 5)))]
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        for thread in threads:
            thread.start()
        while any(thread.is_alive() for thread in threads):
            status, clear = _verified(folder, "text")
            wrong["unclear"] += int(status != 0 or not clear)
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(before)
    run.close()
    records = Folder.read(folder).releases if method != "dpgd-0th" else sorted(made)
    wrong["accepted"] = int(sorted(made) != list(range(STEPS)) or records != sorted(made))
    return wrong


def measure(options: Namespace, cell: dict[str, Any]) -> dict[str, Any]:
    """Make the folder of one trial, disturb it, verify it, continue the run, and return the columns of the trial's row.
    `cell` has the number of the trial, which is also its seed."""
    rng = np.random.default_rng([SEED, cell["trial"]])
    kind, method = KINDS[cell["trial"] % len(KINDS)], str(rng.choice(list(METHODS)))
    block, made, form = int(rng.choice([1, 4])), int(rng.integers(12, 21)), str(rng.choice(["text", "json", "html"]))
    row: dict[str, Any] = {"kind": kind, "method": method, "made": made, "said": "", **dict.fromkeys(JUDGED, 0)}
    torch.set_num_threads(1)
    try:
        # fsync is replaced by nothing: the machine does not lose power here, so files need not reach the disk
        with TemporaryDirectory() as name, limited(SECONDS), mock.patch("os.fsync", return_value=None):
            folder = Path(name) / "run"
            if kind == "threaded":
                row |= _threaded(folder, rng, method, block)
                status, clear = _verified(folder, form)
                row["wedged"] = int(status != 0)
                row["unclear"] += int(not clear)
                return row | {"faults": "threads", "told": 1, "held": int(status == 0)}
            run = started(folder, method, block)
            for _ in range(made):
                run.step()
            state = run.state_dict()
            run.close()
            whole = {path.name: path.read_bytes() for path in folder.iterdir()}
            if kind == "forged":
                row["faults"], told = _forged(folder, rng, method)
            else:
                row["faults"], told = _damaged(folder, rng, method), True
            row |= _judged(folder, form, kind, told, whole, made)
            row |= _gone_on(folder, method, block, row, whole, state)
    except TooLong:
        row["wedged"] = 1
    return row


def _judged(folder: Path, form: str, kind: str, told: bool, whole: dict[str, bytes], made: int) -> dict[str, Any]:
    try:
        status, clear = _verified(folder, form)
    except TooLong:
        raise
    except Exception as error:
        return {"traceback": 1, "said": type(error).__name__, "told": int(told), "held": 0}
    if kind == "damaged" and status == 0:
        told = not _true(folder, whole, made)
    return {
        "told": int(told),
        "held": int(status == 0),
        "accepted": int(told and status == 0),
        "unclear": int(not clear),
    }


def _gone_on(
    folder: Path, method: str, block: int, row: dict[str, Any], whole: dict[str, bytes], state: Any
) -> dict[str, Any]:
    """Resume the run with its folder as it is and make a step, which may be refused; then put the intact files `whole`
    back, resume it again, and make all of its steps. For dpgd-0th the checkpoint `state` is loaded each time. Returns
    the columns of the row that say whether the run could be continued to its end. `method` and `block` are those with
    which the run was started, and `row` has the columns known so far."""
    traceback, unclear = row["traceback"], row["unclear"]
    for back in (False, True):
        if back:
            for name, text in whole.items():
                (folder / name).write_bytes(text)
        run = None
        try:
            run = started(folder, method, block, resume="moved")
            if method == "dpgd-0th":
                run.load_state_dict(state)
            run.catch_up()
            if back:
                run.run()
            else:
                run.step()
        except REFUSALS as error:
            unclear += int("\n" in str(error))
            if back:
                return {"wedged": 1, "said": str(error), "traceback": traceback, "unclear": unclear}
        except TooLong:
            raise
        except Exception as error:
            traceback += 1
            row["said"] = f"{type(error).__name__}: {error}"
        finally:
            if run is not None:
                run.close()
    status, _ = _verified(folder, "text")
    return {"wedged": int(status != 0), "said": row["said"], "traceback": traceback, "unclear": unclear}


def _report(options: Namespace) -> int:
    table = read_rows(options.out)
    print(table.groupby(["kind", "told", "held"])[["trial"]].count().rename(columns={"trial": "folders"}))
    bad = table[table[list(JUDGED)].sum(axis=1) > 0]
    print(forged_folders(options.out))
    if len(bad):
        print(bad[["trial", "kind", "method", "faults", "said", *JUDGED]].to_string(index=False))
    return int(len(bad) > 0)


EXPERIMENT = Experiment(
    name="forged_folders",
    about=__doc__,
    flags=[flag("--folders", type=integer(1, 10**6), default=1000)],
    key=("trial",),
    fields=("kind", "method", "faults", "made", "told", "held", "said", *JUDGED),
    seeds=(SEED,),
    settings={"records": RECORDS, "steps": STEPS},
    cells=lambda options: ({"trial": trial} for trial in range(options.folders)),
    measure=measure,
    together=50,
    told=lambda cell, rows: "",
    report=_report,
)
