#!/usr/bin/env bash
# Version: dp-accounting 0.6.0
# Source: https://github.com/google/differential-privacy/blob/main/python/dp_accounting/dp_accounting/pld/pld_pmf.py (the mass that a
#   composition may cut off, 1e-15 unless one says otherwise)
# Behaviour: composing cuts off tails of 1e-15 and counts them as delta. Below about 1e-13 the answer is about that cut, not about the
#   mechanism: sound, and useless. Its Renyi accountant, usually the looser one, is then the tighter.
# Output: 1,000 Poisson steps, rate 0.01, multiplier 1: epsilon 4.2509 at delta 1e-13, 8.5860 at 1e-14, infinite at 1e-15 (Renyi: 4.665,
#   4.976, 5.284).
# Matters: a delta below 1/n of a large corpus, or a union over many runs, ends there. A calibration at 1e-14 adds much more noise than is
#   needed, without a warning. Give it a smaller cut (tail_mass_truncation), or take another accountant.
# Guessed: grows by about 0.33 a decade, as before; seen: doubles between two decades, then infinite.
set -euo pipefail
work=$(mktemp -d); trap 'rm -rf "$work"' EXIT; cd "$work"
"${PYTHON:-python3}" -m pip install -q --no-compile --target lib dp-accounting==0.6.0
PYTHONPATH=lib "${PYTHON:-python3}" - 2> said <<'PY' || (cat said; exit 1)
import math

import dp_accounting as dp
from dp_accounting.pld import PLDAccountant
from dp_accounting.rdp import RdpAccountant

event = dp.SelfComposedDpEvent(dp.PoissonSampledDpEvent(0.01, dp.GaussianDpEvent(1.0)), 1000)
found = {}
for delta in (1e-12, 1e-13, 1e-14, 1e-15):
    found[delta] = [account.compose(event).get_epsilon(delta) for account in (PLDAccountant(), RdpAccountant())]
    print(delta, found[delta])
assert found[1e-12][0] < 3.95 and found[1e-13][0] < 4.3 and found[1e-14][0] > 8 and math.isinf(found[1e-15][0])
assert found[1e-13][1] > found[1e-13][0] and found[1e-14][1] < 5
PY
