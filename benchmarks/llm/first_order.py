"""AdamW and LoRA, and their private versions by Opacus.

Private steps: batches by the library's secret sampler, per-record gradients by Opacus' hooks, clipping and noise by
Opacus' DPOptimizer, the noise multiplier by the library's calibration. Where Opacus cannot hook a model, per-record
gradients are made by one backward for each record, and `Hooks.how` says so. Dropout is off, as in all other methods.
"""

import os
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn

from benchmarks.llm.configuration import Configuration
from benchmarks.llm.models import layers
from benchmarks.llm.prompts import Example
from benchmarks.llm.scoring import Scorer
from dpzero_theory.optim.sampler import Batches, BatchesFromSeedNotPrivate

__all__ = ["PerRecordGradients", "add_lora", "train_first_order", "train_private_first_order"]


def add_lora(module: nn.Module, configuration: Configuration) -> int:
    """Freeze the module and put adapters beside its query and value matrices; returns the number of their weights.

    In every layer, or in the last one where the configuration trains only that. Raises ValueError for a model without
    such matrices.
    """
    from peft import LoraConfig, get_peft_model

    names = {name.rpartition(".")[2] for name, part in module.named_modules() if isinstance(part, nn.Linear)}
    targets = sorted(names & {"query", "value", "q_proj", "v_proj"})
    if not targets:
        raise ValueError(f"model must have query and value matrices for LoRA; got layers {sorted(names)}")
    torch.manual_seed(configuration.seed)
    adapters = LoraConfig(
        r=configuration.lora_rank,
        lora_alpha=configuration.lora_alpha,
        target_modules=targets,
        lora_dropout=0.0,
        layers_to_transform=[len(layers(module)) - 1] if configuration.weights == "top-biases" else None,
    )
    get_peft_model(module, adapters)  # type: ignore[arg-type]
    # the adapters are now in `module` itself
    return sum(p.numel() for p in module.parameters() if p.requires_grad)


def train_first_order(
    module: nn.Module,
    scorer: Scorer,
    train: Sequence[Example],
    configuration: Configuration,
    after_step: Callable[[int], None],
) -> None:
    """AdamW on the mean loss of a batch; `after_step` is told the number of steps made."""
    c = configuration
    parameters = [p for p in module.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(parameters, lr=c.step_size)
    batches = BatchesFromSeedNotPrivate(c.sampling, len(train), c.batch / len(train), c.seed)
    for step in range(c.steps):
        _set_step_size(optimizer, c, step)
        batch = [train[i] for i in batches.draw().tolist()]
        optimizer.zero_grad()
        for chunk in _chunks(batch, scorer.rows):
            (scorer.losses(module, chunk).sum() / c.batch).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        after_step(step + 1)


class PerRecordGradients:
    """Puts each record's gradient into `grad_sample` of the trained parameters, shape (records, *parameter).

    how: in words, by what.
    """

    def __init__(self, module: nn.Module) -> None:
        from opacus.grad_sample import GradSampleModule

        self._parameters = [p for p in module.parameters() if p.requires_grad]
        self._plain = module
        self._hooked: Any = None
        try:
            self._hooked = GradSampleModule(module, loss_reduction="sum")
            self.how = "per-record gradients by Opacus' hooks"
        except NotImplementedError:
            self.how = "per-record gradients by one backward a record (Opacus cannot hook this model)"

    def set(self, scorer: Scorer, batch: Sequence[Example]) -> None:
        if not batch:
            for parameter in self._parameters:
                parameter.grad_sample = parameter.new_zeros(0, *parameter.shape)  # type: ignore[attr-defined]
        elif self._hooked is not None:
            scorer.losses(self._plain, batch).sum().backward()  # type: ignore[no-untyped-call]
            for parameter in self._parameters:
                found = parameter.grad_sample  # type: ignore[attr-defined]
                if isinstance(found, list):  # a tied weight: one entry for each place that it is used
                    parameter.grad_sample = torch.stack(found).sum(dim=0)  # type: ignore[attr-defined]
        else:
            rows = [torch.autograd.grad(scorer.losses(self._plain, [record])[0], self._parameters) for record in batch]
            for parameter, *gradients in zip(self._parameters, *rows, strict=True):
                parameter.grad_sample = torch.stack(gradients)

    def close(self) -> None:
        """Take the hooks off the module."""
        if self._hooked is not None:
            self._hooked.remove_hooks()
        for parameter in self._parameters:
            for name in ("grad_sample", "summed_grad", "_forward_counter"):
                if hasattr(parameter, name):
                    delattr(parameter, name)


def train_private_first_order(
    module: nn.Module,
    scorer: Scorer,
    train: Sequence[Example],
    configuration: Configuration,
    noise_multiplier: float,
    after_step: Callable[[int], None],
) -> str:
    """DP-AdamW; returns how the per-record gradients were made. `scorer.rows` records are in memory at a time."""
    from opacus.optimizers import DPOptimizer

    c = configuration
    gradients = PerRecordGradients(module)
    generator = torch.Generator(next(module.parameters()).device)
    generator.manual_seed(int.from_bytes(os.urandom(8), "little", signed=True))
    parameters = [p for p in module.parameters() if p.requires_grad]
    optimizer = DPOptimizer(
        torch.optim.AdamW(parameters, lr=c.step_size),
        noise_multiplier=noise_multiplier,
        max_grad_norm=c.clip,
        expected_batch_size=c.batch,
        loss_reduction="mean",
        generator=generator,
    )
    batches = Batches(c.sampling, len(train), c.batch / len(train))
    try:
        for step in range(c.steps):
            _set_step_size(optimizer.original_optimizer, c, step)
            chunks = _chunks([train[i] for i in batches.draw().tolist()], scorer.rows) or [[]]
            for index, chunk in enumerate(chunks):
                optimizer.zero_grad(set_to_none=True)
                gradients.set(scorer, chunk)
                optimizer.signal_skip_step(do_skip=index < len(chunks) - 1)
                optimizer.step()
            optimizer.zero_grad(set_to_none=True)
            after_step(step + 1)
    finally:
        gradients.close()
    return gradients.how


def _set_step_size(optimizer: torch.optim.Optimizer, c: Configuration, step: int) -> None:
    for group in optimizer.param_groups:
        group["lr"] = c.step_size * (1 - step / c.steps if c.schedule == "linear" else 1.0)


def _chunks(batch: Sequence[Example], rows: int) -> list[Sequence[Example]]:
    """At most `rows` records each, of similar lengths."""
    ordered = sorted(batch, key=lambda example: len(example.ids) + len(example.target))
    return [ordered[start : start + rows] for start in range(0, len(ordered), rows)]
