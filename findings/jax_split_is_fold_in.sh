#!/usr/bin/env bash
# Version: jax 0.10.2
# Source: https://github.com/jax-ml/jax/pull/13341 (made equal on purpose, behind a flag that has since become the default)
# Behaviour: jax.random.split(key, n)[i] is the same key as jax.random.fold_in(key, i), for every i and n.
# Output: equal for n = 2, 5 and 1000 and all i; the normal numbers drawn from the two are equal.
# Matters: a loop may publish its directions' key, derive step t's direction by fold_in(key, t), and split the same key at the start for
#   the noise and the batches. The noise is then drawn from the key of the direction of step 0 or 1, which everyone has: no epsilon. Use keys
#   from different sources, not different functions of one key.
# Guessed: only the question was written down first, whether the two are related; seen: they are the same keys.
set -euo pipefail
work=$(mktemp -d); trap 'rm -rf "$work"' EXIT; cd "$work"
"${PYTHON:-python3}" -m pip install -q --no-compile --target lib jax==0.10.2 jaxlib==0.10.2 numpy==2.4.6
PYTHONPATH=lib "${PYTHON:-python3}" - <<'PY'
import jax
import numpy as np

key = jax.random.key(2026)
data = jax.random.key_data
for n in (2, 5, 1000):
    folded = np.stack([data(jax.random.fold_in(key, i)) for i in range(n)])
    assert np.array_equal(data(jax.random.split(key, n)), folded), n
for_noise, for_batches = jax.random.split(key)
direction = jax.random.normal(jax.random.fold_in(key, 0), (4,))
noise = jax.random.normal(for_noise, (4,))
print("direction of step 0:", direction, "noise:", noise)
assert np.array_equal(direction, noise)
PY
