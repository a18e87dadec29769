"""Code written for dp-accounting, with certified numbers.  python examples/in_dp_accounting.py"""

import dp_accounting
from dp_accounting.pld import PLDAccountant

from dpzero_theory.privacy.dp_accounting import CertifiedAccountant


def run(noise: float) -> dp_accounting.DpEvent:
    step = dp_accounting.PoissonSampledDpEvent(64 / 1024, dp_accounting.GaussianDpEvent(noise))
    return dp_accounting.SelfComposedDpEvent(step, 1_000)


for accountant in (CertifiedAccountant, PLDAccountant):
    noise = dp_accounting.calibrate_dp_mechanism(accountant, run, 2.0, 1e-5, tol=1e-4)
    print(f"{accountant.__name__}: noise {noise:.5f}, epsilon {accountant().compose(run(noise)).get_epsilon(1e-5):.6f}")

# It prints:
# CertifiedAccountant: noise 4.05028, epsilon 1.999996
# PLDAccountant: noise 4.05029, epsilon 1.999996
