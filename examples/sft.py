"""Private supervised fine-tuning in the shape of TRL's trainer.  python examples/sft.py MODEL"""

import sys

from datasets import Dataset
from reviews import reviews
from transformers import AutoModelForCausalLM, AutoTokenizer
from trl import SFTConfig

from dpzero_theory.optim import DPZeroSFTTrainer

tokenizer = AutoTokenizer.from_pretrained(sys.argv[1])
model = AutoModelForCausalLM.from_pretrained(sys.argv[1])
model.requires_grad_(False)
[part for name, part in model.named_modules() if name.endswith("norm")][-1].requires_grad_(True)  # the last one
made = reviews(200)
rows = [
    {"prompt": text + ". It was", "completion": " great" if liked else " terrible"}
    for text, liked in zip(made["text"], made["label"], strict=True)
]
trainer = DPZeroSFTTrainer(
    model, SFTConfig("out/sft", max_length=64, report_to="none", save_strategy="no", bf16=False),
    train_dataset=Dataset.from_list(rows), processing_class=tokenizer,
    private={
        "target_epsilon": 2, "target_delta": 1e-5, "relation": "add-remove", "sampling": "poisson", "steps": 20,
        "expected_batch": 50, "clip": 4.0, "step_size": 1.0, "smoothing": 1e-2, "directions_per_step": 4,
        "difference": "forward",
    },
)  # fmt: skip
trainer.train()
trainer.create_model_card()
print(f"epsilon {trainer.run.get_epsilon(1e-5):.3f} for {trainer.run.weights.d} weights")

# It prints:
# {'epsilon': '1.431', 'step_size': '1', 'released': '0.2773', 'epoch': '2.5'}
# {'epsilon': '2', 'step_size': '1', 'released': '0.3662', 'epoch': '5'}
# epsilon 2.000 for 576 weights
