"""A causal language model on private text, without padding.  python examples/causal_lm.py [MODEL]"""

import sys

import torch
from reviews import reviews
from transformers import AutoModelForCausalLM, AutoTokenizer

from dpzero_theory.optim import losses_for, make_private_with_epsilon

name = sys.argv[1] if sys.argv[1:] else "facebook/opt-125m"
tokenizer = AutoTokenizer.from_pretrained(name)
model = AutoModelForCausalLM.from_pretrained(name)
data = [torch.tensor(tokenizer(text).input_ids[:32]) for text in reviews(100)["text"]]


def alone(records):
    """Return the batch of a list with one record (micro_batch=1). Nothing is padded, so the last bits of a record's
    loss cannot depend on other records."""
    return {"input_ids": torch.stack(records), "labels": torch.stack(records)}


run = make_private_with_epsilon(
    model, losses_for(model), data, collate=alone, micro_batch=1, folder="out/causal",
    target_epsilon=4, target_delta=1e-5, relation="add-remove", sampling="poisson", expected_batch=25,
    steps=10, clip=1.0, step_size=1e-5, smoothing=1e-3,
)  # fmt: skip
run.run()
print(f"epsilon {run.get_epsilon(1e-5):.3f}")

# It prints:
# epsilon 4.000
