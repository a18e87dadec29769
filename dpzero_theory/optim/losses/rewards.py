"""A loss function made from a reward for the answers that a language model generates. The reward needs no derivative.

The random numbers by which an answer is drawn depend only on the record's prompt, the training step and the number of
the answer. So all evaluations of a step use the same random numbers, and a difference of losses shows the change of the
weights. Two records with equal prompts have equal draws, and no record changes the draws of another one.
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
    """Return the loss function 1 - (mean reward of a record's generated answers), whose values lie in [0, 1].

    A batch must be a mapping with `input_ids` and `attention_mask` of the prompts, padded on the left
    (`tokenizer.padding_side = "left"`). A collate function may add what the reward needs, such as correct answers. An
    answer takes `tokens` forward passes with cached keys and values, and ends before the tokenizer's end-of-text token.

    With smoothing lambda, a record's central difference along one direction is at most 1/(2 lambda), and its forward
    difference at most 1/lambda. So for K directions a step the clip sqrt(K)/(2 lambda), or sqrt(K)/lambda for forward
    differences, cuts nothing. lambda must be large enough to change answers: 0.1 to 0.3 is usual for directions whose
    entries are about 1 in size.

    Args:
        reward: a function (answers, batch) -> one number in [0, 1] for each record, where 1 is best. `answers` is a
            list of strings, and `batch` the collated batch. A record's reward must depend on the record and its answer
            alone.
        tokenizer: a tokenizer of transformers; its `decode` and `eos_token_id` are used.
        tokens: the largest number of tokens of an answer, an integer >= 1.
        temperature: the number >= 0 by which logits are divided before a token is drawn from their softmax. At 0 the
            most likely token is taken.
        samples: how many answers are drawn for each record, an integer >= 1; it must be 1 if the temperature is 0.

    Returns:
        A function (module, batch) -> losses of shape (batch,), where `module` is a causal language model of
        transformers.

    Raises:
        ValueError: an argument is outside its range. The returned function raises ValueError for prompts that are
            padded on the right, and if `reward` does not return one number in [0, 1] for each record.
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
    # Returns a function (size of the vocabulary) -> standard Gumbel numbers, float64 of shape (batch, vocabulary), new
    # ones for each call, which draw the next token of each answer: the largest of logits/temperature + numbers has the
    # probabilities softmax(logits/temperature). A record's numbers depend on the tokens of its prompt (`mask` is 0 at
    # padding), the training step, `sample` (the number of the answer) and the earlier calls alone.
    generators = []
    for prompt, real in zip(prompts.tolist(), mask.tolist(), strict=True):
        own = [token for token, kept in zip(prompt, real, strict=True) if kept]
        digest = hashlib.blake2b(f"{step} {sample} {own}".encode(), digest_size=16).digest()
        # Torch's CPU generator uses 32 bits of a seed: among 10^5 records two would probably draw the same numbers.
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
    # Returns the tokens of the answers, shape (batch, tokens), to prompts of shape (batch, length); `mask` is 0 at
    # padding. noise(size of the vocabulary) returns numbers of shape (batch, vocabulary), which are added to
    # logits/temperature before the largest entry is taken as the next token. If `noise` is None, nothing is added.
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
