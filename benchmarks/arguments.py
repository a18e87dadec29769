"""Command lines that fail in one line: exit status 2, naming the flag, the rule and the value."""

import argparse
from collections.abc import Callable
from typing import NoReturn

from dpzero_theory import check

__all__ = ["Parser", "positive_integer"]


class Parser(argparse.ArgumentParser):
    """An ArgumentParser whose errors are one line on standard error, without the usage."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: {message}\n")


def positive_integer(flag: str, at_most: int = 10**9) -> Callable[[str], int]:
    """A `type` for `add_argument` that takes 1 <= value <= at_most."""

    def parse(text: str) -> int:
        try:
            return check.integer(flag, int(text), at_most=at_most)
        except ValueError:
            rule = f"must be an integer with 1 <= {flag} <= {at_most}; got {text!r}"
            raise argparse.ArgumentTypeError(rule) from None

    return parse
