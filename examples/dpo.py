"""Private preference tuning (DPO) in the shape of TRL's trainer; minutes of one core.  python examples/dpo.py MODEL"""

import sys
import time

from datasets import Dataset
from reviews import reviews
from transformers import AutoModelForCausalLM, AutoTokenizer
from trl import DPOConfig

from dpzero_theory.optim import DPZeroDPOTrainer

ANSWERS = {1: (" great", " terrible"), 0: (" terrible", " great")}  # the chosen and the rejected answer


def pairs(count, seed):
    made = reviews(count, seed)
    return [
        dict(zip(("prompt", "chosen", "rejected"), (text + ". It was", *ANSWERS[liked]), strict=True))
        for text, liked in zip(made["text"], made["label"], strict=True)
    ]


private = pairs(200, seed=0)
public = [pair for pair in pairs(60, seed=1) if pair not in private]
trainer = DPZeroDPOTrainer(
    AutoModelForCausalLM.from_pretrained(sys.argv[1]),
    DPOConfig(
        "out/dpo", max_length=64, beta=0.5, report_to="none", save_strategy="no", logging_strategy="no", bf16=False
    ),
    train_dataset=Dataset.from_list(private), eval_dataset=Dataset.from_list(public),
    processing_class=AutoTokenizer.from_pretrained(sys.argv[1]),
    private={
        "settings": "auto", "target_epsilon": 2, "target_delta": 1e-5, "steps": 60, "directions_per_step": 4,
    },
)  # fmt: skip
before, began = trainer.evaluate(), time.monotonic()
trainer.train()
minutes, after = (time.monotonic() - began) / 60, trainer.evaluate()
print(f"loss {before['eval_loss']:.3f} before, {after['eval_loss']:.3f} after {minutes:.1f} minutes")
print(f"epsilon {trainer.run.get_epsilon(1e-5):.3f} for {trainer.run.weights.d} weights")

# It prints:
# loss 0.693 before, 0.157 after 2.7 minutes
# epsilon 2.000 for 576 weights
