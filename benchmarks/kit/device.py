"""The device that a benchmark runs on."""

import torch

from dpzero_theory.cli import Parser

__all__ = ["chosen_device"]


def chosen_device(parser: Parser, device: str) -> str:
    """`--device` auto, cpu or cuda as cpu or cuda; the parser's error where cuda is asked for and not there."""
    if device == "cuda" and not torch.cuda.is_available():
        parser.error("--device must be auto or cpu: cuda is not available on this machine; got 'cuda'")
    return device if device != "auto" else "cuda" if torch.cuda.is_available() else "cpu"
