"""Command lines that fail in one line: exit status 2, naming the flag, the rule and the value."""

import argparse
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NoReturn

__all__ = ["Parser", "extra", "number"]


class Parser(argparse.ArgumentParser):
    """An ArgumentParser whose errors are one line on standard error, without the usage."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: {message}\n")


def number(text: str) -> float | int:
    """A `type` for `add_argument`: an int where the text is one, else a float (its range is the callee's to check)."""
    try:
        return int(text)
    except ValueError:
        pass
    try:
        return float(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"must be a number; got {text!r}") from None


@contextmanager
def extra(name: str, command: str) -> Iterator[None]:
    """Around a command's imports that need the extra `name`: without it, exit status 2 and one line that says so."""
    try:
        yield
    except ModuleNotFoundError as error:
        if error.name is None or error.name.startswith("dpzero_theory"):
            raise
        print(f"python -m {command}: needs {error.name}: pip install 'dpzero-theory[{name}]'", file=sys.stderr)
        raise SystemExit(2) from None
