#!/usr/bin/env bash
# Version: torch 2.13.0
# Source: https://docs.pytorch.org/docs/stable/generated/torch.bernoulli.html and
#   https://docs.pytorch.org/docs/stable/generated/torch.Tensor.bernoulli_.html
# Behaviour: on a CPU torch.bernoulli(p) of a float32 tensor compares p with a float32 number of 24 random bits, as torch.rand(n) < p does,
#   so that the real rate is p rounded up to a multiple of 2^-24 = 5.96e-8. x.bernoulli_(p) with a number p draws the right rate.
# Output: at p = 1e-8 and 10^9 draws about 60 ones (expected 10); bernoulli_ 5 to 20.
# Matters: Poisson sampling of batches at rate 1e-6 is 1.3% above what the accountant is told, at 1e-7 19%, at 1e-8 six times. The true epsilon
#   is above the stated one by about as much. Draw the number of records (a binomial number in float64), then which ones.
# Guessed: torch.rand is coarse, torch.bernoulli is not; seen: bernoulli of a tensor is as coarse, bernoulli_ of a number is not.
set -euo pipefail
work=$(mktemp -d); trap 'rm -rf "$work"' EXIT; cd "$work"
"${PYTHON:-python3}" -m pip install -q --no-compile --target lib torch==2.13.0 numpy==2.4.6
PYTHONPATH=lib "${PYTHON:-python3}" - <<'PY'
import torch

RATE, SIZE, TIMES = 1e-8, 10**8, 10
drawn = torch.Generator().manual_seed(1)
numbers = torch.empty(SIZE)
uniform = torch.rand(10**6, generator=drawn).double() * 2**24
assert torch.equal(uniform, uniform.round())  # multiples of 2^-24
coarse = exact = 0
for _ in range(TIMES):
    coarse += int(torch.bernoulli(numbers.fill_(RATE), generator=drawn).sum())
    exact += int(numbers.bernoulli_(RATE, generator=drawn).sum())
print("expected", RATE * SIZE * TIMES, "bernoulli(tensor)", coarse, "bernoulli_(number)", exact)
assert 30 < coarse < 100 and exact < 28
PY
