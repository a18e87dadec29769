"""Losses of pairs of answers of which one is preferred, for language models (the `hf` extra).

    losses = preference_losses("sigmoid", beta=0.1)
    make_private_with_epsilon(model, losses, pairs, collate=collator, ...)

A record is a pair: a prompt, the chosen answer and the rejected one. With the model's log-probability of an answer
minus that of the reference model, c for the chosen and r for the rejected answer, and m = beta (c - r), its loss is

    sigmoid    log(1 + e^(-m))                       direct preference optimisation (arXiv 2305.18290)
    hinge      max(0, 1 - m)                         sequence likelihood calibration (arXiv 2305.10425)
    ipo        (c' - r' - 1/(2 beta))^2              identity preference optimisation (arXiv 2310.12036)
    apo_zero   1 - s(beta c) + s(beta r)             anchored preference optimisation (arXiv 2408.06266)

where s is the logistic function, and c', r' are c, r per token of the answer. apo_zero is the loss of Kahneman-Tversky
optimisation with 0 in place of its reference point, which would be an average over other records.
"""

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from dpzero_theory import check
from dpzero_theory.optim.losses.evaluation import Losses
from dpzero_theory.optim.losses.task_losses import virtual_tokens

_Loss = Callable[[Tensor, Tensor, float], Tensor]
"""A function (c, r, beta) -> losses, all but beta of shape (pairs,). c is the model's log-probability of the chosen
answer minus that of the reference model, and r the same for the rejected answer."""


def _sigmoid(chosen: Tensor, rejected: Tensor, beta: float) -> Tensor:
    return functional.softplus(-beta * (chosen - rejected))


def _hinge(chosen: Tensor, rejected: Tensor, beta: float) -> Tensor:
    return torch.relu(1 - beta * (chosen - rejected))


def _ipo(chosen: Tensor, rejected: Tensor, beta: float) -> Tensor:
    return (chosen - rejected - 1 / (2 * beta)) ** 2


def _apo_zero(chosen: Tensor, rejected: Tensor, beta: float) -> Tensor:
    return 1 - torch.sigmoid(beta * chosen) + torch.sigmoid(beta * rejected)


PREFERENCES: dict[str, _Loss] = {"sigmoid": _sigmoid, "hinge": _hinge, "ipo": _ipo, "apo_zero": _apo_zero}
"""The losses of pairs, as functions of c, r and beta, by the name of their kind."""
_PER_TOKEN = ("ipo",)
"""The kinds of losses whose c and r are divided by the number of tokens of the answer."""


def preference_losses(kind: str = "sigmoid", beta: float = 0.1) -> Losses:
    """Return a function (module, batch) that gives one loss for each pair of a batch.

    A batch is what TRL's `DataCollatorForPreference` gives: input_ids, attention_mask and completion_mask of shape
    (2 pairs, tokens), first all chosen answers after their prompts, then the rejected ones; completion_mask is 1 where
    a token is the answer's. ref_chosen_logps and ref_rejected_logps, of shape (pairs,), are the reference model's
    log-probabilities of the answers.

    Args:
        kind: "sigmoid", "hinge", "ipo" or "apo_zero"; the module's docstring has their formulas.
        beta: a number > 0; the larger it is, the closer the model stays to the reference model.

    Raises:
        ValueError: another kind, or beta that is not a positive number; by the function, a batch without the reference
            model's log-probabilities.
    """
    loss = PREFERENCES[check.choice("loss_type", kind, PREFERENCES)]
    beta = check.real("beta", beta, above=0)

    def losses(module: nn.Module, batch: Any) -> Tensor:
        if "ref_chosen_logps" not in batch or "ref_rejected_logps" not in batch:
            raise ValueError(
                "ref_chosen_logps and ref_rejected_logps must be in a batch; compute them once for all pairs"
            )
        found, tokens = answer_log_probabilities(module, batch)
        chosen, rejected = (found.float() - torch.cat([batch["ref_chosen_logps"], batch["ref_rejected_logps"]])).chunk(
            2
        )
        if kind in _PER_TOKEN:
            of_chosen, of_rejected = tokens.clamp(min=1).chunk(2)
            chosen, rejected = chosen / of_chosen, rejected / of_rejected
        return loss(chosen, rejected, beta)

    losses.__qualname__ = f"preference_losses.{kind}.{beta!r}"
    return losses


def answer_log_probabilities(module: nn.Module, batch: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
    """Return for each row the log-probability that the module gives its answer after its prompt, and the answer's
    number of tokens.

    batch: with input_ids, attention_mask and completion_mask, each of shape (rows, tokens).
    """
    ids, answered = batch["input_ids"], batch["completion_mask"][:, 1:]
    logits = module(input_ids=ids, attention_mask=batch["attention_mask"], use_cache=False).logits
    logits = logits[:, virtual_tokens(module, logits, ids.shape[1]) :][:, :-1].float()
    each = logits.gather(2, ids[:, 1:, None])[..., 0] - logits.logsumexp(2)
    return (each * answered).sum(1), answered.sum(1)
