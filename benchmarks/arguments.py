"""Command lines that fail in one line: exit status 2, naming the flag, the rule and the value."""

import argparse
from collections.abc import Callable

from dpzero_theory import check
from dpzero_theory.cli import Parser

__all__ = ["Parser", "chosen_device", "positive_integer"]


def positive_integer(flag: str, at_most: int = 10**9, at_least: int = 1) -> Callable[[str], int]:
    """A `type` for `add_argument` that takes at_least <= value <= at_most."""

    def parse(text: str) -> int:
        try:
            return check.integer(flag, int(text), at_least=at_least, at_most=at_most)
        except ValueError:
            rule = f"must be an integer with {at_least} <= {flag} <= {at_most}; got {text!r}"
            raise argparse.ArgumentTypeError(rule) from None

    return parse


def chosen_device(parser: Parser, device: str) -> str:
    """`--device` auto, cpu or cuda as cpu or cuda; the parser's error where cuda is asked for and not there."""
    import torch

    if device == "cuda" and not torch.cuda.is_available():
        parser.error("argument --device: cuda is not available on this machine")
    return device if device != "auto" else "cuda" if torch.cuda.is_available() else "cpu"
