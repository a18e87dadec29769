"""Privacy for users who have several texts each.  python examples/users.py [MODEL]"""

import sys

from reviews import minilm_folder, reviews
from torch.nn import LayerNorm
from transformers import AutoModelForSequenceClassification, AutoTokenizer, DataCollatorWithPadding

from dpzero_theory.optim import by_user, losses_for, make_private_with_epsilon

name = sys.argv[1] if sys.argv[1:] else str(minilm_folder())
tokenizer = AutoTokenizer.from_pretrained(name)
model = AutoModelForSequenceClassification.from_pretrained(name, num_labels=2)
model.requires_grad_(False)
[part for part in model.modules() if isinstance(part, LayerNorm)][-1].requires_grad_(True)  # the last one alone
records = reviews(200)
ids = tokenizer(records["text"], max_length=16, truncation=True)
texts = [{"labels": y, "writer": i % 40, **{key: ids[key][i] for key in ids}} for i, y in enumerate(records["label"])]
users = by_user(texts, "writer", at_most=2)  # 40 users of 5 texts, of which each step evaluates 2
run = make_private_with_epsilon(
    model, losses_for(model), users, collate=DataCollatorWithPadding(tokenizer), folder="out/users",
    target_epsilon=4, target_delta=1e-3, relation="add-remove", sampling="poisson", expected_batch=20,
    steps=20, clip=1.0, step_size=1e-2, smoothing=1e-2,
)  # fmt: skip
run.run()
print(f"{len(users)} users, epsilon {run.get_epsilon(1e-3):.3f} for all texts of one")

# It prints:
# 40 users, epsilon 4.000 for all texts of one
