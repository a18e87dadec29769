"""Clip, step size, lambda and K from public records, then a private run.  python examples/starting.py [MODEL]"""

import sys

from datasets import Dataset
from reviews import minilm_folder, reviews
from transformers import AutoModelForSequenceClassification, AutoTokenizer, DataCollatorWithPadding

from dpzero_theory.optim import losses_for, make_private_with_epsilon, starting_values

name = sys.argv[1] if sys.argv[1:] else str(minilm_folder())
tokenizer = AutoTokenizer.from_pretrained(name)
model = AutoModelForSequenceClassification.from_pretrained(name, num_labels=2)


def records(count, seed):
    data = Dataset.from_dict(reviews(count, seed)).map(lambda row: tokenizer(row["text"]), batched=True)
    return data.remove_columns("text")


private, collate = records(100, seed=0), DataCollatorWithPadding(tokenizer)
known = set(map(tuple, private["input_ids"]))
public = records(200, seed=1).filter(lambda row: tuple(row["input_ids"]) not in known)
start = starting_values(
    model, losses_for(model), public, private_data=private, collate=collate, n=len(private),
    evaluations=64, target_epsilon=2, target_delta=1e-5, expected_batch=25, relation="add-remove", sampling="poisson",
)  # fmt: skip
print({name: start.target[name] for name in ("clip", "step_size", "smoothing", "directions_per_step")})
run = make_private_with_epsilon(model, losses_for(model), private, collate=collate, folder="out/start", **start.target)
run.run()
print(f"epsilon {run.get_epsilon(1e-5):.3f}")

# It prints:
# {'clip': 2.4824667242884737, 'step_size': 0.010369574355630767, 'smoothing': 0.001, 'directions_per_step': 1}
# epsilon 2.000
