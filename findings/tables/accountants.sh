#!/usr/bin/env bash
# Version: dp-accounting 0.6.0 and its main branch (commit 1e2abd4), opacus 1.6.0 with torch 2.13.0, and riskcal 1.5.1 (on Python 3.11 or newer)
# Source: https://github.com/google/differential-privacy/tree/main/python/dp_accounting, https://github.com/meta-pytorch/opacus
#   and https://pypi.org/project/riskcal
# Output: the table "Which answers of others are safe to quote" of docs/results/accountants.md (what others answer) and the one of events to come below
#   it; ends with another status than 0 if a row differs.
set -euo pipefail
page=$(realpath "$(dirname "$0")/../../docs/results/accountants.md")
work=$(mktemp -d); trap 'rm -rf "$work"' EXIT; cd "$work"
pip=("${PYTHON:-python3}" -m pip install -q --no-compile)
"${pip[@]}" --target lib torch==2.13.0 dp-accounting==0.6.0 opacus==1.6.0 riskcal==1.5.1 numpy==2.4.6
"${pip[@]}" --no-deps --target main "git+https://github.com/google/differential-privacy@1e2abd4#subdirectory=python/dp_accounting"
cat > asked.py <<'PY'
import dp_accounting as dp
from dp_accounting.pld import PLDAccountant
from dp_accounting.rdp import RdpAccountant

REPLACE = dp.NeighboringRelation.REPLACE_ONE


def row(asked, answer, *values):
    print(f"| {asked} | {answer.format(*values)} |".replace("inf", "infinite"))


def sampled(rate=0.01, steps=1000, noise=1.0):
    return dp.SelfComposedDpEvent(dp.PoissonSampledDpEvent(rate, dp.GaussianDpEvent(noise)), steps)


def epsilon(accountant, event, delta=1e-5):
    return accountant.compose(event).get_epsilon(delta)
PY
{
    PYTHONPATH=lib "${PYTHON:-python3}" -W ignore - <<'PY'
import logging

from asked import *
from opacus.accountants import create_accountant
from riskcal.calibration.dpsgd import get_beta_for_dpsgd

logging.disable(logging.WARNING)


def opacus(kind, *steps):
    accountant = create_accountant(kind)
    accountant.history = [steps]
    return accountant.get_epsilon(1e-5)


full = dp.GaussianDpEvent(1.0)
again = dp.SampledWithReplacementDpEvent(10_000, 100, dp.GaussianDpEvent(1.0))
row("one full batch, replace-one", "dp-accounting 0.6.0, Renyi: {:.3f}", epsilon(RdpAccountant(neighboring_relation=REPLACE), full))
row("the same", "its privacy loss distributions: {:.3f}", epsilon(PLDAccountant(REPLACE), full))
for asked, answer, noise in (("100 records of 10,000, replace-one", "dp-accounting, Renyi: {:.3f}", 1.0), ("the same, asked with half the noise", "{:.3f}", 0.5)):
    fixed = dp.SelfComposedDpEvent(dp.SampledWithoutReplacementDpEvent(10_000, 100, dp.GaussianDpEvent(noise)), 1000)
    row(asked, answer, epsilon(RdpAccountant(neighboring_relation=REPLACE), fixed))
assert not any(kind(neighboring_relation=REPLACE).supports(again) for kind in (PLDAccountant, RdpAccountant))
row("the same, drawn with replacement", "refused by both")
pair = dp.dp_event.MixtureOfGaussiansDpEvent(1.0, [0.0, 1.0, 2.0], [0.99**2, 2 * 0.99 * 0.01, 0.01**2])
row("two records of one person", "dp-accounting's distributions: {:.3f}", epsilon(PLDAccountant(), dp.SelfComposedDpEvent(pair, 1000)))
small = 0.6, 0.001, 10_000
row("noise 0.6, rate 0.001, 10,000 steps", 'Opacus 1.6.0 "gdp": {:.3f}', opacus("gdp", *small))
row("the same", 'its "prv": {:.3f}', opacus("prv", *small))
far = [[epsilon(kind(), sampled(), delta) for kind in (PLDAccountant, RdpAccountant)] for delta in (1e-13, 1e-14, 1e-15)]
row("delta 1e-13", "dp-accounting's distributions: {:.3f}", far[0][0])
row("delta 1e-14", "{:.3f}, its Renyi accountant {:.3f}", *far[1])
row("delta 1e-15", "{}, and {:.3f}", *far[2])
cut = dp.dp_event.TruncatedSubsampledGaussianDpEvent(10_000, 0.01, 150, 1.0)
row("batches cut at 150 of 10,000", "dp-accounting's distributions: {:.4f}", epsilon(PLDAccountant(), dp.SelfComposedDpEvent(cut, 1000)))
row("noise 10,000, one step", 'Opacus "rdp": {:.3f}, "prv": {:.3f}', *(opacus(kind, 1e4, 0.01, 1) for kind in ("rdp", "prv")))
rates = [1 - get_beta_for_dpsgd(1.0, 0.01, 1000, alpha) for alpha in (1e-6, 1e-3)]
row("true positive rate, false positive rate 1e-6", "riskcal 1.5.1: {:.1e}, and {:.5f} at 0.001", *rates)
PY
    PYTHONPATH=main:lib "${PYTHON:-python3}" -W ignore - <<'PY'
import numpy as np
from asked import *
from dp_accounting.privacy_accountant import UnsupportedEventError


def twenty(kind, event):
    try:
        return f"{epsilon(kind(), dp.SelfComposedDpEvent(event, 20)):.4f}"
    except UnsupportedEventError:
        return "refused"


rates = PLDAccountant().compose(sampled()).get_true_positive_rates(np.array([1e-6, 1e-3]))
row("the same", "dp-accounting's main branch: {:.2e}, and {:.5f} at 0.001", *rates)
exponential = dp.ExponentialMechanismDpEvent(0.1)
row("20 exponential mechanisms of epsilon 0.1", "dp-accounting's main branch, Renyi: {}", twenty(RdpAccountant, exponential))
for name, event in {
    "`DiscreteGaussianDpEvent(10, 5, dimension=1)`": dp.DiscreteGaussianDpEvent(10, 5, dimension=1),
    "the same, `dimension=None`": dp.DiscreteGaussianDpEvent(10, 5),
    "`EpsilonDeltaDpEvent(0.1, 1e-8)`": dp.dp_event.EpsilonDeltaDpEvent(0.1, 1e-8),
    "`ExponentialMechanismDpEvent(0.1)`": exponential,
    "`PermuteAndFlipDpEvent(0.1)`": dp.PermuteAndFlipDpEvent(0.1),
}.items():
    print(f"| {name} | {twenty(PLDAccountant, event)} | {twenty(RdpAccountant, event)} |")
PY
} | tee rows.md
{ cut -d'|' -f1-3 "$page"; cut -d'|' -f1-4 "$page"; } | tr -d '*' | sed 's/$/|/' > said.md  # without the columns that say ours
! grep -vxFf said.md rows.md
