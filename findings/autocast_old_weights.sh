#!/usr/bin/env bash
# Version: torch 2.13.0
# Source: https://github.com/pytorch/pytorch/pull/32140 (autocasting keeps the casts of leaf tensors until its region ends) and
#   https://github.com/X-GenGroup/Flow-Factory/pull/186 (a training run that stood still because of it).
# Behaviour: within one region of torch.autocast the bfloat16 copy of a float32 parameter is made once. Changing the parameter in place,
#   also through .data and also under no_grad, leaves that copy as it was. Parameters that need no gradient are not kept.
# Output: two forward passes with all weights moved by 1 in between differ by exactly 0.0 (frozen parameters, and a region for each
#   pass: by more than 1).
# Matters: a two-point difference that is taken inside one region is 0 for every record, so the run releases noise and learns nothing;
#   its losses look healthy. Open the region anew for each point, or pass cache_enabled=False.
# Guessed: the second pass sees the moved weights, as no_grad is on; seen: it does not.
set -euo pipefail
work=$(mktemp -d); trap 'rm -rf "$work"' EXIT; cd "$work"
"${PYTHON:-python3}" -m pip install -q --no-compile --target lib torch==2.13.0 numpy==2.4.6
PYTHONPATH=lib "${PYTHON:-python3}" - <<'PY'
import torch

torch.manual_seed(0)
x = torch.randn(4, 8)


def two_points(trained: bool, **options: bool) -> float:
    layer = torch.nn.Linear(8, 1).requires_grad_(trained)
    with torch.no_grad(), torch.autocast("cpu", dtype=torch.bfloat16, **options):
        before = layer(x).clone()
        layer.weight += 1
        return (layer(x) - before).abs().max().item()


found = two_points(True), two_points(False), two_points(True, cache_enabled=False)
print("trained, frozen, trained without the cache:", *found)
assert found[0] == 0.0 and found[1] > 1 and found[2] > 1, found
PY
