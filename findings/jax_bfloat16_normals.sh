#!/usr/bin/env bash
# Version: jax 0.10.2
# Source: https://github.com/jax-ml/jax/pull/26974 (uniform numbers have as many values as the mantissa) and
#   https://github.com/jax-ml/jax/issues/27002 (draws follow the precision that is asked for).
# Behaviour: jax.random.normal(dtype=bfloat16) inverts a uniform number of 7 bits. It takes at most 128 values, from -2.89 to 2.52, and they
#   are not symmetric. In float32 the ends are unequal too: no value is below -5.42 or above 5.25.
# Output: 10^7 draws: 128 values, least -2.890625, greatest 2.515625, mean -0.012 (38 standard errors from 0).
# Matters: noise in the precision of the model is no Gaussian. One of 128 outcomes is seen, and a release beyond 2.52 sigma of what one data
#   set can give excludes it: no small delta holds. Directions have no far coordinates, and a mean. Draw in float32 and cast directions; draw
#   noise elsewhere.
# Guessed: float32 normals, rounded, up to more than 4; seen: 128 values up to 2.5.
set -euo pipefail
work=$(mktemp -d); trap 'rm -rf "$work"' EXIT; cd "$work"
"${PYTHON:-python3}" -m pip install -q --no-compile --target lib jax==0.10.2 jaxlib==0.10.2 numpy==2.4.6
PYTHONPATH=lib "${PYTHON:-python3}" - <<'PY'
import jax
import jax.numpy as jnp
import numpy as np

low = np.asarray(jax.random.normal(jax.random.key(0), (10**7,), jnp.bfloat16).astype(jnp.float32), np.float64)
print("values", len(np.unique(low)), "from", low.min(), "to", low.max(), "mean", low.mean())
wide = [jax.random.normal(jax.random.key(i), (10**7,)) for i in range(1, 21)]
ends = min(float(x.min()) for x in wide), max(float(x.max()) for x in wide)
print("float32, 2 * 10^8 draws, from", *ends)
assert len(np.unique(low)) == 128 and (low.min(), low.max()) == (-2.890625, 2.515625)
assert low.mean() < -0.01  # one standard error is 0.0003
assert -5.43 < ends[0] < -5.3 and 5.0 < ends[1] < 5.3, ends
PY
