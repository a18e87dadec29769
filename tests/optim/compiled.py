"""Compiles the GPU kernels for cards that are not here, by Triton and the assembler.

python -m tests.optim.compiled CAPABILITY ...

The calls are those of `philox_triton` itself, compiled as for a launch and not launched. It prints a line of JSON for
each card: how many kernels have been compiled once the calls with each key of `KEYS` have been made, and of each kernel
the registers and bytes of stack of a thread, and the instructions that round in another way than written (fused,
flushed, approximate). CAPABILITY is a card's compute capability, such as 90.
"""

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import Any

os.environ.pop("TRITON_INTERPRET", None)

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.runtime import driver
from triton.runtime.jit import JITFunction

from dpzero_theory.optim.weights import directions, philox_triton
from dpzero_theory.optim.weights.directions import Directions

KEYS = (1, 2**127 + 12345678901234567890)
TOOL = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump"
made: list[Any] = []


class Card:
    """Stands in for a CUDA driver, as far as compiling asks for one; `capability` is that of the card, such as 90."""

    def __init__(self, capability: int) -> None:
        self.target = GPUTarget("cuda", capability, 32)

    def get_current_target(self) -> GPUTarget:
        return self.target

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, device: int) -> int:
        return device


def compile_alone(self: Any, *args: Any, grid: Any, warmup: bool, **options: Any) -> Any:
    made.append(launch(self, *args, grid=grid, warmup=True, **options))
    return made[-1]


launch = JITFunction.run
JITFunction.run = compile_alone


def calls(key: int) -> None:
    """Makes every kind of call of the kernels, with few types of numbers.

    With `key` 1 all positions are within 32 bits; with another key they are beyond.
    """
    start, number = (0, 1) if key == 1 else (2**33 + 5, 2**63 + 3)
    philox_triton.words(key, number, 3, start, 1000, 1, torch.device("cpu"))
    for kind, dtype in (("rademacher", torch.bfloat16), ("rademacher", torch.float32), ("gaussian", torch.float16)):
        Directions(key, kind).shift(torch.zeros(5000, dtype=dtype), number, 3, 0.01, start)
    list(Directions(key, "gaussian").blocks(number, 3, start, 5000))
    for kind, dtype in (("rademacher", torch.bfloat16), ("gaussian", torch.float32)):
        sources = [(torch.zeros(count, dtype=dtype), count, start) for count in (5000, 17)]
        Directions(key, kind).shift_all(sources, number, 0.01)
        Directions(key, kind).add_all_(sources, number, 0.01)
    Directions(key, "rademacher").rows(number, 3, torch.tensor([1, 2]), 100)


def described(kernel: Any) -> dict[str, Any]:
    with NamedTemporaryFile(suffix=".cubin") as file:
        file.write(kernel.asm["cubin"])
        file.flush()
        done = subprocess.run([TOOL, "-res-usage", file.name], capture_output=True, text=True, check=True)
    registers, stack = re.findall(r"REG:(\d+) STACK:(\d+)", done.stdout + done.stderr)[0]
    odd = re.findall(r"\bfma\.|\.ftz\b|\.approx\b", kernel.asm["ptx"])
    return {"name": kernel.name, "registers": int(registers), "stack": int(stack), "odd": odd}


def compile_for(capability: int) -> None:
    driver.set_active(Card(capability))
    directions._kernels = lambda device: philox_triton
    counts = []
    for key in KEYS:
        calls(key)
        counts.append(len({id(kernel) for kernel in made}))
    kernels = {id(kernel): kernel for kernel in made}.values()
    print(json.dumps({"counts": counts, "kernels": list(map(described, kernels))}))


def main() -> None:
    """Compiles for each card in a process of its own.

    Triton keeps what it has compiled by the card's number, and each card here has number 0.
    """
    for capability in map(int, sys.argv[1:]):
        child = os.fork()
        if child == 0:
            compile_for(capability)
            sys.stdout.flush()
            os._exit(0)
        if os.waitpid(child, 0)[1]:
            sys.exit(1)


if __name__ == "__main__":
    main()
