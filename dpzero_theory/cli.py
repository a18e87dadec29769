"""The argument parser of all commands. Bad input ends in exit status 2 and a line that names flag, rule and value.

A command is a module with a function `main(argv)`, where argv is the list of words after the command. `number`,
`integer` and the functions for files and folders are to be given as `type` to argparse's `add_argument`: they check
each word while it is parsed, before anything is computed or written. In a block of `Parser.refusals` errors that the
library raises later end in the same way.
"""

import argparse
import functools
import os
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any, NoReturn, ParamSpec

from dpzero_theory import check

_Words = ParamSpec("_Words")

_LONGEST_LINE = 400  # Error messages of a command are cut to this many characters
_WORDS = (
    (r"^the following arguments are required: (.*)$", r"\1 must be given"),
    (r"^one of the arguments (.*) is required$", r"one of \1 must be given"),
    (r"^argument (\S+): not allowed with argument (\S+)$", r"\1 must not be given with \2"),
    (r"^argument (\S+): expected (.*)$", r"\1 must be followed by \2; got none"),
    (r"^unrecognized arguments: (.*)$", r"\1 must not be given: no such argument"),
    (r"^argument (\S+): ", r"\1 "),
)
"""Patterns of argparse's error messages, each with the wording that replaces it."""
_PIPE_CLOSED = 128 + 13  # The exit status of a program that SIGPIPE, signal 13, ends, as a shell shows it


def command(main: Callable[_Words, int]) -> Callable[_Words, int]:
    """Decorates a command's main function so that it ends quietly if the reader of its output stops, as `head` does.

    In that case the decorated function drops the rest of its output and returns 141, the exit status of a program that
    SIGPIPE ends. Otherwise it returns what `main` returns.
    """

    @functools.wraps(main)
    def ended(*words: _Words.args, **named: _Words.kwargs) -> int:
        try:
            try:
                return main(*words, **named)
            finally:
                sys.stdout.flush()
        except BrokenPipeError:
            # The interpreter flushes once more at its end, and would print the error.
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, sys.stdout.fileno())
            os.close(nowhere)
            return _PIPE_CLOSED

    return ended


class Parser(argparse.ArgumentParser):
    """An argument parser for the command `python -m COMMAND`, whose error messages are one line.

    Args:
        command: the name of the module that is the command.
        description: the text at the top of the command's help.
        aliases: for error messages: the flag for each argument of the library that has another name than its flag, as
            in {"target_epsilon": "--epsilon"}.
    """

    def __init__(self, command: str, description: str, aliases: Mapping[str, str] | None = None) -> None:
        super().__init__(
            prog=f"python -m {command}",
            description=description,
            allow_abbrev=False,
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        self._aliases = dict(aliases or {})
        # argparse's own pattern takes -inf for a flag, and before Python 3.14 also -1e-5. By this one both are numbers.
        self._negative_number_matcher = re.compile(r"^-(\.?\d|inf|nan)")

    def error(self, message: str) -> NoReturn:
        """Prints `message` as one line on standard error, and exits with status 2."""
        for theirs, ours in _WORDS:
            message = re.sub(theirs, ours, message, flags=re.DOTALL)
        line = " ".join(message.split())
        self.exit(2, f"{self.prog}: {line if len(line) <= _LONGEST_LINE else line[: _LONGEST_LINE - 3] + '...'}\n")

    @contextmanager
    def refusals(self, flag: str = "") -> Iterator[None]:
        """Returns a context manager that turns an error in its block into one line on standard error and exit status 2.

        The errors are ValueError, OSError and argparse's ArgumentTypeError; others pass through.

        Args:
            flag: the line begins with this flag, such as "--data", unless it is "" or the message begins with another
                flag.
        """
        try:
            yield
        except (ValueError, OSError, argparse.ArgumentTypeError) as error:
            message = str(error)
            flags = {action.dest: action.option_strings[-1] for action in self._actions if action.option_strings}
            name, _, rest = message.partition(" ")
            # A message of the library begins with the name of an argument; the command's user knows it by its flag
            if (named := (flags | self._aliases).get(name)) and rest.startswith("must "):
                rule, got, value = rest.partition("; got ")
                message = f"{named} " + re.sub(rf"\b{re.escape(name)}\b", named.lstrip("-"), rule) + got + value
            self.error(message if not flag or message.startswith("--") else f"{flag}: {message}")

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        if action.choices is not None and value not in action.choices:
            options = ", ".join(map(str, action.choices))
            raise argparse.ArgumentError(action, f"must be one of {options}; got {check.shown(value)}")


class Several(argparse.Action):
    """An argparse action for a flag with nargs="+" that may be repeated, as in --n 1 2 --n 3.

    The parsed value is the list of all words in the order given, without repetitions. The first use replaces the
    default.
    """

    def __call__(
        self, parser: argparse.ArgumentParser, namespace: argparse.Namespace, values: Any, option: str | None = None
    ) -> None:
        kept = getattr(namespace, self.dest)
        earlier: Sequence[Any] = () if kept is self.default else kept
        setattr(namespace, self.dest, list(dict.fromkeys([*earlier, *values])))


def number(**bounds: float) -> Callable[[str], float | int]:
    """Returns a `type` for argparse's `add_argument` that accepts a finite number within bounds.

    The parsed value is an int if the word is written as an integer, else a float. Other words, also NaN and infinities,
    raise ArgumentTypeError.

    Args:
        bounds: above, at_least, below and at_most, as for `check.real`; bounds that are left out are infinite.
    """
    return functools.partial(_parsed, check.real, bounds)


def integer(at_least: int = 1, at_most: int = 10**9) -> Callable[[str], int]:
    """Returns a `type` for argparse's `add_argument` that accepts an integer x with at_least <= x <= at_most.

    The parsed value is an int, also of a word such as 1e4. Other words raise ArgumentTypeError.
    """
    return functools.partial(_parsed, check.integer, {"at_least": at_least, "at_most": at_most})


def _parsed(rule: Callable[..., Any], bounds: Mapping[str, float], text: str) -> Any:
    value: Any = text
    for kind in (float, int):  # The last kind that can read the word counts, so that 12 is an int and 1e4 a float
        with suppress(ValueError):
            value = kind(text)
    try:
        checked = rule("value", value, **bounds)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error).removeprefix("value ")) from None
    return value if isinstance(value, int) else checked


def input_file(text: str) -> Path:
    """Returns `text` as a path if a readable file is there; else raises ArgumentTypeError."""
    return _path(text, "a file that can be read", lambda path: not path.is_dir() and os.access(path, os.R_OK))


def input_folder(*names: str) -> Callable[[str], Path]:
    """Returns a `type` for argparse's `add_argument` that accepts a readable folder with readable files `names` in it.

    The parsed value is a path. Other words raise ArgumentTypeError.
    """
    rule = "a folder that can be read" + (f" and holds {', '.join(names)}" if names else "")

    def readable(path: Path) -> bool:
        return path.is_dir() and all(os.access(path / name, os.R_OK) for name in (".", *names))

    return lambda text: _path(text, rule, readable)


def output_folder(text: str) -> Path:
    """Returns `text` as a path if it is a writable folder, or if a folder can be made there.

    Otherwise ArgumentTypeError is raised. No folder is made yet.
    """
    return _path(text, "a folder that can be written or made", lambda path: _takes_files(_nearest_existing(path)))


def output_file(*suffixes: str) -> Callable[[str], Path]:
    """Returns a `type` for argparse's `add_argument` that accepts the path of a writable file, which may exist or not.

    The file's folder must exist. The path must end in one of `suffixes`, such as ".csv", unless none is given. The
    parsed value is a path. Other words raise ArgumentTypeError. No file is made yet.
    """
    rule = "a file that can be written, in a folder that is there"
    if suffixes:
        rule += f", and end in {', '.join(suffixes)}"

    def writable(path: Path) -> bool:
        if suffixes and path.suffix not in suffixes:
            return False
        if _nearest_existing(path) == path:
            return not path.is_dir() and os.access(path, os.W_OK)
        return _nearest_existing(path) == path.parent and _takes_files(path.parent)

    return lambda text: _path(text, rule, writable)


def _path(text: str, rule: str, holds: Callable[[Path], bool]) -> Path:
    try:
        if text and holds(Path(text).absolute()):
            return Path(text)
    except (OSError, ValueError):
        pass
    raise argparse.ArgumentTypeError(f"must be {rule}; got {check.shown(text)}")


def _nearest_existing(path: Path) -> Path:
    for place in (path, *path.parents):
        with suppress(FileNotFoundError):
            place.lstat()
            return place
    return Path(path.anchor)


def _takes_files(folder: Path) -> bool:
    # A file is made and removed, since permissions do not tell of a full disk or a read-only one
    with TemporaryFile(dir=folder):
        return True


@contextmanager
def extra(name: str, command: str) -> Iterator[None]:
    """Returns a context manager in whose block a missing package ends the program with exit status 2.

    One line on standard error says how to install the package. Other errors pass through, also for a missing module of
    this library.

    Args:
        name: the group of optional dependencies ("extra") of this project that installs the package.
        command: the command's module, as after `python -m`, for the line.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        if error.name is None or error.name.startswith("dpzero_theory"):
            raise
        print(f"python -m {command}: needs {error.name}: pip install 'dpzero-theory[{name}]'", file=sys.stderr)
        raise SystemExit(2) from None
