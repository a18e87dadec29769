"""Measures a shape for a run's random directions from gradients of public records.

A shape makes the directions u longer along some weights than along others: E[u u^T] is a diagonal matrix B instead of
the identity. With m_i the mean square of entry i of the gradient over the public records, B_ii is about proportional to
(m_i + 0.01 mean(m))^(-1/2), which undoes half of the differences between weights on a logarithmic scale. For a matrix
of weights, m_ij is replaced by the product of a row's and a column's mean square. Square roots of B_ii are rounded to
powers of 2, and B is scaled so that the mean of g^T B g over public gradients g is the mean of ||g||^2. So, to first
order in the smoothing, a record's difference has the same mean square with a shape as without, and the same clip and
step size can be used.
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
"""The largest number of public records, evenly spread over the data set, whose gradients are computed."""
_ADDED = 0.01
"""The share of the mean over all entries that is added to each mean square of the gradient's entries."""


def public_shape(module: nn.Module, losses: Losses, public_data: Data, *, collate: Collate = None) -> str:
    """Measure, from gradients of public records, how long a run's random directions should be along each weight.

    Directions become longer along weights with small gradients, so that a step changes these weights too. Gradients of
    at most 512 records are computed, one at a time, in eval mode. The module is left as it was.

    Args:
        module: the module with the weights with which the run begins. The shape has lengths for its trainable
            parameters.
        losses: the loss function of the run, (module, batch) -> losses of shape (records,). It must have derivatives.
        public_data: public records, in the form of the private ones. A run refuses the shape if its data set holds one
            of the records that were used, compared by their inputs without labels (`losses.identity.inputs_digest`).
        collate: a function from a list of records to a batch; torch's default_collate if None.

    Returns:
        The shape as a JSON string, to be passed as `shape` to `make_private_with_epsilon` or `Plan.for_target`.

    Raises:
        ValueError: the losses have no derivatives or come from an `Engine`, the records are users (`by_user`), the
            module is sharded or has quantised layers that `train_packed` made trainable, or the gradients are not
            finite or all 0.
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
    # Returns the exponents e of the factors 2^e, near (s + 0.01)^(-1/4), of the rows or columns of a parameter. The
    # entries s of `squares` are mean squares of the gradient's entries in each row or column, relative to the mean of
    # all. Without 0.01, rows that have no gradient would get the largest factors.
    found: Exponents = torch.log2(squares + _ADDED).div(-4).round().clamp(-LARGEST, LARGEST).cpu().numpy().astype(int)
    return found


def require_public(shape: Shape, data: Data) -> None:
    """Raise ValueError if `data` holds a record from which the shape of a run's directions was measured
    (`public_shape`).

    `data` is the data set of the run. Records are compared by their inputs without labels
    (`losses.identity.inputs_digest`).
    """
    texts = data.texts if isinstance(data, ByUser) else data
    both = 0
    for number in range(len(texts)):
        try:
            both += inputs_digest(texts[number]) in shape.records
        except Exception:  # A record that cannot be read adds nothing to a run
            continue
    if both:
        raise ValueError(f"shape must be measured on public records; got one of which data holds {both} records too")
