"""Opacus's engine audited, at its defaults and in secure mode.  python examples/audit_opacus.py [CHECK ...]"""

import sys

import numpy as np
from torch import nn

from dpzero_theory.audit import Claim, View, check
from dpzero_theory.audit.adapters.opacus import engine_loop

records = np.random.default_rng(0).normal(size=(48, 6))  # five features and a target
claim = Claim(
    epsilon=2.2, delta=1e-5, relation="add-remove", sampling="poisson", n=48, batch=12, steps=12,
    noise_multiplier=2.0, clip=1.0,
)  # fmt: skip
for secure in (False, True):
    loop = engine_loop(lambda: nn.Linear(5, 1), lambda found, y: ((found[:, 0] - y) ** 2).mean(), secure_mode=secure)
    report = check(loop, records, claim, View(seed="public"), {"step_size": 0.1}, checks=sys.argv[1:], runs=24)
    print(f"secure mode {'on' if secure else 'off'}: violated {', '.join(report.violations)}\n{report.text()}\n")
