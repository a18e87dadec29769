"""A torch module and a per-sample loss as a function of one flat vector of weights, with its derivatives.

The module's own weights are read, and never changed. Derivatives are by torch.func: products with a Hessian
differentiate forward over reverse, which needs about the memory of two gradients of one batch, and gradients of single
samples use vmap.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, jvp, vmap
from torch.utils import _pytree as pytree

from dpzero_theory import check
from dpzero_theory.curvature.lanczos import Operator

Batch = Any
"""A batch of samples, as tensors whose first axis is the sample, alone or in lists, tuples and dictionaries."""
Losses = Callable[[nn.Module, Batch], Tensor]
"""A function (module, batch) that returns one loss for each sample of the batch, shape (batch,)."""

_VMAP_NUMBERS = 1 << 24  # At most this many entries of single samples' gradients, or one gradient, are made at once.


class _Call(nn.Module):
    # `torch.func.functional_call` can replace the weights of a module only, so the losses are its forward
    def __init__(self, module: nn.Module, losses: Losses) -> None:
        super().__init__()
        self.module, self.losses = module, losses

    def forward(self, batch: Batch) -> Tensor:
        return self.losses(self.module, batch)


class Objective:
    """The losses of n samples as functions of one flat vector x of all trainable weights, shape (d,).

    Args:
        module: a module in eval mode, so that samples do not depend on each other or on random numbers. x has its
            weights with requires_grad, tied weights once; the other weights are constants.
        losses: a function (module, batch) that returns one loss for each sample of the batch, shape (batch,).
        batches: the samples, in batches that are differentiated one at a time: tensors whose first axis is the sample,
            alone or in lists, tuples and dictionaries.

    Attributes:
        module, per_sample, batches: the arguments module, losses and batches.
        start: the module's own weights as a flat vector, shape (d,).
        d: the number of trainable weights.
        n: the number of samples.
        sizes: the number of samples in each batch.

    Raises:
        ValueError: the module is in training mode, has no trainable weights or weights of several dtypes; there are no
            batches; or the losses have another shape than (batch,).
    """

    def __init__(self, module: nn.Module, losses: Losses, batches: Sequence[Batch]) -> None:
        if any(part.training for part in module.modules()):
            raise ValueError("module must be in eval mode: call module.eval()")
        weights = {name: p.detach() for name, p in module.named_parameters() if p.requires_grad}
        if not weights or len({p.dtype for p in weights.values()}) != 1:
            raise ValueError(f"module must have trainable weights of one dtype; got {len(weights)} weights")
        if not batches:
            raise ValueError("batches must hold at least one batch; got none")
        self.module, self.per_sample = module, losses
        self._call = _Call(module, losses)
        self._shapes = {f"module.{name}": p.shape for name, p in weights.items()}
        self.batches = list(batches)
        self.start = torch.cat([p.reshape(-1) for p in weights.values()])
        self.d = len(self.start)
        self.sizes = [int(self._losses(self.unflatten(self.start), batch).shape[0]) for batch in self.batches]
        self.n = sum(self.sizes)

    def unflatten(self, x: Tensor) -> dict[str, Tensor]:
        """Return the trainable weights by name, as views of the flat vector x, shape (d,).

        The names are those of `nn.Module.named_parameters` with "module." before them.
        """
        parts = torch.split(x, [shape.numel() for shape in self._shapes.values()])
        return {name: part.view(shape) for (name, shape), part in zip(self._shapes.items(), parts, strict=True)}

    def _copied(self, x: Tensor) -> dict[str, Tensor]:
        # If a weight is a view of x and its tangent has other strides, torch copies the tangent into memory as large as
        # all of x, once for each weight.
        return {name: part.clone() for name, part in self.unflatten(x).items()}

    def _as_vector(self, weights: dict[str, Tensor]) -> Tensor:
        return torch.cat([weights[name].reshape(-1) for name in self._shapes])

    def _losses(self, weights: dict[str, Tensor], batch: Batch) -> Tensor:
        with torch.no_grad():
            values: Tensor = functional_call(self._call, weights, (batch,))
        rows = {leaf.shape[0] for leaf in pytree.tree_leaves(batch) if isinstance(leaf, Tensor) and leaf.ndim}
        if values.ndim != 1 or {values.shape[0]} != rows:
            raise ValueError(f"losses must have shape (batch,) = {sorted(rows)}; got {tuple(values.shape)}")
        return values

    def _sum_of_losses(self, weights: dict[str, Tensor], batch: Batch) -> Tensor:
        total: Tensor = functional_call(self._call, weights, (batch,)).sum()
        return total

    def losses(self, x: Tensor) -> Tensor:
        """Return the losses of all samples at the weights x, shape (d,), in the order of the batches: float64, shape
        (n,)."""
        weights = self.unflatten(x)
        return torch.cat([self._losses(weights, batch).double() for batch in self.batches])

    def value(self, x: Tensor) -> float:
        """Return the mean loss of all samples at the weights x, shape (d,), summed in float64."""
        return float(self.losses(x).mean())

    def gradient(self, x: Tensor) -> Tensor:
        """Return the gradient of the mean loss at the weights x, shape (d,), as a flat vector of this shape."""
        weights = self.unflatten(x)
        return (
            sum((self._as_vector(grad(self._sum_of_losses)(weights, batch)) for batch in self.batches), x.new_zeros(()))
            / self.n
        )

    def descend(self, x: Tensor, steps: int, step_size: float) -> Tensor:
        """Return the weights, shape (d,), after gradient descent on the mean loss. Raises ValueError for invalid
        arguments.

        The mean loss never rises: if a step would raise it, the step size is halved, for all later steps too. If it
        would still rise with 1e-12 of `step_size`, the descent ends.

        Args:
            x: the starting weights, shape (d,).
            steps: the largest number of steps, >= 0.
            step_size: the first step size, > 0.
        """
        alpha = check.real("step_size", step_size, above=0)
        value = self.value(x)
        for _ in range(check.integer("steps", steps, at_least=0)):
            gradient = self.gradient(x)
            trial = x - alpha * gradient
            after = self.value(trial)
            while not after <= value and alpha > 1e-12 * step_size:
                alpha /= 2
                trial = x - alpha * gradient
                after = self.value(trial)
            if not after <= value:
                break
            x, value = trial, after
        return x

    def hessian(self, x: Tensor) -> Operator:
        """Return the Hessian of the mean loss at the weights x, shape (d,), as an `Operator`.

        One product with a vector costs about as much as 4 evaluations of all losses.
        """
        return self._operator(x, self.batches, self.n)

    def sample_hessian(self, x: Tensor, index: int) -> Operator:
        """Return the Hessian of one sample's loss at the weights x, shape (d,), as an `Operator`.

        `index` is the sample's number, counted through all batches from 0. Raises IndexError if no sample has this
        number.
        """
        return self._operator(x, [self._sample(index)], 1)

    def _operator(self, x: Tensor, batches: Sequence[Batch], count: int) -> Operator:
        # Returns the Hessian of the sum of the losses of `batches`, divided by `count`
        weights = self._copied(x)

        def product(v: Tensor) -> Tensor:
            total, direction = torch.zeros_like(v), self._copied(v.contiguous())
            for batch in batches:
                gradient = grad(lambda at, batch=batch: self._sum_of_losses(at, batch))
                tangent = jvp(gradient, (weights,), (direction,))[1]
                total += self._as_vector(tangent).detach()
            return total / count

        return Operator(self.d, product, x.dtype, x.device)

    def _sample(self, index: int) -> Batch:
        # Samples are numbered through all batches from 0; one is returned as a batch of one
        for batch, size in zip(self.batches, self.sizes, strict=True):
            if 0 <= index < size:
                return pytree.tree_map(
                    lambda leaf, i=index: leaf[i : i + 1] if isinstance(leaf, Tensor) else leaf, batch
                )
            index -= size
        raise IndexError("sample index out of range")

    def gradient_norms(self, x: Tensor) -> Tensor:
        """Return the L2 norm of the gradient of each sample's loss at the weights x, shape (d,): float64, shape (n,).

        Several samples are differentiated at once by vmap. If d is above 2^23, they are differentiated one at a time,
        without vmap, which some modules do not support.
        """
        weights = self.unflatten(x)
        norms: list[Tensor] = []
        together = max(1, _VMAP_NUMBERS // self.d)
        for batch, size in zip(self.batches, self.sizes, strict=True):
            if together == 1:
                first = len(norms)
                norms += [self._gradient_norm(weights, self._sample(i))[None] for i in range(first, first + size)]
            else:
                at = vmap(lambda sample: self._gradient_norm(weights, _as_batch_of_one(sample)), chunk_size=together)
                norms += list(at(batch)[:, None])
        return torch.cat(norms).double()

    def _gradient_norm(self, weights: dict[str, Tensor], sample: Batch) -> Tensor:
        parts = grad(self._sum_of_losses)(weights, sample).values()
        return torch.stack([(part * part).sum() for part in parts]).sum().sqrt()


def _as_batch_of_one(sample: Batch) -> Batch:
    return pytree.tree_map(lambda leaf: leaf[None] if isinstance(leaf, Tensor) else leaf, sample)
