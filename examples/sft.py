"""Private supervised fine-tuning in the shape of TRL's trainer; minutes of one core.  python examples/sft.py MODEL"""

import sys
import time

from datasets import Dataset
from reviews import reviews
from transformers import AutoModelForCausalLM, AutoTokenizer
from trl import SFTConfig

from dpzero_theory.optim import DPZeroSFTTrainer


def prompts(count, seed):
    made = reviews(count, seed)
    return [
        {"prompt": text + ". It was", "completion": " great" if liked else " terrible"}
        for text, liked in zip(made["text"], made["label"], strict=True)
    ]


private = prompts(400, seed=0)
public = [row for row in prompts(100, seed=1) if row not in private]
trainer = DPZeroSFTTrainer(
    AutoModelForCausalLM.from_pretrained(sys.argv[1]),
    SFTConfig("out/sft", max_length=64, report_to="none", save_strategy="no", logging_strategy="no", bf16=False),
    train_dataset=Dataset.from_list(private), eval_dataset=Dataset.from_list(public),
    processing_class=AutoTokenizer.from_pretrained(sys.argv[1]),
    private={
        "settings": "auto", "target_epsilon": 2, "target_delta": 1e-5, "steps": 60, "directions_per_step": 4,
    },
)  # fmt: skip
before, began = trainer.evaluate()["eval_loss"], time.monotonic()
trainer.train()
minutes = (time.monotonic() - began) / 60
print(f"loss {before:.3f} before, {trainer.evaluate()['eval_loss']:.3f} after {minutes:.1f} minutes")
print(f"epsilon {trainer.run.get_epsilon(1e-5):.3f} for {trainer.run.weights.d} weights")

# It prints:
# loss 12.062 before, 4.498 after 2.6 minutes
# epsilon 2.000 for 576 weights
