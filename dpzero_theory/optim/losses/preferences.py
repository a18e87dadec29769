"""The loss of pairs of answers of which one is preferred: direct preference optimisation (the `hf` extra).

    losses = preference_losses(beta=0.1)
    make_private_with_epsilon(model, losses, pairs, collate=collator, ...)

A record is a pair: a prompt, the chosen answer and the rejected one. With the model's log-probability of an answer
minus that of the reference model, c for the chosen and r for the rejected answer, its loss is log(1 + e^(beta (r - c)))
(arXiv 2305.18290).
"""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from dpzero_theory import check
from dpzero_theory.optim.losses.evaluation import Losses
from dpzero_theory.optim.losses.task_losses import virtual_tokens


def preference_losses(beta: float = 0.1) -> Losses:
    """Return a function (module, batch) that gives one loss for each pair of a batch.

    A batch is what TRL's `DataCollatorForPreference` gives: input_ids, attention_mask and completion_mask of shape
    (2 pairs, tokens), first all chosen answers after their prompts, then the rejected ones; completion_mask is 1 where
    a token is the answer's. ref_chosen_logps and ref_rejected_logps, of shape (pairs,), are the reference model's
    log-probabilities of the answers.

    Args:
        beta: a number > 0; the larger it is, the closer the model stays to the reference model.

    Raises:
        ValueError: beta that is no positive number; by the function, a batch without the reference model's
            log-probabilities.
    """
    beta = check.real("beta", beta, above=0)

    def losses(module: nn.Module, batch: Any) -> Tensor:
        if "ref_chosen_logps" not in batch or "ref_rejected_logps" not in batch:
            raise ValueError(
                "ref_chosen_logps and ref_rejected_logps must be in a batch; compute them once for all pairs"
            )
        found = answer_log_probabilities(module, batch).float()
        chosen, rejected = (found - torch.cat([batch["ref_chosen_logps"], batch["ref_rejected_logps"]])).chunk(2)
        return functional.softplus(-beta * (chosen - rejected))

    losses.__qualname__ = f"preference_losses.{beta!r}"
    return losses


def answer_log_probabilities(module: nn.Module, batch: Mapping[str, Tensor]) -> Tensor:
    """Return for each row the log-probability that the module gives its answer after its prompt.

    batch: with input_ids, attention_mask and completion_mask, each of shape (rows, tokens).
    """
    ids, answered = batch["input_ids"], batch["completion_mask"][:, 1:]
    logits = module(input_ids=ids, attention_mask=batch["attention_mask"], use_cache=False).logits
    logits = logits[:, virtual_tokens(module, logits, ids.shape[1]) :][:, :-1].float()
    each = logits.gather(2, ids[:, 1:, None])[..., 0] - logits.logsumexp(2)
    found: Tensor = (each * answered).sum(1)
    return found
