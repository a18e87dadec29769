"""Measures the effective ranks of a model's linear layers, from which `Problem.layer_rank` is taken.

K-FAC approximates a linear layer's block of the curvature by the Kronecker product of A, the second moment of the
layer's inputs, and B, the second moment of the loss's derivatives by its outputs. If the curvature is such a product,
which is an assumption, the theorem for directions of low rank depends on trace(A)/||A||_2 + trace(B)/||B||_2
(dpzero_theory/theory/sharp/proof.md, section 15).
"""

from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from dpzero_theory.curvature.objective import Objective


def layer_ranks(objective: Objective) -> list[dict[str, Any]]:
    """Measure r_A = trace(A)/||A||_2 and r_B = trace(B)/||B||_2 of each linear layer whose weight matrix is trainable.

    A is the second moment of the layer's inputs, and B the second moment of the loss's derivatives by its outputs, at
    the module's own weights. Both are over samples and all further axes, such as the tokens of a text, and over all
    uses of a layer that the forward pass uses several times. The module has hooks during the call; its weights and
    their `grad` do not change.

    Args:
        objective: the module, its losses and the samples.

    Returns:
        A dictionary for each `nn.Linear` (not for subclasses) on which the losses depend, in the order of the forward
        pass, unless its A or B is 0. Its keys are "layer", the layer's name; "shape", the shape of its weight matrix;
        "input_rank", r_A; and "output_rank", r_B.
    """
    module, losses = objective.module, objective.per_sample
    layers = {
        name: part for name, part in module.named_modules() if type(part) is nn.Linear and part.weight.requires_grad
    }
    factors: dict[str, list[Tensor]] = {}

    def add(name: str, which: int, rows: Tensor) -> None:
        # Adds z z^T for all rows z, shape (..., units): a layer's inputs (which = 0) or derivatives by its outputs (1)
        flat = rows.detach().reshape(-1, rows.shape[-1]).double()
        kept = factors.setdefault(name, [torch.zeros(()), torch.zeros(())])
        kept[which] = kept[which] + (flat.T @ flat).cpu()

    def hook(layer: nn.Module, inputs: tuple[Tensor, ...], output: Tensor, name: str) -> None:
        add(name, 0, inputs[0])
        output.register_hook(partial(add, name, 1))  # type: ignore[no-untyped-call]

    handles = [layer.register_forward_hook(partial(hook, name=name)) for name, layer in layers.items()]
    try:
        weights = [layer.weight for layer in layers.values()]
        for batch in objective.batches if layers else ():
            torch.autograd.grad(losses(module, batch).sum(), weights, allow_unused=True)
    finally:
        for handle in handles:
            handle.remove()
    return [
        {
            "layer": name,
            "shape": list(layers[name].weight.shape),
            "input_rank": _rank(inputs),
            "output_rank": _rank(outputs),
        }
        for name, (inputs, outputs) in factors.items()
        if inputs.any() and outputs.any()
    ]


def _rank(matrix: Tensor) -> float:
    # tr(M)/||M||_2 of a positive semidefinite matrix M
    return float(matrix.trace() / torch.linalg.eigvalsh(matrix)[-1])
