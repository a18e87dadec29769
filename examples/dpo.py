"""Private preference tuning (DPO) in the shape of TRL's trainer.  python examples/dpo.py MODEL"""

import sys

from datasets import Dataset
from reviews import reviews
from transformers import AutoModelForCausalLM, AutoTokenizer
from trl import DPOConfig

from dpzero_theory.optim import DPZeroDPOTrainer

tokenizer = AutoTokenizer.from_pretrained(sys.argv[1])
model = AutoModelForCausalLM.from_pretrained(sys.argv[1])
model.requires_grad_(False)
[part for name, part in model.named_modules() if name.endswith("norm")][-1].requires_grad_(True)  # the last one
answers = {True: (" great", " terrible"), False: (" terrible", " great")}  # the chosen and the rejected answer
made = reviews(100)
rows = [
    dict(zip(("prompt", "chosen", "rejected"), (text + ". It was", *answers[bool(liked)]), strict=True))
    for text, liked in zip(made["text"], made["label"], strict=True)
]
trainer = DPZeroDPOTrainer(
    model, DPOConfig("out/dpo", max_length=64, beta=0.5, report_to="none", save_strategy="no", bf16=False),
    train_dataset=Dataset.from_list(rows), processing_class=tokenizer,
    private={
        "target_epsilon": 2, "target_delta": 1e-5, "relation": "add-remove", "sampling": "poisson", "steps": 20,
        "expected_batch": 25, "clip": 2.0, "step_size": 1.0, "smoothing": 1e-2, "directions_per_step": 4,
        "difference": "forward",
    },
)  # fmt: skip
trainer.train()
trainer.create_model_card()
print(f"epsilon {trainer.run.get_epsilon(1e-5):.3f} for {trainer.run.weights.d} weights")

# It prints:
# {'epsilon': '1.431', 'step_size': '1', 'released': '0.2093', 'epoch': '2.5'}
# {'epsilon': '2', 'step_size': '1', 'released': '0.3481', 'epoch': '5'}
# epsilon 2.000 for 576 weights
