"""The public shape of a run's directions, measured from the gradients of public records.

    shape = public_shape(model, losses, public)
    run = make_private_with_epsilon(model, losses, data, shape=shape, folder="run", ...)

A shape makes directions u longer along some weights than along others: E[u u^T] = B, a diagonal matrix (`optim.shape`).
Here B is near C^(-1/2), half of the way to undoing the differences between the weights, where C holds the mean squares
of the gradient's entries over the public records, with 1% of the mean of all entries added to each. For a matrix of
weights C is taken to be a product of a row's and a column's mean square. Each factor of B^(1/2) is rounded to a power
of 2, and all of them are multiplied by one number c, so that the mean of g^T B g over the public records is that of
||g||^2, where g is a record's gradient. So (to first order in the smoothing) the mean square of a record's difference
is what it is without a shape: the same clip cuts as much, and a step of the same size lowers the loss as much.

Directions remain public, as long as the records given here are: a release says nothing of the private records but the
clipped and noisy sums, whatever the directions are.
"""

from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from dpzero_theory.optim.engines.engine import Engine
from dpzero_theory.optim.losses.evaluation import Evaluation, Losses
from dpzero_theory.optim.losses.identity import inputs_digest
from dpzero_theory.optim.losses.records import Collate, Data, require_data
from dpzero_theory.optim.losses.users import ByUser
from dpzero_theory.optim.shape import LARGEST, Exponents, Shape, text_of
from dpzero_theory.optim.weights.directions import Directions
from dpzero_theory.optim.weights.module import Weights

_MOST_RECORDS = 512
"""How many public records are differentiated at most, evenly spread."""
_ADDED = 0.01
"""The share of the mean that is added to every mean square."""


def public_shape(module: nn.Module, losses: Losses, public_data: Data, *, collate: Collate = None) -> str:
    """Measure from the gradients of public records how much longer a run's random directions should be along one weight
    than along another: their shape.

    Along weights whose gradients are small, directions are made longer, so that a step changes these weights too. The
    module is evaluated in eval mode, at its present weights, and is left as it was. One record is differentiated at a
    time, by backpropagation, of at most 512 records.

    Args:
        module: the module with the weights that the run begins with; the shape is of its trainable parameters.
        losses: the loss function of the run, (module, batch) -> one loss for each record. It must have derivatives.
        public_data: public records, in the form of the private ones. A run whose data set holds one of them refuses the
            shape (by what the model is given, as `losses.identity.shared` compares records).
        collate: a function from a list of records to the batch; torch's default_collate if None.

    Returns:
        A text of JSON, the setting `shape` of a plan (`Plan.for_target`).

    Raises:
        ValueError: losses without derivatives, an `Engine` in place of losses, records that are users (`by_user`), a
            sharded module, quantised layers made trainable by `train_packed`, or gradients that are not finite or all
            0.
    """
    require_data(public_data, "public_data")
    if isinstance(public_data, ByUser) or isinstance(losses, Engine):
        raise ValueError("public_data must hold texts, not users, and losses be a function, for gradients")
    weights, evaluation = Weights(module, Directions(bytes(16), "rademacher")), Evaluation(losses, public_data, collate)
    if weights.collective:
        raise ValueError("module must not be sharded where a shape is measured")
    numbers = np.unique(np.arange(_MOST_RECORDS) * len(public_data) // _MOST_RECORDS)
    squares = [torch.zeros(p.shape, dtype=torch.float64, device=p.device) for p in weights.parameters]
    modes = [(part, part.training) for part in module.modules()]
    weights.untrained.begin()
    try:
        module.eval()
        for number in numbers:
            loss: Any = losses(module, evaluation.batch(np.array([number]), alike=True).content)
            if not (isinstance(loss, Tensor) and loss.requires_grad):
                raise ValueError("losses must have derivatives by the trained weights where a shape is measured")
            gradient = torch.autograd.grad(loss.sum(), weights.parameters, allow_unused=True)
            for total, g in zip(squares, gradient, strict=True):
                total += 0 if g is None else g.double().square() / len(numbers)
    finally:
        for part, mode in modes:
            part.training = mode
        weights.untrained.put_back(written=True)
    whole = float(sum(total.sum() for total in squares))
    if not 0 < whole < np.inf:
        raise ValueError(f"the gradients of public_data must be finite and not all 0; their mean square is {whole:g}")
    exponents, shaped = {}, 0.0
    for name, total in zip(weights.names, squares, strict=True):
        found = total.reshape(len(total), -1) if total.ndim > 1 else total.reshape(-1, 1)
        rows = _exponents(found.mean(1) / (whole / weights.d))
        columns = _exponents(found.mean(0) / (float(found.mean()) or 1.0))
        shaped += float(torch.from_numpy(4.0**rows).to(found) @ found @ torch.from_numpy(4.0**columns).to(found))
        exponents[name] = rows, columns if total.ndim > 1 else columns[:0]
    digests = [inputs_digest(public_data[number]) for number in numbers.tolist()]
    return text_of((whole / shaped) ** 0.5, exponents, digests)


def _exponents(squares: Tensor) -> Exponents:
    # `squares` are mean squares s of the gradient's entries, of each row or column of a parameter, in units of a mean
    # over all. Directions get the factor 2^e with 2^e near (s + 0.01)^(-1/4), whose square undoes half of the
    # differences between the s on a logarithmic scale. 0.01 keeps rows that have no gradient from getting the largest
    # factors.
    found: Exponents = torch.log2(squares + _ADDED).div(-4).round().clamp(-LARGEST, LARGEST).cpu().numpy().astype(int)
    return found


def require_public(shape: Shape, data: Data) -> None:
    """Raise ValueError if the data set of a run holds a public record from which `public_shape` has measured how long
    the run's directions are along each weight. Records are the same if a model is given the same bytes of them
    (`losses.identity.inputs_digest`)."""
    texts = data.texts if isinstance(data, ByUser) else data
    both = 0
    for number in range(len(texts)):
        try:
            both += inputs_digest(texts[number]) in shape.records
        except Exception:  # A record that cannot be read counts as 0 in a run
            continue
    if both:
        raise ValueError(f"shape must be measured on public records; got one of which data holds {both} records too")
