#!/usr/bin/env bash
# Version: torch 2.13.0, numpy 2.4.6
# Source: https://github.com/pytorch/pytorch/issues/41245 (open since 2020; pull request 187558, which would change it, was closed)
# Behaviour: torch.sign and torch.sgn of NaN are 0, where numpy.sign says NaN. clamp and hardtanh let NaN through.
# Output: 0 for scalars, long tensors and every floating type; NaN from torch.clamp and from numpy.
# Matters: a private step that releases signs of differences counts a record with a NaN loss as an abstention and says nothing, and one
#   that clips lets the same record turn the whole sum, and so all weights, into NaN: a sign that somebody sees. Map NaN to a fixed number
#   before either.
# Guessed: NaN, as with numpy; seen: 0.
set -euo pipefail
work=$(mktemp -d); trap 'rm -rf "$work"' EXIT; cd "$work"
"${PYTHON:-python3}" -m pip install -q --no-compile --target lib torch==2.13.0 numpy==2.4.6
PYTHONPATH=lib "${PYTHON:-python3}" - <<'PY'
import numpy as np
import torch

for kind in (torch.float16, torch.bfloat16, torch.float32, torch.float64):
    for shape in ((), (1,), (1000,)):
        x = torch.full(shape, float("nan"), dtype=kind)
        assert (torch.sign(x) == 0).all() and (torch.sgn(x) == 0).all(), (kind, shape)
        assert torch.clamp(x, -1, 1).isnan().all() and torch.nn.functional.hardtanh(x).isnan().all()
print("torch.sign:", torch.sign(torch.tensor(float("nan"))), "numpy.sign:", np.sign(np.nan))
assert np.isnan(np.sign(np.nan))
PY
