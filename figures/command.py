"""Make the command line of a figure that is drawn from one folder of rows, or from several folders below one."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Protocol

from matplotlib.figure import Figure

from benchmarks.kit.rows import RESULTS, read_rows
from dpzero_theory.cli import Parser, input_folder, output_folder
from figures.style import FIGURES, save, use_style


class Main(Protocol):
    """The type of a command's function `main`, which takes the command line's arguments and returns the exit status."""

    def __call__(self, argv: Sequence[str] | None = None) -> int: ...


def command(
    module: str,
    text: str,
    draw: Callable[..., Figure | dict[str, Figure]],
    name: str,
    *,
    rows: Path | str = RESULTS,
    tables: Sequence[str] = (),
    out: Path | str = FIGURES,
) -> tuple[Callable[[], Parser], Main]:
    """Return two functions of a figure's command: one that makes its parser, and its `main`, which reads rows, draws
    them, saves NAME.png, and returns the exit status 0.

    module, text: the command's name and its help text. draw: a function from the tables of rows, in the order of
    `tables`, to the figure, or to several by their names. name: NAME of the file of one figure. rows: the default of
    the flag `--rows`, the folder of the rows. tables: the folders below it that are read; if there are none, it holds
    the rows itself. out: the default of the flag `--out`, the folder of the picture.
    """

    def parser() -> Parser:
        made = Parser(module, text)
        below = "folder of the rows' folders" if tables else "folder of the rows"
        made.add_argument("--rows", type=input_folder(), default=rows, help=below)
        made.add_argument("--out", type=output_folder, default=str(out), help="folder of the picture")
        return made

    def main(argv: Sequence[str] | None = None) -> int:
        own = parser()
        options = own.parse_args(argv)
        with own.refusals("--rows"):
            found = [read_rows(options.rows / table) for table in tables] if tables else [read_rows(options.rows)]
        use_style()
        drawn = draw(*found)
        for of, figure in (drawn if isinstance(drawn, dict) else {name: drawn}).items():
            save(figure, of, options.out)
        return 0

    return parser, main
