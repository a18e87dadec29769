"""Private adapters of peft on a frozen model.  python examples/lora.py [MODEL]"""

import sys

from peft import LoraConfig, get_peft_model
from reviews import minilm_folder, reviews
from transformers import AutoModelForSequenceClassification, AutoTokenizer, default_data_collator

from dpzero_theory.optim import losses_for, make_private_with_epsilon

name = sys.argv[1] if sys.argv[1:] else str(minilm_folder())
tokenizer = AutoTokenizer.from_pretrained(name)
base = AutoModelForSequenceClassification.from_pretrained(name, num_labels=2)
model = get_peft_model(base, LoraConfig(task_type="SEQ_CLS", r=4, target_modules=["query", "value"]))
records = reviews(200)
ids = tokenizer(records["text"], padding="max_length", max_length=16, truncation=True)
data = [{"labels": y, **{key: ids[key][i] for key in ids}} for i, y in enumerate(records["label"])]
run = make_private_with_epsilon(
    model, losses_for(model), data, collate=default_data_collator, folder="out/lora",
    target_epsilon=2, target_delta=1e-5, relation="add-remove", sampling="poisson", expected_batch=50,
    steps=40, clip=1.0, step_size=1e-2, smoothing=1e-2,
)  # fmt: skip
run.run()
model.save_pretrained("out/lora-adapters")
print(f"epsilon {run.get_epsilon(1e-5):.3f} for {run.weights.d} adapter weights")

# It prints:
# epsilon 2.000 for 37634 adapter weights
