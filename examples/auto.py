"""All settings of a private run, chosen from public records.  python examples/auto.py [MODEL]"""

import sys

from datasets import Dataset
from reviews import minilm_folder, reviews
from transformers import AutoModelForSequenceClassification, AutoTokenizer, DataCollatorWithPadding

from dpzero_theory.optim import losses_for, make_private_with_epsilon

name = sys.argv[1] if sys.argv[1:] else str(minilm_folder())
tokenizer = AutoTokenizer.from_pretrained(name)
model = AutoModelForSequenceClassification.from_pretrained(name, num_labels=2)


def records(count, seed):
    data = Dataset.from_dict(reviews(count, seed)).map(lambda row: tokenizer(row["text"]), batched=True)
    return data.remove_columns("text")


private, collate = records(1_000, seed=0), DataCollatorWithPadding(tokenizer)
known = set(map(tuple, private["input_ids"]))
public = records(200, seed=1).filter(lambda row: tuple(row["input_ids"]) not in known)
run = make_private_with_epsilon(
    model, losses_for(model), private, collate=collate, folder="out/chosen", settings="auto", public_data=public,
    target_epsilon=2, target_delta=1e-5,
)  # fmt: skip
run.run()
print(f"{run.plan.steps} steps, epsilon {run.get_epsilon(1e-5):.3f}")

# It prints:
# 1000 steps, epsilon 2.000
