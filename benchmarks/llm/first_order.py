"""AdamW and LoRA, and their private versions by Opacus.

In a private step the library's secret sampler draws the batch, Opacus' hooks compute per-record gradients, Opacus'
DPOptimizer clips and adds noise, and the library's calibration gives the noise multiplier. Where Opacus cannot hook a
model, one backward pass for each record computes its gradient, and `PerRecordGradients.how` says so. Dropout is off, as
in all other methods.
"""

import os
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn

from benchmarks.llm.configuration import Configuration
from benchmarks.llm.prompts import Example
from benchmarks.llm.scoring import Scorer
from benchmarks.problems.encoder import Scale, SentenceClassifier, layers
from dpzero_theory.optim.step.sampler import Batches, BatchesFromSeedNotPrivate
from dpzero_theory.privacy.sampling import drawn


def add_lora(module: nn.Module, configuration: Configuration) -> int:
    """Freeze the module and put adapters beside its query and value matrices; returns the number of trained weights.

    The adapters are in every layer, or in the last one where the configuration trains only that. The label vectors of a
    sentence classifier are trained too. Raises ValueError for a model without such matrices.
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
        layers_to_transform=[len(layers(module)) - 1] if "top" in configuration.weights else None,
    )
    whole = module.encoder if isinstance(module, SentenceClassifier) else module
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # peft reads an attribute that transformers renames
        get_peft_model(whole, adapters)
    # get_peft_model has put the adapters into the layers of `module`; what it returns is not needed
    return sum(p.numel() for p in module.parameters() if p.requires_grad)


def train_first_order(
    module: nn.Module,
    scorer: Scorer,
    train: Sequence[Example],
    configuration: Configuration,
    after_step: Callable[[int], None],
) -> None:
    """Train by AdamW on the sum of a batch's losses over the expected batch size. `after_step` is called after each
    step with the number of steps made.

    module: whose trainable weights are trained. scorer: gives each record's loss. train: the training records.
    configuration: its steps, step size, batch, sampling and seed are used; the seed draws the batches.
    """
    c = configuration
    parameters = [p for p in module.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(parameters, lr=c.step_size)
    batches = BatchesFromSeedNotPrivate(drawn(c.sampling, c.batch / len(train)), len(train), c.seed)
    for step in range(c.steps):
        _set_step_size(optimizer, c, step)
        batch = [train[i] for i in batches.draw().tolist()]
        optimizer.zero_grad()
        for chunk in _chunks(batch, scorer.rows):
            (scorer.losses(module, chunk).sum() / c.batch).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        after_step(step + 1)


class PerRecordGradients:
    """Puts each record's gradient into `grad_sample` of the trained parameters of `module`, shape (records,
    *parameter).

    Records come in the order of their lengths, in which `Scorer.losses` puts them through the model. The gradients come
    from Opacus' hooks if, for the first two records that are seen, those agree with one backward pass a record: the
    hooks are silently wrong where a model folds records and positions into one dimension, as OPT does. Otherwise they
    come from one backward pass a record. how: which of the two, in words; "" before the first record.
    """

    def __init__(self, module: nn.Module) -> None:
        self._parameters: list[Any] = [p for p in module.parameters() if p.requires_grad]
        self._module = module
        self._hooks: Any = None
        self._checked = False
        self.how = ""

    def set(self, scorer: Scorer, batch: Sequence[Example]) -> None:
        if not batch:
            for parameter in self._parameters:
                parameter.grad_sample = parameter.new_zeros(0, *parameter.shape)
            return
        if not self._checked:
            self._check(scorer, batch[:2])
        if self._hooks is None:
            self._one_by_one(scorer, batch)
        else:
            self._by_hooks(scorer, batch)

    def close(self) -> None:
        """Take the hooks off the module, and off its parameters what an optimizer has put there."""
        self._unhook()
        for parameter in self._parameters:
            for name in ("grad_sample", "summed_grad"):
                if hasattr(parameter, name):
                    delattr(parameter, name)

    def _unhook(self) -> None:
        if self._hooks is not None:
            self._hooks.remove_hooks()
            self._hooks = None
        for parameter in self._parameters:
            for name in ("_forward_counter", "_current_grad_sample"):
                if hasattr(parameter, name):
                    delattr(parameter, name)

    def _check(self, scorer: Scorer, batch: Sequence[Example]) -> None:
        from opacus.grad_sample import GradSampleModule, register_grad_sampler

        register_grad_sampler(Scale)(_scale_gradients)
        self._checked = True
        self._one_by_one(scorer, batch)
        expected = [parameter.grad_sample for parameter in self._parameters]
        _drop_aliases(self._module)
        for part in self._module.modules():  # Opacus looks only at layers in training mode; these have no dropout
            part.training = not list(part.children()) and bool(list(part.parameters()))
        try:
            self._hooks = GradSampleModule(self._module, loss_reduction="sum")
            for parameter in self._parameters:
                parameter.grad_sample = None
            self._by_hooks(scorer, batch)
            right = all(
                parameter.grad_sample.shape == own.shape and torch.allclose(parameter.grad_sample, own, 1e-3, 1e-5)
                for parameter, own in zip(self._parameters, expected, strict=True)
            )
        except (AttributeError, NotImplementedError, RuntimeError, TypeError, ValueError):
            right = False
        if right:
            self.how = "per-record gradients by Opacus' hooks"
        else:
            self._unhook()
            self._module.eval()
            self.how = "per-record gradients by one backward a record (Opacus' hooks do not fit this model)"
        for parameter in self._parameters:
            parameter.grad_sample = None

    def _by_hooks(self, scorer: Scorer, batch: Sequence[Example]) -> None:
        with warnings.catch_warnings():
            warnings.filterwarnings(
                "ignore", message="Full backward hook is firing"
            )  # torch warns since token ids, the first layer's input, have no gradient; its hook must run all the same
            scorer.losses(self._module, batch).sum().backward()  # type: ignore[no-untyped-call]
        for parameter in self._parameters:
            if isinstance(parameter.grad_sample, list):  # a tied weight has one entry for each place where it is used
                parameter.grad_sample = torch.stack(parameter.grad_sample).sum(dim=0)

    def _one_by_one(self, scorer: Scorer, batch: Sequence[Example]) -> None:
        rows = [torch.autograd.grad(scorer.losses(self._module, [record])[0], self._parameters) for record in batch]
        for parameter, *gradients in zip(self._parameters, *rows, strict=True):
            parameter.grad_sample = torch.stack(gradients)


def train_private_first_order(
    module: nn.Module,
    scorer: Scorer,
    train: Sequence[Example],
    configuration: Configuration,
    noise_multiplier: float,
    after_step: Callable[[int], None],
) -> str:
    """Train by DP-AdamW, and return how the per-record gradients were made (`PerRecordGradients.how`).

    `scorer.rows` records are in memory at a time. noise_multiplier: the noise on the sum of a batch over the clip.
    after_step: called after each step with the number of steps made. The others are those of `train_first_order`.
    """
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
    batches = Batches(drawn(c.sampling, c.batch / len(train)), len(train))
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


def _scale_gradients(layer: Scale, activations: Sequence[Any], backprops: Any) -> dict[Any, Any]:
    """Return the gradients of gain and bias for each record, in a dictionary by parameter, as Opacus asks of a function
    for a layer. activations: the layer's inputs. backprops: the loss's gradients with respect to its output."""
    return {layer.weight: backprops * activations[0], layer.bias: backprops}


def _drop_aliases(module: nn.Module) -> None:
    """Remove from each part of the module the second names of weights that a child of the part has (such as the bias of
    BERT's head), which Opacus would take for weights of a layer of its own."""
    for part in module.modules():
        below = {id(p) for child in part.children() for p in child.parameters(recurse=False)}
        for name, parameter in list(part.named_parameters(recurse=False)):
            if id(parameter) in below:
                del part._parameters[name]


def _set_step_size(optimizer: torch.optim.Optimizer, c: Configuration, step: int) -> None:
    for group in optimizer.param_groups:
        group["lr"] = c.step_size * (1 - step / c.steps if c.schedule == "linear" else 1.0)


def _chunks(batch: Sequence[Example], rows: int) -> list[Sequence[Example]]:
    """Return the batch in parts of `rows` records, the last one perhaps shorter, sorted by length so that the records
    of a part have similar lengths."""
    ordered = sorted(batch, key=lambda example: len(example.ids) + len(example.target))
    return [ordered[start : start + rows] for start in range(0, len(ordered), rows)]
