"""Experiments whose settings were drawn at random once and are kept in the committed rows: a run asks them again."""

from argparse import Namespace
from collections.abc import Callable, Iterator, Sequence
from functools import partial

from benchmarks.kit.experiment import Cell, Experiment
from benchmarks.kit.remake import Remake, plain
from benchmarks.kit.rows import RESULTS, read_rows

Answer = Callable[[Cell], Cell]


def settings(folder: str, asked: Sequence[str]) -> Iterator[Cell]:
    """Yield the settings of the committed rows in `folder`, the columns `asked`, in the order of their numbers. A
    missing value is the empty text."""
    rows = read_rows(RESULTS / folder, failed=True).sort_values("setting")
    for row in rows[list(asked)].astype(object).to_dict("records"):
        yield {name: "" if value is None else value for name, value in plain(row).items()}


def asked_again(
    name: str,
    folder: str,
    about: str | None,
    asked: Sequence[str],
    answer: Answer,
    fields: Sequence[str],
    report: Callable[[Namespace], None],
) -> Experiment:
    """Return the experiment `name` with one row for each setting of the committed rows in `folder`.

    Args:
        name, about, fields, report: as in `Experiment`.
        folder: the folder of the committed rows, below benchmarks/results.
        asked: the columns of a setting, of which the first is its number, in the column `setting`.
        answer: a function at the top level of a module that makes the row of a setting.
    """
    return Experiment(
        name=name,
        about=about,
        folder=folder,
        key=("setting",),
        fields=(*asked[1:], *fields),
        workers=2,
        cells=partial(_cells, folder, asked),
        measure=partial(_measure, answer),
        report=report,
        told=lambda cell, rows: f"setting {cell['setting']}: {rows[0].get('status', 'ok')}",
    )


def remake(asked: Sequence[str], answer: Answer, varies: Sequence[str], tolerance: float) -> Remake:
    """Return how such a row is made again; `varies` and `tolerance` as in `Remake`."""
    return Remake(
        ("setting",),
        lambda row: [answer({name: "" if row[name] is None else row[name] for name in asked})],
        varies=varies,
        tolerance=tolerance,
    )


def _cells(folder: str, asked: Sequence[str], options: Namespace) -> Iterator[Cell]:
    return settings(folder, asked)


def _measure(answer: Answer, options: Namespace, cell: Cell) -> Cell:
    return answer(cell)
