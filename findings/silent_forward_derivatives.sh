#!/usr/bin/env bash
# Version: torch 2.13.0 (torch.ao.quantization)
# Source: https://docs.pytorch.org/docs/stable/generated/torch.ao.nn.quantized.dynamic.Linear.html and
#   https://docs.pytorch.org/docs/stable/notes/autograd.html (derivatives of operations without a formula)
# Behaviour: a layer that quantize_dynamic made has no forward derivative, and does not say so: it drops the tangent. Fused attention, in the same
#   model, refuses with an error that names the kernel. Where a tangent has another way around the layer, what is left is the rest.
# Output: the derivative along a random direction is 0 in every entry where differences reach 2. With a residual connection it is the direction
#   itself, off by 0.51 of its length; scaled_dot_product_attention raises NotImplementedError.
# Matters: a step that releases derivatives in place of two-point differences releases noise alone, or learns from adapters through skip
#   connections only. Its losses, clips and epsilon look healthy. Compare one derivative with a difference of the same losses before a run.
# Guessed: the first run was a survey, with only the question written down, and refusals expected; seen: 0, in silence.
set -euo pipefail
work=$(mktemp -d); trap 'rm -rf "$work"' EXIT; cd "$work"
"${PYTHON:-python3}" -m pip install -q --no-compile --target lib torch==2.13.0
PYTHONPATH=lib "${PYTHON:-python3}" -W ignore - <<'PY'
import torch
from torch import nn
from torch.nn.functional import scaled_dot_product_attention

torch.manual_seed(0)
layer = torch.ao.quantization.quantize_dynamic(nn.Sequential(nn.Linear(128, 128)), {nn.Linear})
x, z = torch.randn(5, 128), torch.randn(5, 128)


def both(f):
    _, found = torch.func.jvp(f, (x,), (z,))
    return found, (f(x + 0.03 * z) - f(x - 0.03 * z)) / 0.06


found, difference = both(layer)
print("alone:", found.abs().max().item(), "differences:", difference.abs().max().item())
assert not found.any()
assert difference.abs().max() > 1
found, difference = both(lambda at: at + layer(at))
gap = ((found - difference).norm() / difference.norm()).item()
print("residual: the direction itself", torch.equal(found, z), "off by", gap)
assert torch.equal(found, z)
assert gap > 0.3
try:
    torch.func.jvp(lambda at: scaled_dot_product_attention(at[None, None], at[None, None], at[None, None]), (x,), (z,))
except NotImplementedError as error:
    print("attention:", str(error)[:80])
else:
    raise SystemExit("attention has a forward derivative")
PY
