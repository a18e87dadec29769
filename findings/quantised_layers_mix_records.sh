#!/usr/bin/env bash
# Version: torch 2.13.0 (torch.ao.quantization)
# Source: https://docs.pytorch.org/docs/stable/generated/torch.ao.nn.quantized.dynamic.Linear.html and, for another library's choice,
#   https://docs.pytorch.org/ao/stable/index.html (scales for each row)
# Behaviour: quantize_dynamic gives a linear layer one scale for the inputs of the whole batch, from their least and greatest entry. What a
#   record gets depends on the largest number of any record beside it.
# Output: beside a record of 100 times its size the first record's output moves by 0.85 (as large as the output itself); 8 bits alone move
#   it by 0.01.
# Matters: with such a base one record changes the losses of all others in its micro-batch, so that clipping each loss bounds nothing.
#   Evaluate records alone, or use kernels with a scale for each row.
# Guessed: a scale for each row; seen: one for the batch.
set -euo pipefail
work=$(mktemp -d); trap 'rm -rf "$work"' EXIT; cd "$work"
"${PYTHON:-python3}" -m pip install -q --no-compile --target lib torch==2.13.0 numpy==2.4.6
PYTHONPATH=lib "${PYTHON:-python3}" -W ignore - <<'PY'
import torch
from torch.ao.quantization import quantize_dynamic

torch.manual_seed(0)
dense = torch.nn.Sequential(torch.nn.Linear(16, 4))
small = quantize_dynamic(dense, {torch.nn.Linear})
record, large = torch.randn(1, 16), 100 * torch.randn(1, 16)
alone, beside = small(record), small(torch.cat([record, large]))[:1]
by_bits, by_other = (alone - dense(record)).abs().max().item(), (alone - beside).abs().max().item()
print("8 bits move the output by", by_bits, "another record by", by_other)
assert by_bits < 0.02 and by_other > 0.1
PY
