"""A push to the hub: the true card, and not the run's secret key.  python examples/push.py REPOSITORY [MODEL]"""

import sys

from datasets import Dataset
from reviews import minilm_folder, reviews
from transformers import AutoModelForSequenceClassification, AutoTokenizer, TrainingArguments

from dpzero_theory.optim import DPZeroTrainer

name = sys.argv[2] if sys.argv[2:] else str(minilm_folder())
tokenizer = AutoTokenizer.from_pretrained(name)
model = AutoModelForSequenceClassification.from_pretrained(name, num_labels=2)
data = Dataset.from_dict(reviews(100)).map(lambda row: tokenizer(row["text"]))
private = {
    "target_epsilon": 2, "target_delta": 1e-5, "relation": "add-remove", "sampling": "poisson", "expected_batch": 25,
    "steps": 10, "clip": 1.0, "step_size": 1e-4, "smoothing": 1e-3,
}  # fmt: skip
arguments = TrainingArguments("out/push", push_to_hub=True, hub_model_id=sys.argv[1], hub_strategy="end")
trainer = DPZeroTrainer(model, arguments, train_dataset=data, processing_class=tokenizer, private=private)
trainer.train()
trainer.push_to_hub(license="apache-2.0")
