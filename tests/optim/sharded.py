"""What each process of the tests of sharded modules does: `tests.optim.sharded FOLDER COUNT ...`.

FOLDER is for the results, and each COUNT is a number of processes.
"""

import sys
from collections.abc import Callable
from dataclasses import replace as changed
from pathlib import Path
from typing import Any

import torch
import torch._dynamo  # FSDP would import torch._dynamo in every process
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import Shard
from torch.multiprocessing.spawn import start_processes
from torch.utils.data import TensorDataset

from dpzero_theory.optim.files.transcript import Record, read
from dpzero_theory.optim.plan import Plan
from dpzero_theory.optim.private import make_from_seed_not_private, make_private_with_epsilon
from dpzero_theory.optim.run import Run
from dpzero_theory.optim.weights.directions import Directions
from dpzero_theory.optim.weights.module import Weights
from dpzero_theory.privacy.sampling import Poisson
from tests.optim.small import BUDGET, plan

RECORDS, HALF_WAY = 10, 1
TOKENS = torch.randint(0, 11, (RECORDS, 5), generator=torch.Generator().manual_seed(1))
DATA = TensorDataset(TOKENS, TOKENS.sum(dim=1) % 11)
STEP: dict[str, Any] = {"steps": 3, "clip": 1.0, "step_size": 0.05, "smoothing": 1e-2, "expected_batch": RECORDS}
PLAN = plan(n=RECORDS, **STEP)
RUNS: dict[str, dict[str, Any]] = {
    "rademacher": {},
    "sphere": {"direction": "sphere", "directions_per_step": 2},
    "poisson": {"sampling": Poisson(0.1), "steps": 6},
    "low-rank": {"direction": "low-rank:2"},
    "low-rank, several": {"direction": "low-rank", "directions_per_step": 2},
    "nearest": {"dtype": torch.bfloat16},
    "half precision": {"dtype": torch.bfloat16, "direction": "gaussian"},
}
"""The runs that are compared, by name: changes of the plan, and the type of the weights.

Each has three micro-batches for two or four processes; "poisson" has empty batches too.
"""


class Net(nn.Module):
    """A module with tied embeddings, a normalisation, and parameters with fewer rows than there are processes."""

    def __init__(self, dtype: torch.dtype = torch.float32) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embed, self.norm = nn.Embedding(11, 6), nn.LayerNorm(6)
        self.down, self.up = nn.Linear(6, 3), nn.Linear(3, 6)
        self.head = nn.Linear(6, 11)
        self.head.weight = self.embed.weight
        self.to(dtype)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        hidden = self.norm(self.embed(tokens))
        found: torch.Tensor = self.head(hidden + self.up(torch.tanh(self.down(hidden)))).mean(dim=1)
        return found


def sharded(module: Net, groups: tuple[str, ...] = ("down", "up", ""), **options: Any) -> Net:
    """Returns the module, sharded by FSDP: each submodule named in `groups`, and at last the whole (the name "").

    `options` are those of FSDP's `fully_shard`.
    """
    for name in groups:
        fully_shard(module.get_submodule(name), **options)
    return module


def losses(module: nn.Module, batch: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
    return nn.functional.cross_entropy(module(batch[0]).float(), batch[1], reduction="none")


def seeded(module: nn.Module, name: str, folder: Path | None = None) -> Run:
    changes = dict(RUNS[name])
    dtype = changes.pop("dtype", torch.float32)
    of_step = {part: changes.pop(part) for part in ("sampling", "coordinates") if part in changes}
    return make_from_seed_not_private(
        module.to(dtype),
        losses,
        DATA,
        changed(PLAN, step=changed(PLAN.step, **of_step), **changes),
        seed=3,
        micro_batch=4,
        folder=folder,
    )


def finished(run: Run) -> dict[str, torch.Tensor]:
    """Makes all steps of a run and returns its weights.

    Between steps the module is evaluated, which leaves its root's weights gathered.
    """

    def evaluate(record: Record) -> None:
        with torch.no_grad():
            run.weights.module(TOKENS)

    run.run(evaluate)
    return run.weights.values()


def mezo(module: nn.Module) -> Run:
    """Returns a run of MeZO, without clip and noise: the generator of noise would have to be resumed, too."""
    options = {key: value for key, value in STEP.items() if key != "clip"}
    chosen = Plan.without_privacy(n=len(DATA), sampling="full", **options)
    return make_from_seed_not_private(module, losses, DATA, chosen, seed=3, micro_batch=4)


def resumed(module: nn.Module, checkpoint: Path) -> dict[str, torch.Tensor]:
    run = mezo(module)
    run.load_state_dict(torch.load(checkpoint, weights_only=True))
    return finished(run)


def half_way(module: nn.Module, checkpoint: Path) -> None:
    run = mezo(module)
    for _ in range(HALF_WAY):
        run.step()
    state = run.state_dict()
    if not dist.is_initialized() or dist.get_rank() == 0:
        torch.save(state, checkpoint)


def private(folder: Path) -> dict[str, torch.Tensor]:
    run = make_private_with_epsilon(
        sharded(Net()), losses, DATA, **{**BUDGET, **STEP}, relation="replace-one", sampling="full", folder=folder
    )
    found = finished(run)
    run.close()
    dist.barrier()  # a file that is being closed must not be read
    return found


def replayed(folder: Path) -> dict[str, torch.Tensor]:
    module = sharded(Net())
    read(folder / "run.sqlite").replayed(module)
    return weights(module).values()


def weights(module: nn.Module) -> Weights:
    return Weights(module, Directions(7, "gaussian"))


def shifted_output(module: nn.Module) -> torch.Tensor:
    with weights(module).shifted([5], [0.1]):
        found: torch.Tensor = module(TOKENS).clone()
    return found


def refusals() -> dict[str, str]:
    """Returns what is said where a way of sharding cannot be supported or a step fails, by the name of the case.

    It also says whether the weights stay as they were.
    """

    def by_columns() -> object:
        module = nn.Linear(4, 4, bias=False)
        fully_shard(module, shard_placement_fn=lambda parameter: Shard(1))
        return weights(module)

    def direct() -> None:
        module = sharded(Net())
        with weights(module).shifted([0], [0.1]):
            torch.mul(module.embed.weight, 2)

    def in_the_middle() -> None:
        module = sharded(Net())
        found = weights(module)
        before, expected = found.fingerprint(), shifted_output(module)
        hook = module.up.register_forward_pre_hook(lambda *args: 1 / 0)
        try:
            with found.shifted([0], [0.1]):
                module(TOKENS)
        finally:
            hook.remove()
            assert found.fingerprint() == before
            assert torch.equal(shifted_output(module), expected)

    def derivatives() -> None:
        weights(sharded(Net())).evaluated([(0, None)], lambda module: module(TOKENS))

    def first_kind() -> object:
        return weights(FullyShardedDataParallel(nn.Linear(4, 4), device_id=torch.device("cpu")))

    cases: list[Callable[[], object]] = [by_columns, first_kind, direct, in_the_middle, derivatives]
    messages = {}
    for case in cases:
        try:
            case()
        except (ValueError, ZeroDivisionError) as error:
            messages[case.__name__] = str(error)
    return messages


def work(rank: int, count: int, folder: Path) -> None:
    """Does the work of process number `rank` of `count`, and leaves its results in a file in `folder`."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/meet-{count}", rank=rank, world_size=count)
    found: dict[str, Any] = {name: finished(seeded(sharded(Net()), name)) for name in RUNS}
    found["private"] = private(folder / f"private-{count}")
    found["replayed"] = replayed(folder / f"private-{count}")
    found["resumed"] = resumed(sharded(Net(torch.bfloat16)), folder / "alone.pt")
    half_way(sharded(Net(torch.bfloat16)), folder / f"checkpoint-{count}.pt")
    found["mixed"] = shifted_output(sharded(Net(), mp_policy=MixedPrecisionPolicy(param_dtype=torch.bfloat16)))
    found["refusals"] = refusals()
    mesh = init_device_mesh("cpu", (count // 2, 2), mesh_dim_names=("replicate", "shard"))
    ways: dict[str, dict[str, Any]] = {"gathered": {"reshard_after_forward": False}, "replicated": {"mesh": mesh}}
    for name, options in ways.items():
        found[name] = finished(seeded(sharded(Net(), **options), "rademacher"))
    found["in part"] = finished(seeded(sharded(Net(), ("down", "up")), "rademacher"))
    torch.save(found, folder / f"{count}-{rank}.pt")
    dist.destroy_process_group()


def main() -> None:
    """Runs the processes as forks of this one, so that the imports are made once."""
    for count in map(int, sys.argv[2:]):
        arguments = (count, Path(sys.argv[1]))
        start_processes(work, arguments, nprocs=count, start_method="fork")  # type: ignore[no-untyped-call]


if __name__ == "__main__":
    main()
