#!/usr/bin/env bash
# Version: opacus 1.6.0, dp-accounting 0.6.0
# Source: https://github.com/meta-pytorch/opacus/blob/main/opacus/accountants/rdp.py (its default orders, up to 63) and
#   .../opacus/accountants/prv.py (eps_error, 0.01 unless one says otherwise)
# Behaviour: both accountants have a floor that no noise gets below: "rdp" log(1/delta) and more over the largest order, "prv" its own error.
#   get_noise_multiplier then refuses a target that can be met, or doubles the noise until the floor lets it through.
# Output: delta 1e-5, one step with noise of 10,000 clips: epsilon 0.1029 by rdp, 0.00999 by prv, 0 by dp-accounting. Rate 0.01, 1,000 steps:
#   target 0.1 is refused by rdp ("The privacy budget is too low"), where 9.80 is enough; for target 0.01 prv says 1,280 where 81.3 is enough.
# Matters: a budget that is split over many queries or many runs is made of such small epsilons. Each share then costs up to 16 times the
#   noise, and the message blames the budget. Give more orders, a smaller eps_error, or another accountant.
# Guessed: noise within 1% of the least, with an epsilon just below the target; seen: refused, or 16 times too much.
set -euo pipefail
work=$(mktemp -d); trap 'rm -rf "$work"' EXIT; cd "$work"
"${PYTHON:-python3}" -m pip install -q --no-compile --target lib opacus==1.6.0 torch==2.13.0 dp-accounting==0.6.0
PYTHONPATH=lib "${PYTHON:-python3}" -W ignore - 2> said <<'PY' || (cat said; exit 1)
import dp_accounting as dp
from dp_accounting.pld import PLDAccountant
from opacus.accountants import create_accountant
from opacus.accountants.utils import get_noise_multiplier


def event(multiplier, steps):
    return dp.SelfComposedDpEvent(dp.PoissonSampledDpEvent(0.01, dp.GaussianDpEvent(multiplier)), steps)


floor = {"PLD": PLDAccountant().compose(event(1e4, 1)).get_epsilon(1e-5)}
for name in ("rdp", "prv"):
    account = create_accountant(name)
    account.history = [(1e4, 0.01, 1)]
    floor[name] = account.get_epsilon(1e-5)
print("epsilon of next to nothing:", floor)
assert floor["PLD"] == 0 and floor["rdp"] > 0.1 and 0.009 < floor["prv"] < 0.011

asked = {"target_delta": 1e-5, "sample_rate": 0.01, "steps": 1000}
try:
    print("rdp, 0.1:", get_noise_multiplier(target_epsilon=0.1, accountant="rdp", **asked))
    raise SystemExit("it was not refused")
except ValueError as error:
    print("rdp, 0.1:", error)
found = get_noise_multiplier(target_epsilon=0.01, accountant="prv", **asked)
least = [dp.calibrate_dp_mechanism(PLDAccountant, lambda s: event(s, 1000), target, 1e-5) for target in (0.1, 0.01)]
print("prv, 0.01:", found, "PLD, 0.1 and 0.01:", least)
assert 9.7 < least[0] < 9.9 and found > 15 * least[1]
PY
