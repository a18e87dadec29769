"""Code written for dp-accounting, with certified numbers.  python examples/in_dp_accounting.py"""

from dataclasses import replace

import dp_accounting
from dp_accounting.pld import PLDAccountant

import dpzero_theory as dz
from dpzero_theory.privacy.dp_accounting import CertifiedAccountant, event_from_history


def run(noise: float) -> dp_accounting.DpEvent:
    step = dp_accounting.PoissonSampledDpEvent(64 / 1024, dp_accounting.GaussianDpEvent(noise))
    return dp_accounting.SelfComposedDpEvent(step, 1_000)


for accountant in (CertifiedAccountant, PLDAccountant):
    noise = dp_accounting.calibrate_dp_mechanism(accountant, run, 2.0, 1e-5, tol=1e-4)
    print(f"{accountant.__name__}: noise {noise:.5f}, epsilon {accountant().compose(run(noise)).get_epsilon(1e-5):.6f}")

# The other way: a run's release, `run.plan.release`, has noise on a lattice, of which dp-accounting has no event. As
# Gaussian noise a little smaller it costs as much or more.
release = dz.Step(4.0503, dz.Poisson(64 / 1024), "add-remove", "discrete-gaussian")
stated = replace(release, mechanism="gaussian", noise=release.noise * (1 - 1e-12))
theirs = PLDAccountant().compose(event_from_history(stated * 1_000))
print(f"a run's 1,000 steps: epsilon {theirs.get_epsilon(1e-5):.6f}")

# It prints:
# CertifiedAccountant: noise 4.05028, epsilon 1.999996
# PLDAccountant: noise 4.05029, epsilon 1.999996
# a run's 1,000 steps: epsilon 1.999993
