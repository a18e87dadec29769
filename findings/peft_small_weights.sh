#!/usr/bin/env bash
# Version: peft 0.21.2 with torch 2.13.0
# Source: https://github.com/huggingface/peft/issues/3004 (open; weights of both signs) and https://github.com/huggingface/peft/pull/3013
# Behaviour: add_weighted_adapter(combination_type="linear") scales both factors of adapter i by the square root of its weight and adds the
#   factors, so that the product has cross terms of size sqrt(w_i w_j). "cat" is the sum that one expects.
# Output: adding a second adapter with weight w = 1e-2, 1e-4, 1e-6 moves the update by 14%, 1.4% and 0.14% of its size, where the sum moves
#   by 0.9%, 0.009% and 0.00009%; w and -w move it to unrelated sides (cosine -0.01, of a line -1).
# Matters: shifting an adapter by plus and minus lambda times a direction in this way evaluates points that are sqrt(lambda) away and not
#   on one line, so that the two-point difference is of another function. Combine by "cat", or shift the factors yourself.
# Guessed: the mean of two adapters is not the mean of their updates; seen: so, and a small weight acts as its square root.
set -euo pipefail
work=$(mktemp -d); trap 'rm -rf "$work"' EXIT; cd "$work"
"${PYTHON:-python3}" -m pip install -q --no-compile --target lib peft==0.21.2 transformers==5.23.0 torch==2.13.0 numpy==2.4.6
HF_HUB_OFFLINE=1 PYTHONPATH=lib "${PYTHON:-python3}" -W ignore - <<'PY'
import torch
from peft import LoraConfig, get_peft_model

torch.manual_seed(0)
made = LoraConfig(r=4, target_modules=["0"], init_lora_weights=False)
model = get_peft_model(torch.nn.Sequential(torch.nn.Linear(32, 32, bias=False)), made, adapter_name="one")
model.add_adapter("two", made)
layer = model.base_model.model[0]
update = {name: layer.get_delta_weight(name).detach() for name in ("one", "two")}


def moved(weight: float, kind: str) -> torch.Tensor:
    name = f"{kind}{weight}".replace(".", "_")
    model.add_weighted_adapter(["one", "two"], [1.0, weight], name, combination_type=kind)
    return (layer.get_delta_weight(name).detach() - update["one"]) / update["one"].norm()


for weight in (1e-2, 1e-4, 1e-6):
    wanted = weight * (update["two"].norm() / update["one"].norm()).item()
    linear, summed = moved(weight, "linear").norm().item(), moved(weight, "cat").norm().item()
    print("weight", weight, "the sum moves", wanted, "linear", linear, "cat", summed)
    assert linear > 0.5 * weight**0.5 > 4 * wanted
    assert weight < 1e-5 or abs(summed / wanted - 1) < 0.01
there, back = moved(1e-3, "linear"), moved(-1e-3, "linear")
cosine = (there * back).sum() / there.norm() / back.norm()
print("cosine between the two sides (-1 for a line):", cosine.item())
assert abs(cosine) < 0.3
PY
