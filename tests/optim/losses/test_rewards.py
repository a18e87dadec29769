from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from dpzero_theory.optim.losses.evaluation import _STEP, step_now
from dpzero_theory.optim.losses.rewards import _gumbel, reward_losses
from dpzero_theory.optim.private import make_private_with_epsilon

transformers = pytest.importorskip("transformers")
WORDS, END, LENGTH = 12, 11, 6


class Words:
    """A tokenizer whose tokens are numbers; the last of them ends a text."""

    eos_token_id = END

    @staticmethod
    def decode(tokens: list[int], **_: Any) -> str:
        return " ".join(map(str, tokens))


def model(seed: int = 0) -> nn.Module:
    torch.manual_seed(seed)
    config = transformers.LlamaConfig(
        vocab_size=WORDS, hidden_size=16, intermediate_size=16, num_hidden_layers=2, num_attention_heads=2,
        attn_implementation="eager", initializer_range=0.5,
    )  # fmt: skip
    module: nn.Module = transformers.LlamaForCausalLM(config).eval()
    return module


def records(lengths: list[int], seed: int = 0) -> list[dict[str, Tensor]]:
    """Prompts of random words, filled up on the left with zeros."""
    rng, found = np.random.default_rng(seed), []
    for length in lengths:
        ids, mask = np.zeros(LENGTH, np.int64), np.zeros(LENGTH, np.int64)
        ids[-length:], mask[-length:] = rng.integers(1, END, length), 1
        found.append({"input_ids": torch.from_numpy(ids), "attention_mask": torch.from_numpy(mask)})
    return found


def batch(rows: list[dict[str, Tensor]]) -> dict[str, Tensor]:
    return {key: torch.stack([row[key] for row in rows]) for key in rows[0]}


def share_of_small(answers: Any, _: Any) -> list[float]:
    """The share of an answer's words below 6."""
    return [float(np.mean([int(word) < 6 for word in answer.split()])) if answer else 0.0 for answer in answers]


def test_a_record_has_its_own_answer_beside_whatever_others() -> None:
    module, losses = model(), reward_losses(share_of_small, Words(), tokens=5, samples=3)
    rows = records([3, 6, 4, 2])
    with torch.no_grad():
        together = losses(module, batch(rows))
        alone = torch.cat([losses(module, batch([row])) for row in rows])
        turned = losses(module, batch(rows[::-1])).flip(0)
    assert torch.equal(together, alone)
    assert torch.equal(together, turned)
    assert len(set(together.tolist())) > 1
    assert ((together >= 0) & (together <= 1)).all()


def test_draws_change_with_the_step_and_not_within_one() -> None:
    module, losses, rows = model(), reward_losses(share_of_small, Words(), tokens=5), batch(records([3, 6, 4, 2, 5]))
    with torch.no_grad():
        found = []
        for step in (0, 1, 1):
            token = _STEP.set(step)  # as `BatchSum.differences` does
            assert step_now() == step
            found.append(losses(module, rows))
            _STEP.reset(token)
    assert not torch.equal(found[0], found[1])
    assert torch.equal(found[1], found[2])


def test_the_first_word_has_the_probabilities_of_the_model_at_the_temperature() -> None:
    """1,000 samples of one prompt; the largest deviation allowed is 6 standard deviations of a count."""
    module, row, seen = model(3), batch(records([4])), []

    def note(answers: Any, _: Any) -> list[float]:
        seen.append(answers[0])
        return [1.0]

    with torch.no_grad():
        reward_losses(note, Words(), tokens=1, temperature=0.7, samples=1000)(module, row)
        logits = module(**row, position_ids=torch.tensor([[0, 0, 0, 1, 2, 3]])).logits[0, -1].double()
    expected = torch.softmax(logits / 0.7, 0).numpy()
    counts = np.array([sum(answer == (str(word) if word != END else "") for answer in seen) for word in range(WORDS)])
    assert expected.max() < 0.9
    assert (np.abs(counts - 1000 * expected) <= 6 * np.sqrt(1000 * expected * (1 - expected)) + 1).all()


def test_the_most_likely_answer_is_that_of_transformers() -> None:
    module, rows, seen = model(5), batch(records([3, 6, 4])), []

    def note(answers: Any, _: Any) -> list[float]:
        seen.extend(answers)
        return [0.0] * len(answers)

    with torch.no_grad():
        reward_losses(note, Words(), tokens=4, temperature=0)(module, rows)
        answers = module.generate(  # type: ignore[operator]
            **rows, max_new_tokens=4, do_sample=False, pad_token_id=0, eos_token_id=END
        )[:, LENGTH:]
    expected = [row[: row.index(END)] if END in row else row for row in answers.tolist()]
    assert seen == [" ".join(map(str, row)) for row in expected]


def test_a_private_run_on_a_reward_costs_no_more_than_its_target(tmp_path: Path) -> None:
    losses, rows = reward_losses(share_of_small, Words(), tokens=2), records([4] * 16)
    run = make_private_with_epsilon(
        model(), losses, rows, folder=tmp_path / "run", target_epsilon=8, target_delta=1e-3, relation="replace-one",
        sampling="full", expected_batch=16, steps=2, clip=1 / 0.6, step_size=1e-3, smoothing=0.3, micro_batch=16,
    )  # fmt: skip
    run.run()
    assert run.get_epsilon(1e-3) <= 8


def rewarded(value: Any) -> Any:
    return lambda: reward_losses(lambda *_: value, Words(), tokens=1)(model(), batch(records([3, 4])))


def right() -> Any:
    given = {key: value.flip(1) for key, value in batch(records([3, 4])).items()}
    return reward_losses(share_of_small, Words(), tokens=1)(model(), given)


@pytest.mark.parametrize(
    ("work", "message"),
    [
        (lambda: reward_losses(share_of_small, Words(), tokens=0), "tokens must be"),
        (lambda: reward_losses(share_of_small, Words(), tokens=2, temperature=float("nan")), "temperature must be"),
        (lambda: reward_losses(share_of_small, Words(), tokens=2, samples=2, temperature=0), "samples must be 1"),
        (rewarded([2.0, 2.0]), "numbers from 0 to 1; got 2.0"),
        (rewarded([float("nan")] * 2), "numbers from 0 to 1; got nan"),
        (rewarded([0.5]), "one number for each of 2 records"),
        (rewarded(None), "one number for each of 2 records; got None"),
        (right, "filled up on the left"),
    ],
)
def test_what_gives_no_reward_is_refused(work: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        work()


def test_two_of_many_records_do_not_draw_the_same_numbers() -> None:
    """With seeds of 32 bits two of 200,000 prompts would share their numbers with probability 0.99."""
    prompts = torch.arange(200_000)[:, None]
    first = _gumbel(prompts, torch.ones_like(prompts), 0, 0)(1)
    assert len(first.unique()) == len(prompts)
