"""Run an experiment by its name: python -m benchmarks [NAME [flags of NAME]]

Without a name, the command lists all experiments, one line for each.
"""

import ast
import sys
from argparse import ArgumentTypeError
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path

from dpzero_theory.cli import Parser, command

ROOT = Path(__file__).parent


def scripts() -> dict[str, Path]:
    """Return, for the name of each experiment and command in this package, the path of its file. No module is
    imported."""
    found = {}
    for path in sorted(ROOT.rglob("*.py")):
        if "\nEXPERIMENT = " in path.read_text():
            parts = [
                part for part in path.relative_to(ROOT).with_suffix("").parts if part not in ("audits", "__main__")
            ]
            found[".".join(parts)] = path
    return dict(sorted(found.items()))


def _first_line(path: Path) -> str:
    return (ast.get_docstring(ast.parse(path.read_text())) or "").partition("\n")[0]


def _name(text: str) -> str:
    if text not in scripts():
        raise ArgumentTypeError(f"must be a name that `python -m benchmarks` lists; got {text[:40]!r}")
    return text


def _parser() -> Parser:
    parser = Parser("benchmarks", __doc__ or "")
    parser.add_argument("name", nargs="?", type=_name, help="an experiment; then its flags")
    return parser


@command
def main(argv: Sequence[str] | None = None) -> int:
    """Run the experiment that the first word of `argv` (default: this process's arguments) names, with the other words
    as its flags; without a name, list all experiments. Returns the exit status."""
    words = list(sys.argv[1:] if argv is None else argv)
    found = scripts()
    if words and words[0] in found:
        path = found[words[0]].relative_to(ROOT.parent).with_suffix("")
        return int(import_module(".".join(path.parts)).EXPERIMENT.main(words[1:]))
    _parser().parse_args(words)
    for name, path in found.items():
        print(f"{name:24} {_first_line(path)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
