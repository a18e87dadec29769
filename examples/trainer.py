"""A private run inside a Hugging Face Trainer.  python examples/trainer.py [MODEL]"""

import sys

from datasets import Dataset
from reviews import reviews
from transformers import AutoModelForSequenceClassification, AutoTokenizer, TrainingArguments

from dpzero_theory.curvature.encoder import minilm_folder
from dpzero_theory.optim.trainers.trainer import DPZeroTrainer

name = sys.argv[1] if sys.argv[1:] else str(minilm_folder())
tokenizer = AutoTokenizer.from_pretrained(name)
model = AutoModelForSequenceClassification.from_pretrained(name, num_labels=2)
train, test = (Dataset.from_dict(reviews(n, n)).map(lambda row: tokenizer(row["text"])) for n in (200, 60))
test = test.filter(lambda row: row["text"] not in train["text"])  # some are made alike
private = {
    "target_epsilon": 2, "target_delta": 1e-5, "relation": "add-remove", "sampling": "poisson", "expected_batch": 50,
    "steps": 40, "clip": 1.0, "step_size": 1e-4, "smoothing": 1e-3, "directions_per_step": 4,
}  # fmt: skip
arguments = TrainingArguments("out/trainer", eval_strategy="steps", eval_steps=20, logging_steps=20, report_to="none")
trainer = DPZeroTrainer(
    model, arguments, train_dataset=train, eval_dataset=test, processing_class=tokenizer, private=private
)
trainer.train()
trainer.create_model_card()
print(f"epsilon {trainer.run.get_epsilon(1e-5):.3f} at delta 1e-5; the statement is in out/trainer/README.md")
