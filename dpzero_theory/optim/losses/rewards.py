"""Losses made of a reward for answers that the model generates; the reward needs no derivative.

A zeroth-order method needs only numbers, so that a reward may be any bounded function of a record and the model's
answer to it: exact match, F1, whether a parser accepts the answer, a judge's mark.

An answer is drawn token by token. The draws are the same at all points of a step (common random numbers), so that a
difference of losses shows the change of the weights and not the luck of the draw. In a record's answer, token t is the
one with the largest logit/T + g_t, where T is the temperature and g_t has a standard Gumbel number for each word of the
vocabulary; such a token has the probabilities softmax(logits/T). The g_t are made from the record's own prompt, the
step and the number of the answer alone. So no other record enters a record's loss, and equal prompts have equal draws.
No generator of the process is used, and nothing is written.
"""

import hashlib
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from dpzero_theory import check
from dpzero_theory.optim.losses.evaluation import Losses, step_now


def reward_losses(
    reward: Callable[[Sequence[str], Any], Sequence[float] | Tensor],
    tokenizer: Any,
    *,
    tokens: int,
    temperature: float = 1.0,
    samples: int = 1,
) -> Losses:
    """Return the loss function 1 - (mean reward of the model's answers), which lies between 0 and 1.

    The batch must be a mapping with `input_ids` and `attention_mask` of prompts, filled up on the left
    (`tokenizer.padding_side = "left"`) to one length for all records; a collate function may add whatever the reward
    needs, such as the right answers. Each answer takes `tokens` forward passes with the keys and values of earlier
    tokens kept, and ends before the tokenizer's end-of-text token.

    Two such losses differ by at most 1, so that a record's central difference along a direction, with smoothing lambda,
    is at most 1/(2 lambda): with the clip sqrt(K)/(2 lambda) for K directions a step nothing is clipped (sqrt(K)/lambda
    for forward differences). lambda must be so large that answers change; 0.1 to 0.3 is usual where a direction's
    entries are about 1 in size.

    Args:
        reward: a function (answers, batch) -> a number from 0 (worst) to 1 (best) for each record, made of the record
            and its answer alone. `answers` is a list of texts, and `batch` the collated batch.
        tokenizer: a tokenizer of transformers; its `decode` and `eos_token_id` are used.
        tokens: the largest number of tokens of an answer, an integer >= 1.
        temperature: T >= 0, by which logits are divided; 0 takes the most likely token each time. Draws are seeded by a
            record's prompt, the step (`step_now`) and the answer's number: equal at all points of a step only.
        samples: how many answers are drawn for a record, an integer >= 1; it must be 1 where the temperature is 0.

    Returns:
        A function (module, batch) -> losses of shape (batch,), for causal language models of transformers.

    Raises:
        ValueError: an argument is outside its range. The function that is returned raises it for a batch that is filled
            up on the right, and for a reward that does not give one number from 0 to 1 for each record.
    """
    check.integer("tokens", tokens)
    check.real("temperature", temperature, at_least=0)
    check.integer("samples", samples)
    if temperature == 0 and samples > 1:
        raise ValueError(f"samples must be 1 where temperature is 0, since all answers are equal; got {samples}")

    def losses(module: nn.Module, batch: Any) -> Tensor:
        device = next(module.parameters()).device
        prompts, mask = batch["input_ids"].to(device), batch["attention_mask"].to(device)
        if not bool(mask[:, -1].all()):
            raise ValueError("losses must be given prompts filled up on the left; set tokenizer.padding_side = 'left'")
        total = torch.zeros(len(prompts), dtype=torch.float64)
        for sample in range(samples):
            noise = _gumbel(prompts, mask, step_now(), sample) if temperature else None
            answers = _answers(module, prompts, mask, tokens, temperature, noise)
            texts = [_text_before_end(tokenizer, answer) for answer in answers.tolist()]
            total += _rewards(reward(texts, batch), len(prompts))
        return 1 - total / samples

    return losses


def _rewards(given: Any, count: int) -> Tensor:
    try:
        values = torch.as_tensor(given, dtype=torch.float64).cpu()
    except (TypeError, ValueError, RuntimeError):
        raise ValueError(f"reward must return one number for each of {count} records; got {given!r:.60}") from None
    if values.shape != (count,):
        raise ValueError(f"reward must return one number for each of {count} records; got shape {tuple(values.shape)}")
    wrong = values[~((values >= 0) & (values <= 1))]  # NaN is among them, as it compares as False.
    if len(wrong):
        raise ValueError(f"reward must return numbers from 0 to 1; got {float(wrong[0])}")
    return values


def _gumbel(prompts: Tensor, mask: Tensor, step: int, sample: int) -> Callable[[int], Tensor]:
    """Return a function (size of the vocabulary) -> standard Gumbel numbers for the next token of each answer.

    Each call draws new numbers, float64 of shape (batch, vocabulary). A record's numbers depend only on the tokens of
    its prompt (`mask` is 0 at padding), on the number of the run's step, on `sample`, the number of the answer that is
    drawn for each record, and on how many calls came before.
    """
    generators = []
    for prompt, real in zip(prompts.tolist(), mask.tolist(), strict=True):
        own = [token for token, kept in zip(prompt, real, strict=True) if kept]
        digest = hashlib.blake2b(f"{step} {sample} {own}".encode(), digest_size=16).digest()
        # Torch's generator on a CPU uses 32 bits of a seed, so that two of 10^5 records would draw the same numbers.
        generators.append(np.random.Generator(np.random.Philox(key=int.from_bytes(digest, "little"))))

    def draw(words: int) -> Tensor:
        uniform = torch.from_numpy(np.stack([one.random(words) for one in generators]))
        return -torch.log(-torch.log(uniform.clamp_min(torch.finfo(torch.float64).tiny)))

    return draw


def _answers(
    module: nn.Module,
    prompts: Tensor,
    mask: Tensor,
    tokens: int,
    temperature: float,
    noise: Callable[[int], Tensor] | None,
) -> Tensor:
    # The tokens of the answers, shape (batch, tokens), for prompts of shape (batch, length), of which `mask` is 0 at
    # padding. `noise`, a function of the vocabulary's size, gives what is added to logits/temperature for the next
    # token of each answer, shape (batch, vocabulary); with None the most likely token is taken.
    positions = (mask.cumsum(1) - 1).clamp_min(0)
    ids, past, drawn = prompts, None, []
    for _ in range(tokens):
        result = module(
            input_ids=ids, attention_mask=mask, position_ids=positions, past_key_values=past, use_cache=True
        )
        logits, past = result.logits[:, -1].double(), result.past_key_values
        if noise is not None:
            logits = logits / temperature + noise(logits.shape[1]).to(logits.device)
        drawn.append(logits.argmax(1))
        ids, positions = drawn[-1][:, None], positions[:, -1:] + 1
        mask = torch.cat([mask, mask.new_ones(len(mask), 1)], 1)
    return torch.stack(drawn, 1)


def _text_before_end(tokenizer: Any, answer: list[int]) -> str:
    end = tokenizer.eos_token_id
    kept = answer[: answer.index(end)] if end in answer else answer
    return str(tokenizer.decode(kept, skip_special_tokens=True))
