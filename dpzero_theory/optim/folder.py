"""The folder of a run: its ledger, paid before each release, and its transcript, which replays the run."""

import os
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from dpzero_theory.check import choice
from dpzero_theory.optim.transcript import Header, Transcript
from dpzero_theory.privacy.accountant import epsilon_of_history
from dpzero_theory.privacy.ledger import Ledger

LEDGER, TRANSCRIPT = "ledger.jsonl", "transcript.bin"


class Budget(NamedTuple):
    """What a run may cost at most."""

    epsilon: float
    delta: float


class Files(NamedTuple):
    """What is open; ledger: None for a run that is not private; transcript: None for one that keeps nothing."""

    header: Header
    ledger: Ledger | None
    transcript: Transcript | None


def started(folder: Path, header: Header, budget: Budget | None) -> Files:
    """The files of a run that is not there yet; without a budget there is no ledger. Errors as `make_private`."""
    folder.mkdir(parents=True, exist_ok=True)
    for name in (LEDGER, TRANSCRIPT):
        if (folder / name).exists():
            raise FileExistsError(f"{folder / name} is there: resume that run, or use another folder")
    ledger = None
    if budget is not None:
        ledger = Ledger.create(
            folder / LEDGER,
            target_epsilon=budget.epsilon,
            target_delta=budget.delta,
            settings=header.plan.settings,
            steps=header.plan.steps,
        )
    return Files(header, ledger, Transcript.create(folder / TRANSCRIPT, header))


def resumed(folder: Path, header: Header, budget: Budget | None) -> Files:
    """The files of a run that was begun with this header's plan and precision. Errors as `make_private`."""
    transcript = Transcript.open(folder / TRANSCRIPT)
    try:
        header.plan.require_same(transcript.header.plan)
        choice("precision", header.precision, (transcript.header.precision,))
        ledger = None if budget is None else Ledger.open(folder / LEDGER)
    except BaseException:
        transcript.close()
        raise
    return Files(transcript.header, ledger, transcript)


def epsilon_of_runs(folders: Iterable[str | os.PathLike[str]], delta: float) -> float:
    """An upper bound on epsilon of all these runs together: what a search over settings on the same data costs.

    folders: of runs with one relation, none of them open. delta: as for `epsilon_of_history`. Raises ValueError,
    LedgerError.
    """
    history = []
    for folder in folders:
        with Ledger.open(Path(folder, LEDGER)) as ledger:
            history += ledger.history
    return epsilon_of_history(history, delta).upper
