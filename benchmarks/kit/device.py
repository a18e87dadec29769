"""The device that a benchmark runs on."""

from argparse import Namespace

import torch

from dpzero_theory.cli import Parser


def chosen_device(parser: Parser, device: str) -> str:
    """`--device` auto, cpu or cuda as cpu or cuda, where float32 is float32 from then on; the parser's error where
    cuda is asked for and not there.
    """
    if device == "cuda" and not torch.cuda.is_available():
        parser.error("--device must be auto or cpu: cuda is not available on this machine; got 'cuda'")
    full_float32()
    return device if device != "auto" else "cuda" if torch.cuda.is_available() else "cpu"


def full_float32() -> None:
    """No TF32 in this process: differences over lambda would show its rounding."""
    torch.set_float32_matmul_precision("highest")
    torch.backends.cudnn.allow_tf32 = False


def one_thread(parser: Parser, options: Namespace) -> None:
    """An experiment's `check` where torch uses one thread."""
    torch.set_num_threads(1)
