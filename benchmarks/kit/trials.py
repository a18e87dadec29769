"""A private run that is disturbed on purpose, for experiments on interruptions and faults. The number of every release
is also written to a file outside the run's folder, which the fault does not touch.

The run is by Algorithm 2 (dpzero), by Algorithm 1 (dpgd-0th), or by Algorithm 2 inside the Hugging Face Trainer.
"""

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack
from torch.utils.data import TensorDataset

from dpzero_theory.cli import extra
from dpzero_theory.optim.files.folder import OF_TRAINER
from dpzero_theory.optim.private import make_private_with_epsilon
from dpzero_theory.optim.run import Run
from dpzero_theory.privacy.noise import SystemNoise

with extra("hf", "benchmarks.run_faults"):
    import transformers

    from dpzero_theory.optim.trainers.trainer import DPZeroTrainer

SEED, RECORDS, STEPS = 20262, 12, 24
METHODS = ("dpzero", "dpgd-0th", "trainer")
TARGET: dict[str, Any] = {
    "target_epsilon": 4.0, "target_delta": 1e-5, "steps": STEPS, "expected_batch": RECORDS, "clip": 1.0,
    "step_size": 0.01, "smoothing": 1e-3, "relation": "replace-one", "sampling": "full",
}  # fmt: skip
FEATURES = torch.randn(RECORDS, 3, generator=torch.Generator().manual_seed(SEED))
DATA = TensorDataset(FEATURES)
ROWS = [{"x": row} for row in FEATURES]


def fresh() -> nn.Module:
    torch.manual_seed(SEED)
    return nn.Sequential(nn.Dropout(0.5), nn.Linear(3, 1))


def losses(module: nn.Module, batch: Any) -> torch.Tensor:
    found: torch.Tensor = (module(batch["x"] if isinstance(batch, dict) else batch[0])[:, 0] - 1) ** 2
    return found


class Told(SystemNoise):  # type: ignore[misc]
    """System noise that, for each release, draws the noise and then writes the number of the release to the file at
    `path`, before the noise is used. Numbers start at 0, one a line."""

    def __init__(self, path: Path, run: Run) -> None:
        super().__init__()
        self.path, self.run, self.last = path, run, -1

    def discrete_gaussian(self, scale: Any, size: Any = None) -> Any:
        found, files = super().discrete_gaussian(scale, size), self.run._files
        release = (files.ledger._spent if files.ledger else 0) - len(files.paid) - 1
        # a vector release draws its noise by several calls, but the release's number is written only once
        if release != self.last:
            self.last = release
            with self.path.open("ab", buffering=0) as file:
                file.write(b"%d\n" % release)
        return found


class Stop(transformers.TrainerCallback):  # type: ignore[misc]
    """A callback of the Hugging Face Trainer that ends training after `steps` further steps; with 0, before the first
    step."""

    def __init__(self, steps: int) -> None:
        self.steps = steps

    def on_train_begin(self, args: Any, state: Any, control: Any, **unused: Any) -> None:
        control.should_training_stop = self.steps == 0

    def on_step_end(self, args: Any, state: Any, control: Any, **unused: Any) -> None:
        self.steps -= 1
        control.should_training_stop |= self.steps == 0


class Trial:
    """One private run, and the random numbers of the fault that disturbs it.

    place is the folder of the trial. root is the run's folder in it, which a fault may copy or move. block is how many
    releases the ledger pays for at once, and made is the number of releases after which the fault comes. told is the
    file outside root to which the class `Told` writes.
    """

    def __init__(self, place: Path, method: str, rng: np.random.Generator) -> None:
        self.place, self.root, self.method, self.rng = place, place / "run", method, rng
        self.block, self.made = int(rng.choice([1, 1, 4])), int(rng.integers(1, STEPS - 2))
        self.told, self.checkpoint = place / "told", place / "checkpoint.pt"
        self.target = {**TARGET, "paid_at_once": self.block}
        if method == "dpgd-0th":
            self.target["algorithm"] = method
        self.module = fresh()

    def keep(self, run: Run) -> None:
        """Save a checkpoint of the run in the trial's file for it. If saving is interrupted, the file holds the whole
        old checkpoint or the whole new one."""
        part = self.checkpoint.with_suffix(".part")
        torch.save(run.state_dict(), part)
        part.replace(self.checkpoint)

    def folder(self, root: Path | None = None) -> Path:
        where = root or self.root
        return where / OF_TRAINER if self.method == "trainer" else where

    def start(self, *, resume: bool | str, root: Path | None = None) -> Run:
        """Start the run, or resume it, with a new module of the initial weights, and return it.

        resume: False to start; True to resume; "moved" to resume in a folder that is not the one where the run began.
        root: the run's folder, None for the trial's. A run that the Trainer made is resumed from its folder without the
        Trainer. A run by dpgd-0th also loads the trial's checkpoint when it is resumed, and saves one when it starts.
        """
        self.module = fresh()
        data: Any = ROWS if self.method == "trainer" else DATA
        run = make_private_with_epsilon(
            self.module, losses, data, folder=self.folder(root), resume=resume, **self.target
        )
        run._noise = Told(self.told, run)
        if self.method == "dpgd-0th":
            if resume:
                run.load_state_dict(torch.load(self.checkpoint, weights_only=True))
            else:
                self.keep(run)
        return run

    def train(self, count: int, *, resume: bool | str, root: Path | None = None) -> None:
        """Start or resume the run, make `count` further steps (all that are left if there are fewer), and close its
        files. resume and root are as in the method `start`. A run by dpgd-0th saves a checkpoint at the end."""
        if self.method != "trainer":
            run = self.start(resume=resume, root=root)
            try:
                run.catch_up()
                for _ in range(min(count, run.releases_left)):
                    run.step()
                if self.method == "dpgd-0th":
                    self.keep(run)
            finally:
                run.close()
            return
        trial, self.module = self, fresh()

        class Telling(DPZeroTrainer):
            def _resume(self, checkpoint: Any) -> None:
                self.run._noise = Told(trial.told, self.run)
                super()._resume(checkpoint)

        arguments = transformers.TrainingArguments(
            str(root or self.root), save_steps=7, report_to="none", use_cpu=True, disable_tqdm=True,
            remove_unused_columns=False, save_total_limit=None,
        )  # fmt: skip
        moved = {"resume": "moved"} if resume == "moved" else {}
        Telling(
            self.module, arguments, train_dataset=ROWS, losses=losses, callbacks=[Stop(count)],
            data_collator=torch.utils.data.default_collate, private={**self.target, **moved},
        ).train(resume_from_checkpoint=bool(resume))  # fmt: skip

    def end(self, resume: bool | str = True, root: Path | None = None) -> None:
        self.train(STEPS, resume=resume, root=root)

    def child(self, work: Callable[[], object], after: float | None, number: int) -> None:
        """Call `work` in a forked child process and wait until the child ends. After `after` seconds the child is sent
        the signal with this number; if `after` is None it is sent none. An exception in the child shows nowhere."""
        child = os.fork()
        if child == 0:
            try:
                signal.signal(signal.SIGINT, signal.default_int_handler)
                os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
                work()
            finally:
                os._exit(0)
        if after is not None:
            time.sleep(after)
            os.kill(child, number)
        os.waitpid(child, 0)

    def untidy(self) -> int:
        """Return 1 if a fault has left the module or torch in another state than before, else 0. The state is another
        if torch shows other weights than are stored, a part of the module is not in training mode (which is not looked
        at for a run in the Trainer), gradients are off, or a dispatch mode of torch is still active."""
        module: Any = self.module
        shown, there = module[1].weight.detach().clone(), module[1].weight.detach()
        same = (shown.numpy() == there.numpy()).all()
        tidy = all(part.training for part in module.modules()) or self.method == "trainer"
        return int(not (same and tidy and torch.is_grad_enabled() and not _get_current_dispatch_mode_stack()))
