"""Starts several ranks of a distributed program, as torchrun does, in forks.

`forks.run("-m", "tests.ranks", COUNT, MODULE, ARGUMENT, ...)` runs MODULE with the arguments in COUNT processes.
"""

import os
import socket
import sys
from importlib import import_module

import torch._dynamo  # noqa: F401  FSDP would, in every process
from torch.multiprocessing.spawn import start_processes


def work(rank: int, module: str, count: int, port: int, arguments: list[str]) -> None:
    own = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": count, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    os.environ.update({name: str(value) for name, value in own.items()})
    loaded = import_module(module)
    getattr(loaded, "EXPERIMENT", loaded).main(arguments)


def main() -> None:
    count, module, *arguments = sys.argv[1:]
    import_module(module)
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    start_processes(work, (module, int(count), port, arguments), nprocs=int(count), start_method="fork")  # type: ignore[no-untyped-call]


if __name__ == "__main__":
    main()
