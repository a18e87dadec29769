"""The 0-1 error itself as the loss.  python examples/error_as_loss.py [MODEL]"""

import sys

from reviews import minilm_folder, reviews
from torch.nn import LayerNorm
from transformers import AutoModelForSequenceClassification, AutoTokenizer, default_data_collator

from dpzero_theory.optim import losses_for, make_private_with_epsilon

name = sys.argv[1] if sys.argv[1:] else str(minilm_folder())
tokenizer = AutoTokenizer.from_pretrained(name)
model = AutoModelForSequenceClassification.from_pretrained(name, num_labels=2)
model.requires_grad_(False)
[part for part in model.modules() if isinstance(part, LayerNorm)][-1].requires_grad_(True)  # the last one alone
records = reviews(200)
ids = tokenizer(records["text"], padding="max_length", max_length=16, truncation=True)
data = [{"labels": y, **{key: ids[key][i] for key in ids}} for i, y in enumerate(records["label"])]
run = make_private_with_epsilon(
    model, losses_for(model, "error"), data, collate=default_data_collator, folder="out/error",
    target_epsilon=4, target_delta=1e-5, relation="add-remove", sampling="poisson", expected_batch=100,
    steps=40, clip=5.0, step_size=1e-2, smoothing=0.2,  # a loss in steps needs a smoothing that changes answers
)  # fmt: skip
run.run()
print(f"epsilon {run.get_epsilon(1e-5):.3f}")

# It prints:
# epsilon 4.000
