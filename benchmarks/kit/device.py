"""Choose the device that a benchmark runs on, and how it computes there."""

from argparse import Namespace

import torch

from dpzero_theory.cli import Parser


def chosen_device(parser: Parser, device: str) -> str:
    """Return the device for the value of the flag `--device`: "cpu", "cuda", or "auto", which is cuda if there is a
    GPU.

    From then on float32 products are computed in float32, not in TF32. Raises the parser's error if cuda is asked for
    and there is none.
    """
    if device == "cuda" and not torch.cuda.is_available():
        parser.error("--device must be auto or cpu: cuda is not available on this machine; got 'cuda'")
    full_float32()
    return device if device != "auto" else "cuda" if torch.cuda.is_available() else "cpu"


def full_float32() -> None:
    """Turn TF32 off in this process. With TF32, a difference of two losses divided by the smoothing would show the
    rounding."""
    torch.set_float32_matmul_precision("highest")
    torch.backends.cudnn.allow_tf32 = False


def one_thread(parser: Parser, options: Namespace) -> None:
    """Let torch use one thread. Experiments whose digits or times depend on the number of threads use this as their
    `check`."""
    torch.set_num_threads(1)


def device_name(options: Namespace) -> str:
    """Return the name of an experiment's device for its manifest: the name of the GPU, or cpu."""
    return torch.cuda.get_device_name() if options.device == "cuda" else "cpu"
